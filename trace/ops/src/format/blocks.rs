//! Encodes and decodes the quantized blocks of GGUF. The file `ggml-common.h` of ggml defines the
//! layouts of the blocks. The tests compare all decoded numbers bit for bit with the results of the
//! Python package `gguf`.

use std::fmt;

use half::f16;

use super::{DOUBLED_FLOATS, FloatGroup, GROUP, Group, Quantized, SUPER_BLOCK, SuperBlock, WeightFormat};

/// The number of values per block in formats such as Q4_K, whose names end with K.
const LONG: usize = SUPER_BLOCK;

/// The format of a quantized block in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockFormat {
    /// A block contains a scale and 32 signed four-bit integers. The file stores each four-bit
    /// integer increased by 8.
    Q4_0,
    /// A block contains a scale, a minimum and 32 unsigned four-bit integers.
    Q4_1,
    /// A block contains a scale and 32 signed five-bit integers. The file stores each five-bit
    /// integer increased by 16.
    Q5_0,
    /// A block contains a scale, a minimum and 32 unsigned five-bit integers.
    Q5_1,
    /// A block contains a scale and 32 signed eight-bit integers.
    Q8_0,
    /// A block contains 8 groups of 32 unsigned four-bit integers. Each group of integers has a
    /// scale and a minimum of six bits. The block has two scales that multiply the scales and the
    /// minima of the groups.
    Q4K,
    /// A block contains 8 groups of 32 unsigned five-bit integers. Each group of integers has a
    /// scale and a minimum of six bits. The block has two scales that multiply the scales and the
    /// minima of the groups.
    Q5K,
    /// A block contains 16 groups of 16 signed six-bit integers. The file stores each six-bit
    /// integer increased by 32. Each group of integers has a scale of eight bits. The block has one
    /// scale that multiplies the scales of the groups.
    Q6K,
    /// A block contains 32 four-bit floats (e2m1) and a scale, which is a power of two (OCP
    /// "Microscaling Formats (MX) Specification", 2023, §5.3).
    Mxfp4,
}

impl BlockFormat {
    pub const ALL: [Self; 9] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Mxfp4,
    ];

    /// Returns the block format that has the given number in ggml's list of types.
    pub fn of(number: u32) -> Option<Self> {
        Some(match number {
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            39 => Self::Mxfp4,
            _ => return None,
        })
    }

    /// Returns the name of the format in GGUF.
    pub fn word(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Returns the number of values in a block.
    pub fn numbers(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Mxfp4 => GROUP,
            Self::Q4K | Self::Q5K | Self::Q6K => LONG,
        }
    }

    /// Returns the size of a block in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q5K => 2 + 2 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
            Self::Mxfp4 => 1 + 16,
        }
    }

    /// Decodes the numbers of the blocks in `bytes` from the index `start` on. The function uses
    /// the same f32 arithmetic as ggml.
    ///
    /// # Panics
    /// Panics if `bytes` contains fewer than `start + out.len()` numbers.
    pub fn decode(self, bytes: &[u8], start: usize, out: &mut [f32]) {
        let (together, mut done) = (self.numbers(), 0);
        let mut block = [0.0; LONG];
        while done < out.len() {
            let (index, first) = ((start + done) / together, (start + done) % together);
            self.block(&bytes[index * self.bytes()..][..self.bytes()], &mut block);
            let count = (together - first).min(out.len() - done);
            out[done..done + count].copy_from_slice(&block[first..first + count]);
            done += count;
        }
    }

    /// Returns the integers and scales of the block whose first number has the index `start`. The
    /// result is `None` if none of Tracewright's formats can store the same block.
    pub fn quantized(self, bytes: &[u8], start: usize) -> Option<Quantized> {
        if !start.is_multiple_of(self.numbers()) {
            return None;
        }
        let block = bytes.get(start / self.numbers() * self.bytes()..)?.get(..self.bytes())?;
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => Some(Quantized::Group(self.with_scale(block))),
            Self::Q4K => Some(Quantized::SuperBlock(Box::new(with_minima(block)))),
            Self::Mxfp4 => Some(Quantized::Floats(floats(block))),
            Self::Q4_1 | Self::Q5_1 | Self::Q5K | Self::Q6K => None,
        }
    }

    /// Returns the GGUF block format that stores the same integers and scales as a format of
    /// Tracewright.
    pub fn of_ours(format: WeightFormat) -> Option<Self> {
        match format {
            WeightFormat::Q8 => Some(Self::Q8_0),
            WeightFormat::Q4 => Some(Self::Q4_0),
            WeightFormat::Q4K => Some(Self::Q4K),
            WeightFormat::Mxfp4 => Some(Self::Mxfp4),
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => None,
        }
    }

    /// Encodes a block with the given integers and scales, or with floats. If the block has
    /// integers and no minima, `in_eight_bits` selects between eight bits and four bits.
    pub fn encode(quantized: &Quantized, in_eight_bits: bool) -> Vec<u8> {
        match quantized {
            Quantized::Group(Group { integers, scale }) => {
                let scale = scale.to_le_bytes().into_iter();
                match in_eight_bits {
                    true => scale.chain(integers.iter().map(|&integer| integer as u8)).collect(),
                    false => scale.chain(paired(&integers.map(|integer| (integer + 8) as u8))).collect(),
                }
            }
            Quantized::Floats(FloatGroup { codes, exponent }) => {
                [*exponent].into_iter().chain(paired(codes)).collect()
            }
            Quantized::SuperBlock(block) => {
                let mut bytes = block.steps.map(f16::to_le_bytes).as_flattened().to_vec();
                bytes.extend(block.packed_counts());
                for pair in block.integers.as_chunks::<2>().0 {
                    bytes.extend(pair[0].iter().zip(pair[1]).map(|(low, high)| low | high << 4));
                }
                bytes
            }
        }
    }

    /// Decodes a block of Q4_0, Q5_0 or Q8_0.
    fn with_scale(self, block: &[u8]) -> Group {
        let mut integers = [0; GROUP];
        match self {
            Self::Q4_0 => integers = nibbles(&block[2..]).map(|nibble| nibble as i8 - 8),
            Self::Q5_0 => {
                let high = bits(&block[2..]);
                integers = nibbles(&block[6..]).map(|nibble| nibble as i8);
                integers.iter_mut().zip(high).for_each(|(low, bit)| *low += 16 * bit as i8 - 16);
            }
            _ => integers.iter_mut().zip(&block[2..]).for_each(|(integer, byte)| *integer = *byte as i8),
        }
        Group { integers, scale: half(block) }
    }

    fn block(self, block: &[u8], out: &mut [f32; LONG]) {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => {
                let Group { integers, scale } = self.with_scale(block);
                out.iter_mut()
                    .zip(integers)
                    .for_each(|(x, integer)| *x = f32::from(integer) * scale.to_f32());
            }
            Self::Q4_1 | Self::Q5_1 => {
                let (scale, least) = (half(block).to_f32(), half(&block[2..]).to_f32());
                let high = if self == Self::Q5_1 { bits(&block[4..]) } else { [0; GROUP] };
                let low = nibbles(&block[self.bytes() - 16..]);
                let integers = low.iter().zip(high).map(|(low, bit)| low + 16 * bit);
                out.iter_mut().zip(integers).for_each(|(x, q)| *x = f32::from(q) * scale + least);
            }
            Self::Q4K => *out = with_minima(block).numbers(),
            Self::Q5K => five_bits(block, out),
            Self::Q6K => six_bits(block, out),
            Self::Mxfp4 => out[..GROUP].copy_from_slice(&floats(block).numbers()),
        }
    }
}

/// Decodes a block of Q4_K. For a block of Q5_K, the function ignores the fifth bit of each number.
/// The lower four bits of 32 bytes contain one group of numbers, and the upper four bits of the
/// same bytes contain the next group.
fn with_minima(block: &[u8]) -> SuperBlock {
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    let low = &block[block.len() - LONG / 2..];
    let integer = |group: usize, place: usize| low[group / 2 * GROUP + place] >> (group % 2 * 4) & 15;
    SuperBlock {
        steps: [half(block), half(&block[2..])],
        counts: SuperBlock::unpacked_counts(packed),
        integers: std::array::from_fn(|group| std::array::from_fn(|place| integer(group, place))),
    }
}

/// Decodes a block of Q5_K. The block stores the fifth bits of its numbers in separate bytes, and
/// each of these bytes contains one bit for each of the eight groups. All bits in a byte of fifth
/// bits belong to numbers at the same position in their groups.
fn five_bits(block: &[u8], out: &mut [f32; LONG]) {
    let (four, high) = (with_minima(block), &block[16..16 + GROUP]);
    for (index, group) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        let [scale, minimum] = four.scale_and_minimum(index);
        for (place, x) in group.iter_mut().enumerate() {
            let integer = four.integers[index][place] + 16 * (high[place] >> index & 1);
            *x = scale * f32::from(integer) - minimum;
        }
    }
}

/// Decodes Q6_K. Each half of a block contains 128 six-bit numbers. The lower four bits of the 128
/// numbers are in 64 bytes, and the upper two bits are in 32 bytes.
fn six_bits(block: &[u8], out: &mut [f32; LONG]) {
    let (low, rest) = block.split_at(LONG / 2);
    let (high, rest) = rest.split_at(LONG / 4);
    let (scales, scale) = rest.split_at(LONG / 16);
    let scale = half(scale).to_f32();
    for (place, x) in out.iter_mut().enumerate() {
        let (side, run, at) = (place / 128, place % 128 / 32, place % 32);
        let nibble = low[side * 64 + run % 2 * 32 + at] >> (run / 2 * 4) & 15;
        let upper = high[side * 32 + at] >> (run * 2) & 3;
        let integer = (nibble | upper << 4) as i8 - 32;
        *x = scale * f32::from(scales[place / 16] as i8) * f32::from(integer);
    }
}

fn floats(block: &[u8]) -> FloatGroup {
    FloatGroup { codes: nibbles(&block[1..]), exponent: block[0] }
}

/// Four-bit floats whose scales are in another tensor. Each byte contains two floats, and the first
/// float is in the lower four bits.
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

    /// Returns the floats of the group whose first number has the index `start`. The result is `None`
    /// if the `count` numbers are not exactly one group.
    pub fn quantized(&self, start: usize, count: usize) -> Option<Quantized> {
        let whole = count == GROUP && start.is_multiple_of(GROUP);
        let codes = || std::array::from_fn(|place| self.code(start + place));
        whole.then(|| Quantized::Floats(FloatGroup { codes: codes(), exponent: self.scales[start / GROUP] }))
    }
}

/// Packs two integers into each byte, in the order that [`nibbles`] expects.
fn paired(integers: &[u8; GROUP]) -> impl Iterator<Item = u8> + '_ {
    let (low, high) = integers.split_at(GROUP / 2);
    low.iter().zip(high).map(|(low, high)| low | high << 4)
}

fn half(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// Returns the lower four bits of each of 16 bytes, followed by the upper four bits of each byte.
fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|place| bytes[place % 16] >> (place / 16 * 4) & 15)
}

fn bits(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|place| bytes[place / 8] >> (place % 8) & 1)
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers of two groups come from `quants.dequantize` of the package `gguf`
    /// 0.19.0. The scale of the second group is 2⁻¹²⁶, so the numbers of the second group are
    /// multiples of 2⁻¹²⁷.
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
        for format in [WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Q4K, WeightFormat::Mxfp4] {
            let block = BlockFormat::of_ours(format).unwrap();
            let quantized = format.quantize(&numbers[..block.numbers()]);
            let bytes = BlockFormat::encode(&quantized, format == WeightFormat::Q8);
            assert_eq!(bytes.len(), block.bytes());
            assert_eq!(block.quantized(&bytes, 0), Some(quantized));
        }
    }
}
