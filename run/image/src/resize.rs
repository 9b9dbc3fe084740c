//! Resizes 8-bit images to the same bytes as torchvision and Pillow.

use crate::Pixels;
use crate::taps::{AxisTaps, Filter, Taps};

/// The integers in which a library computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Weights are i16, with as many bits as the largest weight allows.
    Torchvision,
    /// Weights have 22 bits after the point.
    Pillow,
}

/// A filter, and the library whose bytes the result has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resizer {
    /// The filter along both axes.
    pub filter: Filter,
    /// The library.
    pub rounding: Rounding,
}

/// The most bits of a weight after the point.
const BITS: u32 = 22;

/// The rows or pixels that are computed together, so that the compiler can use vector instructions.
const LANES: usize = 16;

impl Resizer {
    /// The image with `width` and `height` pixels, both at least 1. As in torchvision, the horizontal pass comes
    /// first, and its result is rounded to bytes.
    #[must_use]
    pub fn resize(self, image: &Pixels, width: usize, height: usize) -> Pixels {
        let (width, height) = (width.max(1), height.max(1));
        let wide = if image.width() == width {
            image.clone()
        } else {
            let bytes = horizontal(image, &self.axis(image.width(), width));
            Pixels::new(width, image.height(), bytes)
        };
        if height == image.height() {
            return wide;
        }
        Pixels::new(width, height, vertical(&wide, &self.axis(image.height(), height)))
    }

    fn axis(self, from: usize, to: usize) -> AxisTaps {
        AxisTaps::new(self.filter, from, to, |largest| match self.rounding {
            Rounding::Pillow => BITS,
            Rounding::Torchvision => {
                let fits = |bits: &u32| (largest * f64::from(1_u32 << bits) + 0.5) < 32768.0;
                (1..=BITS).take_while(fits).last().unwrap_or_default()
            }
        })
    }
}

/// Adds `weight` times the bytes of a row. The sums wrap as in C.
fn add(sums: &mut [i32], bytes: &[u8], weight: i32) {
    for (sum, &byte) in sums.iter_mut().zip(bytes) {
        *sum = sum.wrapping_add(weight.wrapping_mul(i32::from(byte)));
    }
}

fn byte(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}

fn vertical(image: &Pixels, axis: &AxisTaps) -> Vec<u8> {
    let row = image.width() * 3;
    let mut sums = vec![0; row];
    let mut bytes = Vec::with_capacity(axis.taps.len() * row);
    for Taps { first, weights } in &axis.taps {
        sums.fill(1 << axis.bits >> 1);
        for (source, &weight) in image.bytes()[first * row..].chunks_exact(row).zip(weights) {
            add(&mut sums, source, weight);
        }
        bytes.extend(sums.iter().map(|&sum| byte(sum, axis.bits)));
    }
    bytes
}

/// Transposes blocks of rows, so that neighbouring sums have the same weight.
fn horizontal(image: &Pixels, axis: &AxisTaps) -> Vec<u8> {
    let (from, to) = (image.width() * 3, axis.taps.len() * 3);
    let mut bytes = vec![0; image.height() * to];
    let mut columns = vec![[0; LANES]; from];
    let blocks = image.bytes().chunks(from * LANES).zip(bytes.chunks_mut(to * LANES));
    for (source, target) in blocks {
        for (lane, row) in source.chunks_exact(from).enumerate() {
            for (column, &byte) in columns.iter_mut().zip(row) {
                column[lane] = byte;
            }
        }
        for (x, Taps { first, weights }) in axis.taps.iter().enumerate() {
            let mut sums = [[1 << axis.bits >> 1; LANES]; 3];
            for (pixel, &weight) in columns[first * 3..].chunks_exact(3).zip(weights) {
                for (sums, column) in sums.iter_mut().zip(pixel) {
                    add(sums, column, weight);
                }
            }
            for (lane, row) in target.chunks_exact_mut(to).enumerate() {
                for (channel, sums) in sums.iter().enumerate() {
                    row[x * 3 + channel] = byte(sums[lane], axis.bits);
                }
            }
        }
    }
    bytes
}
