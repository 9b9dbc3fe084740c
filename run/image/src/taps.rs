//! The weights with which a filter mixes the pixels of a row or a column.

use std::f64::consts::PI;

/// A filter of Pillow and torchvision. When an image shrinks, the filter grows by the same factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle of radius 1.
    Bilinear,
    /// The cubic convolution of radius 2 with a = -0.5 (Keys, "Cubic Convolution Interpolation", 1981).
    Bicubic,
    /// A windowed sinc of radius 3.
    Lanczos,
}

/// The integer weights of the pixels that make up one pixel of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taps {
    /// The index of the first pixel.
    pub first: usize,
    /// One or more weights, for consecutive pixels.
    pub weights: Vec<i32>,
}

/// The taps of all pixels along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AxisTaps {
    pub taps: Vec<Taps>,
    /// A weight of 1 is `1 << bits`.
    pub bits: u32,
}

impl Filter {
    fn radius(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Self::Bilinear if x < 1.0 => 1.0 - x,
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

impl AxisTaps {
    /// From `from` to `to` pixels, both at least 1. `bits` chooses the precision for the largest weight.
    pub fn new(filter: Filter, from: usize, to: usize, bits: impl FnOnce(f64) -> u32) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let radius = filter.radius() * stretch;
        let of = |i: usize| {
            let center = (i as f64 + 0.5) * scale;
            // `as` rounds towards zero, and negative numbers become 0.
            let first = (center - radius + 0.5) as usize;
            let end = ((center + radius + 0.5) as usize).min(from);
            let weights = (first..end).map(|j| filter.at((j as f64 - center + 0.5) * (1.0 / stretch)));
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum();
            (
                first,
                weights.into_iter().map(|weight| if sum == 0.0 { weight } else { weight / sum }).collect(),
            )
        };
        let taps: Vec<(usize, Vec<f64>)> = (0..to).map(of).collect();
        let largest = taps.iter().flat_map(|(_, weights)| weights).copied().fold(0.0, f64::max);
        let bits = bits(largest);
        // `round` rounds halves away from zero.
        let integer = |weight: f64| (weight * f64::from(1_u32 << bits)).round() as i32;
        let integers = |(first, weights): (usize, Vec<f64>)| Taps {
            first,
            weights: weights.into_iter().map(integer).collect(),
        };
        Self { taps: taps.into_iter().map(integers).collect(), bits }
    }
}
