//! The types of quantized blocks in GGUF, and the order of the integers in their bytes.

use std::fmt;

use half::f16;

use super::GROUP;

/// The number of groups whose scales and minima are multiples of the same two steps.
pub const GROUPS: usize = 8;

/// The number of values of a weight row whose groups use the same steps.
pub const SUPER_BLOCK: usize = GROUPS * GROUP;

/// The numbers of a row that share a scale in the 4-bit formats of bitsandbytes.
pub const FLOAT_GROUP: usize = 64;

/// The number of values per block in formats such as Q4_K, whose names end with K.
const LONG: usize = SUPER_BLOCK;

/// The bytes of a block with codes of four bits, 16 scales and the scale that multiplies these.
const CODES: usize = 128 + 16 + 2;

/// Declares the block formats: ggml's number, GGUF's name, and the numbers and bytes of a block. No GGUF file has
/// the blocks in `folders`, which come from quantized Hugging Face folders.
macro_rules! blocks {
    (folders { $($(#[$own_doc:meta])* $own:ident = $own_word:literal [$own_numbers:expr, $own_bytes:expr],)* }
     $($(#[$doc:meta])* $variant:ident = $number:literal $word:literal [$numbers:expr, $bytes:expr]),* $(,)?) => {
        /// The format of a quantized block.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum BlockFormat {
            $($(#[$doc])* $variant,)*
            $($(#[$own_doc])* $own,)*
        }

        impl BlockFormat {
            /// The formats of GGUF files.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the block format that has the given number in ggml's list of types.
            pub fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name of the format, for GGUF files the one in GGUF.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* $(Self::$own => $own_word,)* }
            }

            /// Returns the number of values in a block.
            pub fn numbers(self) -> usize {
                match self { $(Self::$variant => $numbers,)* $(Self::$own => $own_numbers,)* }
            }

            /// Returns the size of a block in bytes.
            pub fn bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* $(Self::$own => $own_bytes,)* }
            }
        }
    };
}

blocks! {
    folders {
        /// The numbers of an IQ1 or IQ2 block: 256 codes of four bits, 16 scales of eight bits, and the scale that
        /// multiplies these.
        Iq2Codes = "codes of IQ2" [LONG, CODES],
        /// The numbers of an IQ3_XXS block, in the same order.
        Iq3XxsCodes = "codes of IQ3_XXS" [LONG, CODES],
        /// The numbers of an IQ3_S block, in the same order.
        Iq3SCodes = "codes of IQ3_S" [LONG, CODES],
        /// A block contains a scale and 128 signed four-bit integers, which are stored increased by 8.
        Int4G128 = "INT4 in groups of 128" [4 * GROUP, 2 + 64],
        /// A block contains a scale, a zero point and 128 unsigned four-bit integers.
        Uint4G128 = "UINT4 in groups of 128" [4 * GROUP, 2 + 1 + 64],
        /// A block contains a scale, a zero point and 32 unsigned four-bit integers.
        Uint4G32 = "UINT4 in groups of 32" [GROUP, 2 + 1 + 16],
        /// A block contains a scale and 128 signed eight-bit integers, which are stored increased by 128.
        Int8G128 = "INT8 in groups of 128" [4 * GROUP, 2 + 128],
        /// A block contains a scale, a zero point and 128 unsigned two-bit integers.
        Uint2G128 = "UINT2 in groups of 128" [4 * GROUP, 2 + 1 + 32],
        /// A block contains a scale, a zero point and 128 unsigned three-bit integers.
        Uint3G128 = "UINT3 in groups of 128" [4 * GROUP, 2 + 1 + 48],
        /// A block contains a scale and 128 floats of eight bits (e4m3). All rows of 128 × 128 numbers share it.
        Fp8Blocks = "FP8 in blocks" [2 * FLOAT_GROUP, 4 + 128],
        /// A block contains a scale, which all blocks of the row repeat, and 128 floats of eight bits (e4m3).
        Fp8Rows = "FP8" [2 * FLOAT_GROUP, 4 + 128],
        /// A block contains a scale and 64 codes of four bits, two per byte from the lower bits on.
        Nf4 = "NF4" [FLOAT_GROUP, 4 + 32],
        /// A block contains a scale and 64 codes of four bits, two per byte from the lower bits on.
        Fp4 = "FP4" [FLOAT_GROUP, 4 + 32],
        /// A block contains a scale in units of another scale, and 64 codes of four bits.
        Nf4Nested = "NF4 with scales of 8 bits" [FLOAT_GROUP, 4 + 4 + 1 + 1 + 32],
        /// A block contains a scale in units of another scale, and 64 codes of four bits.
        Fp4Nested = "FP4 with scales of 8 bits" [FLOAT_GROUP, 4 + 4 + 1 + 1 + 32],
    }
    /// A block contains a scale and 32 signed four-bit integers. The file stores each four-bit
    /// integer increased by 8.
    Q4_0 = 2 "Q4_0" [GROUP, 2 + 16],
    /// A block contains a scale, a minimum and 32 unsigned four-bit integers.
    Q4_1 = 3 "Q4_1" [GROUP, 2 + 2 + 16],
    /// A block contains a scale and 32 signed five-bit integers. The file stores each five-bit
    /// integer increased by 16.
    Q5_0 = 6 "Q5_0" [GROUP, 2 + 4 + 16],
    /// A block contains a scale, a minimum and 32 unsigned five-bit integers.
    Q5_1 = 7 "Q5_1" [GROUP, 2 + 2 + 4 + 16],
    /// A block contains a scale and 32 signed eight-bit integers.
    Q8_0 = 8 "Q8_0" [GROUP, 2 + 32],
    /// A block contains 16 groups of 16 unsigned two-bit integers. Each group has a scale and a minimum of four
    /// bits. The block has two scales that multiply the scales and the minima of the groups.
    Q2K = 10 "Q2_K" [LONG, 16 + 64 + 2 + 2],
    /// A block contains 16 groups of 16 signed three-bit integers. The file stores each three-bit integer
    /// increased by 4. Each group has a scale of six bits, and the block one that multiplies these.
    Q3K = 11 "Q3_K" [LONG, 32 + 64 + 12 + 2],
    /// A block contains 8 groups of 32 unsigned four-bit integers. Each group of integers has a scale and a
    /// minimum of six bits. The block has two scales that multiply the scales and the minima of the groups.
    Q4K = 12 "Q4_K" [LONG, 2 + 2 + 12 + 128],
    /// A block contains 8 groups of 32 unsigned five-bit integers. Each group of integers has a scale and a
    /// minimum of six bits. The block has two scales that multiply the scales and the minima of the groups.
    Q5K = 13 "Q5_K" [LONG, 2 + 2 + 12 + 32 + 128],
    /// A block contains 16 groups of 16 signed six-bit integers. The file stores each six-bit
    /// integer increased by 32. Each group of integers has a scale of eight bits. The block has one
    /// scale that multiplies the scales of the groups.
    Q6K = 14 "Q6_K" [LONG, 128 + 64 + 16 + 2],
    /// A block contains 32 rows of a grid of 256 rows, each with signs for its eight numbers. Each 32 numbers have
    /// a scale of four bits, and the block one that multiplies these.
    Iq2Xxs = 16 "IQ2_XXS" [LONG, 2 + 64],
    /// As in IQ2_XXS, with a grid of 512 rows and a scale for each 16 numbers.
    Iq2Xs = 17 "IQ2_XS" [LONG, 2 + 64 + 8],
    /// As in IQ2_XXS, with 64 rows of four numbers from a grid of 256.
    Iq3Xxs = 18 "IQ3_XXS" [LONG, 2 + 64 + 32],
    /// A block contains 32 rows of a grid of 2048 rows with numbers from −1 to 1. Each 32 numbers add or subtract an
    /// eighth, and have a scale of three bits.
    Iq1S = 19 "IQ1_S" [LONG, 2 + 32 + 16],
    /// A block contains a scale and 32 four-bit codes, which a table makes integers.
    Iq4Nl = 20 "IQ4_NL" [GROUP, 2 + 16],
    /// As in IQ3_XXS, with a grid of 512 rows and all signs.
    Iq3S = 21 "IQ3_S" [LONG, 2 + 64 + 8 + 32 + 4],
    /// As in IQ2_XS, with a grid of 1024 rows and all signs.
    Iq2S = 22 "IQ2_S" [LONG, 2 + 32 + 32 + 8 + 8],
    /// A block contains 8 groups of 32 codes as in IQ4_NL. Each group has a scale of six bits, and the block one
    /// that multiplies these.
    Iq4Xs = 23 "IQ4_XS" [LONG, 2 + 2 + 4 + 128],
    /// As in IQ1_S, with a scale for each 16 numbers, and an eighth of its own for each 8.
    Iq1M = 29 "IQ1_M" [LONG, 32 + 16 + 8],
    /// A block contains a scale and 256 numbers from −1 to 1, of which five are in a byte.
    Tq1_0 = 34 "TQ1_0" [LONG, 48 + 4 + 2],
    /// A block contains a scale and 256 numbers from −1 to 2, of which four are in a byte.
    Tq2_0 = 35 "TQ2_0" [LONG, 64 + 2],
    /// A block contains 32 four-bit floats (e2m1) and a scale, which is a power of two (OCP
    /// "Microscaling Formats (MX) Specification", 2023, §5.3).
    Mxfp4 = 39 "MXFP4" [GROUP, 1 + 16],
    /// A block contains 4 groups of 16 four-bit floats (e2m1). Each group has a float of eight bits (e4m3) as its scale.
    Nvfp4 = 40 "NVFP4" [2 * GROUP, 4 + 32],
    /// A block contains a scale and 128 signs.
    Q1_0 = 41 "Q1_0" [4 * GROUP, 2 + 16],
}

/// Packs two integers into each byte, in the order that [`nibbles`] expects.
pub(super) fn paired(integers: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let (low, high) = integers[..GROUP].split_at(GROUP / 2);
    low.iter().zip(high).map(|(low, high)| low | high << 4)
}

pub(super) fn half(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// Returns the lower four bits of each of 16 bytes, followed by the upper four bits of each byte.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|place| bytes[place % 16] >> (place / 16 * 4) & 15)
}

/// Reads 32 codes of five bits: four bytes contain the fifth bits, and 16 bytes the lower four bits.
pub(super) fn fifth_bits(bytes: &[u8], codes: &mut [u8]) {
    let low = nibbles(&bytes[4..]);
    for (place, (code, low)) in codes.iter_mut().zip(low).enumerate() {
        *code = low | (bytes[place / 8] >> (place % 8) & 1) << 4;
    }
}

/// Writes the bytes that [`fifth_bits`] reads.
pub(super) fn put_fifth_bits(codes: &[u8], bytes: &mut [u8]) {
    let (high, low) = bytes.split_at_mut(4);
    for (byte, codes) in high.iter_mut().zip(codes.chunks(8)) {
        *byte = codes.iter().enumerate().fold(0, |bits, (place, code)| bits | (code >> 4 & 1) << place);
    }
    let lower: Vec<u8> = codes[..GROUP].iter().map(|code| code & 15).collect();
    low.iter_mut().zip(paired(&lower)).for_each(|(byte, pair)| *byte = pair);
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
