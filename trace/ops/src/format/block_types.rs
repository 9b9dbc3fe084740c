//! The types of quantized blocks in GGUF, and the order of the integers in their bytes.

use std::fmt;

use half::f16;

use super::GROUP;

/// The number of groups whose scales and minima are multiples of the same two steps.
pub const GROUPS: usize = 8;

/// The number of values of a weight row whose groups use the same steps.
pub const SUPER_BLOCK: usize = GROUPS * GROUP;

/// The number of values per block in formats such as Q4_K, whose names end with K.
const LONG: usize = SUPER_BLOCK;

/// Declares the block formats: ggml's number, GGUF's name, and the numbers and bytes of a block.
macro_rules! blocks {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $word:literal [$numbers:expr, $bytes:expr]),* $(,)?) => {
        /// The format of a quantized block in a GGUF file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum BlockFormat {
            $($(#[$doc])* $variant),*
        }

        impl BlockFormat {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the block format that has the given number in ggml's list of types.
            pub fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name of the format in GGUF.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }

            /// Returns the number of values in a block.
            pub fn numbers(self) -> usize {
                match self { $(Self::$variant => $numbers),* }
            }

            /// Returns the size of a block in bytes.
            pub fn bytes(self) -> usize {
                match self { $(Self::$variant => $bytes),* }
            }
        }
    };
}

blocks! {
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
    /// A block contains a scale and 32 four-bit codes, which a table makes integers.
    Iq4Nl = 20 "IQ4_NL" [GROUP, 2 + 16],
    /// A block contains 32 four-bit floats (e2m1) and a scale, which is a power of two (OCP
    /// "Microscaling Formats (MX) Specification", 2023, §5.3).
    Mxfp4 = 39 "MXFP4" [GROUP, 1 + 16],
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
