//! Decodes the quantized blocks of GGUF. The file `ggml-common.h` of ggml defines the layouts of the blocks.
//! The tests compare all decoded numbers bit for bit with the results of the Python package `gguf`.

use std::borrow::Cow;

#[cfg(test)]
use super::block_types::nibbles;
use half::f16;

use super::block_types::{half, paired};
use super::groups::Group;
use super::mxfp4::FloatGroup;
use super::{BlockFormat, Codes, DOUBLED_FLOATS, GROUP, Groups, Quantized, SUPER_BLOCK, WeightFormat, grids};

/// The number of values per block in formats such as Q4_K, whose names end with K.
const LONG: usize = SUPER_BLOCK;

impl BlockFormat {
    /// Decodes the numbers of the blocks in `bytes` from the index `start` on. The function uses
    /// the same f32 arithmetic as ggml.
    ///
    /// # Panics
    /// Panics if `bytes` contains fewer than `start + out.len()` numbers.
    pub fn decode(self, bytes: &[u8], start: usize, out: &mut [f32]) {
        let groups = self.facts();
        let (together, mut done) = (groups.block.numbers(), 0);
        let mut block = [0.0; LONG];
        while done < out.len() {
            let (index, first) = ((start + done) / together, (start + done) % together);
            let Some(stored) = self.kept(bytes, index) else { unreachable!("a block for each number") };
            let codes = &groups.codes(&stored)[..together];
            groups.numbers(codes, &groups.scales_of(&stored), &mut block);
            let count = (together - first).min(out.len() - done);
            out[done..done + count].copy_from_slice(&block[first..first + count]);
            done += count;
        }
    }

    /// Returns the block of a format of Tracewright whose first number has the index `start`, if one begins there.
    pub fn quantized(self, bytes: &[u8], start: usize) -> Option<Quantized> {
        let block = self.facts().block;
        if !start.is_multiple_of(block.numbers()) {
            return None;
        }
        let bytes = self.kept(bytes, start / block.numbers())?.into_owned();
        Some(Quantized { block, bytes })
    }

    /// The number of values that a format keeps together.
    pub fn together(self) -> usize {
        self.facts().block.numbers()
    }

    /// The bytes of a block in the format that keeps it. If this is the format of other blocks, the bytes are made.
    fn kept(self, bytes: &[u8], index: usize) -> Option<Cow<'_, [u8]>> {
        let (block, parts) = (self.facts().block, self.numbers() / self.together());
        let stored = bytes.get(index / parts * self.bytes()..)?.get(..self.bytes())?;
        Some(if block == self { stored.into() } else { grids::in_codes(self, stored, index % parts).into() })
    }

    /// Returns the smallest format that keeps the numbers of these blocks without loss.
    pub fn ours(self) -> Option<WeightFormat> {
        let own = WeightFormat::ALL.iter().copied().find(|format| format.block() == Some(self));
        let keeping = || WeightFormat::grouped_formats().filter(|format| self.is_kept_in(*format));
        own.or_else(|| keeping().min_by_key(|format| format.facts().bits()))
    }

    /// The blocks for integers of so many bits, beginning with the longest: with a scale, and with a zero point or
    /// without one.
    pub fn of_integers(bits: usize, zeros: bool) -> &'static [Self] {
        match (bits, zeros) {
            (4, false) => &[Self::Int4G128, Self::Q4_0],
            (4, true) => &[Self::Uint4G128, Self::Uint4G32],
            (8, false) => &[Self::Int8G128, Self::Q8_0],
            (2, true) => &[Self::Uint2G128],
            (3, true) => &[Self::Uint3G128],
            _ => &[],
        }
    }

    /// A block of integers; see [`of_integers`](Self::of_integers).
    pub fn of_codes(self, scale: f16, zero: Option<u8>, codes: &Codes) -> Quantized {
        let mut bytes: Vec<u8> = scale.to_le_bytes().into_iter().chain(zero).collect();
        bytes.resize(self.bytes(), 0);
        (self.facts().write)(codes, &mut bytes);
        Quantized { block: self, bytes }
    }

    /// Whether a format keeps the numbers of all blocks without loss.
    pub fn is_kept_in(self, format: WeightFormat) -> bool {
        let also = || format.groups().is_some_and(|groups| groups.exact.contains(&self));
        format.block() == Some(self) || also()
    }

    /// Returns the integers of a block with one f16 scale; `None` for other blocks.
    pub(super) fn group(self, block: &[u8]) -> Option<Group> {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => {
                let (groups, codes) = (self.facts(), self.facts().codes(block));
                let integers = std::array::from_fn(|place| groups.integer(codes[place]));
                Some(Group { integers, scale: half(block) })
            }
            Self::Mxfp4 => FloatGroup::read(block).in_integers(),
            _ => None,
        }
    }

    /// The facts of the format that stores these blocks.
    fn facts(self) -> &'static Groups {
        let Some(groups) = self.ours().and_then(WeightFormat::groups) else {
            unreachable!("a format for each block")
        };
        groups
    }
}

/// Four-bit floats, two per byte from the lower bits on, whose scales are in another tensor.
#[derive(Clone, Copy, Debug)]
pub struct ScaledFloats<'a> {
    /// The bytes, each of which contains two floats.
    pub pairs: &'a [u8],
    /// The exponents of the scales. Each group of 32 floats has one scale.
    pub scales: &'a [u8],
}

impl ScaledFloats<'_> {
    fn code(&self, place: usize) -> u8 {
        self.pairs[place / 2] >> (place % 2 * 4) & 15
    }

    /// Decodes the numbers from the index `start` on.
    ///
    /// # Panics
    /// Panics if there are fewer than `start + out.len()` numbers.
    pub fn decode(&self, start: usize, out: &mut [f32]) {
        for (place, x) in (start..).zip(out) {
            let doubled = DOUBLED_FLOATS[usize::from(self.code(place))];
            *x = f32::from(doubled) * FloatGroup::half_scale(self.scales[place / GROUP]);
        }
    }

    /// Returns the floats of the group from `start` on, if the `count` numbers are exactly one group.
    pub fn quantized(&self, start: usize, count: usize) -> Option<Quantized> {
        let whole = count == GROUP && start.is_multiple_of(GROUP);
        whole.then(|| {
            let codes: Vec<u8> = (start..start + GROUP).map(|place| self.code(place)).collect();
            let bytes = [self.scales[start / GROUP]].into_iter().chain(paired(&codes)).collect();
            Quantized { block: BlockFormat::Mxfp4, bytes }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers come from `quants.dequantize` of `gguf` 0.19.0. The second scale is 2⁻¹²⁶.
    #[test]
    fn four_bit_floats_are_those_of_gguf() {
        const SCALES: [u8; 2] = [130, 1];
        #[rustfmt::skip]
        const NUMBERS: [[f32; GROUP]; 2] = [
            [-12.0, 0.0, 24.0, -8.0, -48.0, 16.0, -4.0, -32.0, 12.0, 0.0, -24.0, 8.0, 48.0, -16.0, 4.0, 32.0, 0.0, 12.0, 24.0, 48.0, -4.0, -16.0, -32.0, 0.0, 12.0, 24.0, 48.0, -8.0, -16.0, -32.0, 4.0, 12.0],
            [12.0, 2.0, -6.0, 0.0, 3.0, -8.0, -1.0, 4.0, -12.0, -2.0, 6.0, 0.0, -3.0, 8.0, 1.0, -4.0, 0.0, 8.0, -3.0, 1.0, 12.0, -4.0, 2.0, 0.0, -6.0, 3.0, -1.0, -12.0, 4.0, -2.0, 0.0, 6.0],
        ];
        let codes = [|i: usize| (i * 37 + 11) as u8, |i: usize| (i * 91 + 7) as u8]
            .map(std::array::from_fn::<u8, 16, _>);
        for ((scale, codes), numbers) in SCALES.into_iter().zip(codes).zip(NUMBERS) {
            let unit = if scale == 1 { 2f32.powi(-127) } else { 1.0 };
            let mut found = [0.0; GROUP];
            BlockFormat::Mxfp4.decode(&[&[scale], &codes[..]].concat(), 0, &mut found);
            assert_eq!(found, numbers.map(|number| number * unit));
            // The same numbers in pairs, with the scale in another array.
            let four_bits = nibbles(&codes);
            let pairs: Vec<u8> = four_bits.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
            let floats = ScaledFloats { pairs: &pairs, scales: &[scale] };
            let mut in_pairs = [0.0; GROUP];
            floats.decode(0, &mut in_pairs);
            assert_eq!(in_pairs, found);
            let quantized = floats.quantized(0, GROUP).unwrap();
            let stored = BlockFormat::Mxfp4.quantized(&[&[scale], &codes[..]].concat(), 0);
            assert_eq!(Some(&quantized), stored.as_ref());
            assert_eq!(quantized.clone().kept_in(WeightFormat::Mxfp4), Some(quantized.clone()));
            // f16 cannot represent such a small scale.
            assert_eq!(quantized.kept_in(WeightFormat::Q8).is_some(), scale != 1);
        }
    }

    #[test]
    fn blocks_of_ours_come_back() {
        let numbers: Vec<f32> = (0..LONG).map(|i| ((i * 37 + i * i) % 101) as f32 / 7.0 - 6.0).collect();
        for format in WeightFormat::grouped_formats() {
            let groups = format.groups().unwrap();
            let block = groups.block;
            assert_eq!(block.ours(), Some(format));
            let quantized = format.quantize(&numbers[..block.numbers()]);
            assert_eq!(quantized.bytes.len(), block.bytes());
            let mut written = quantized.bytes.clone();
            (groups.write)(&[0; LONG], &mut written);
            assert_ne!(written, quantized.bytes);
            (groups.write)(&groups.codes(&quantized.bytes), &mut written);
            assert_eq!(block.quantized(&written, 0), Some(quantized));
        }
    }
}
