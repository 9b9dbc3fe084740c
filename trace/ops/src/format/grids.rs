//! Writes the blocks of GGUF that Tracewright keeps in the blocks of another type: rows of fixed grids with signs (IQ1 to
//! IQ3), numbers from −1 to 2 (TQ) and signs (Q1_0). Each number stays the same.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use half::f16;

use super::block_types::{half, paired};
use super::q6_k::Stepped;
use super::{BlockFormat, Codes, GROUP, GROUPS, SUPER_BLOCK, iq2, q3_k};

/// The rows of each grid as numbers, whose digits are the places of the row's numbers among the magnitudes.
/// `tests/oracle/gguf_grids.py` writes the file, and describes it.
static GRIDS: LazyLock<BTreeMap<&str, Vec<usize>>> = LazyLock::new(|| {
    let grids = include_str!("grids.txt").lines().filter_map(|line| line.split_once(' '));
    let rows = |digits: &str| {
        let digits = digits.chars().map(|digit| digit.to_digit(16).unwrap_or_default()).enumerate();
        let bits =
            digits.flat_map(|(at, digit)| (0..4).map(move |bit| (4 * at + bit, digit >> bit & 1 == 1)));
        bits.filter(|(_, is_row)| *is_row).map(|(number, _)| number).collect()
    };
    grids.map(|(name, digits)| (name, rows(digits))).collect()
});

/// The numbers of a block that one row of a grid contains, and their signs or the sign of the eighth.
struct Row {
    index: usize,
    signs: u8,
}

/// Returns the bytes of the block that keeps these numbers, or of one of its parts.
pub(super) fn in_codes(format: BlockFormat, block: &[u8], part: usize) -> Vec<u8> {
    match format {
        BlockFormat::Q1_0 => of_signs(block, part),
        BlockFormat::Tq1_0 | BlockFormat::Tq2_0 => of_thirds(format, block),
        _ => of_grid(format, block),
    }
}

/// A block of Q4_0 has 32 of the 128 signs.
fn of_signs(block: &[u8], part: usize) -> Vec<u8> {
    let bytes = &block[2 + 4 * part..];
    let codes: [u8; GROUP] = std::array::from_fn(|i| if bytes[i / 8] >> (i % 8) & 1 == 1 { 9 } else { 7 });
    block[..2].iter().copied().chain(paired(&codes)).collect()
}

/// The numbers from −1 to 2 are codes of Q3_K, where a code is a number plus 4.
fn of_thirds(format: BlockFormat, block: &[u8]) -> Vec<u8> {
    let third = |place: usize| match format {
        BlockFormat::Tq2_0 => block[place / 128 * 32 + place % 32] >> (place % 128 / 32 * 2) & 3,
        _ => {
            // A byte is a fraction of 256, and its digits of base 3 are five numbers.
            let (byte, digit) = match place {
                ..160 => (place % 32, place / 32),
                160..240 => (32 + place % 16, (place - 160) / 16),
                _ => (48 + place % 4, (place - 240) / 4),
            };
            let rest = (0..digit).fold(block[byte], |byte, _| byte.wrapping_mul(3));
            (u16::from(rest) * 3).to_be_bytes()[0]
        }
    };
    let codes = std::array::from_fn(|place| third(place) + 3);
    q3_k::block(&Stepped { step: half(&block[block.len() - 2..]), counts: [1; 2 * GROUPS], codes })
}

fn of_grid(format: BlockFormat, block: &[u8]) -> Vec<u8> {
    let name = if format == BlockFormat::Iq1M { BlockFormat::Iq1S.word() } else { format.word() };
    let (base, each) = match format {
        BlockFormat::Iq3Xxs | BlockFormat::Iq3S => (8, 4),
        _ => (3, 8),
    };
    let mut codes: Codes = [0; SUPER_BLOCK];
    for (place, codes) in codes.chunks_mut(each).enumerate() {
        let Row { index, signs } = row(format, block, place);
        let mut digits = GRIDS[name][index];
        for (at, code) in codes.iter_mut().enumerate() {
            let digit = (digits % base) as u8;
            digits /= base;
            *code = match format {
                // The integers of the table from the code 3 on are 9, 7 and 1: eight times −1, 0 or 1, and 1 or −1.
                BlockFormat::Iq1S | BlockFormat::Iq1M => {
                    [[11, 13, 4], [12, 5, 3]][usize::from(signs == 0)][usize::from(digit)]
                }
                _ => (base as u8 - 1 - digit) | (signs >> at & 1) << 3,
            };
        }
    }
    let counts = std::array::from_fn(|group| 2 * scale(format, block, group) + 1);
    let step = match format {
        BlockFormat::Iq1M => {
            let word = (0..4).fold(0, |word, part| word | u16::from(block[49 + 2 * part] >> 4) << (4 * part));
            f16::from_bits(word)
        }
        _ => half(block),
    };
    iq2::block(&Stepped { step, counts, codes })
}

/// The row of a grid at a place, counted in rows.
fn row(format: BlockFormat, block: &[u8], place: usize) -> Row {
    let byte = |at: usize| usize::from(block[at]);
    let bits = |at: usize, place: usize, width: usize| {
        byte(at + place * width / 8) >> (place * width % 8) & ((1 << width) - 1)
    };
    // The eighth sign makes the number of negative ones even.
    let even = |signs: usize| (signs & 127) as u8 | ((signs & 127).count_ones() as u8 & 1) << 7;
    let (index, signs) = match format {
        BlockFormat::Iq2Xxs => {
            let at = 2 + place / 4 * 8;
            (byte(at + place % 4), even(word(block, at + 4) >> (place % 4 * 7)))
        }
        BlockFormat::Iq2Xs => {
            let word = byte(2 + 2 * place) | byte(3 + 2 * place) << 8;
            (word & 511, even(word >> 9))
        }
        BlockFormat::Iq2S => (byte(2 + place) | bits(66, place, 2) << 8, block[34 + place]),
        BlockFormat::Iq3Xxs => {
            let signs = even(word(block, 66 + place / 8 * 4) >> (place / 2 % 4 * 7));
            (byte(2 + place), signs >> (place % 2 * 4))
        }
        BlockFormat::Iq3S => {
            (byte(2 + place) | bits(66, place, 1) << 8, block[74 + place / 2] >> (place % 2 * 4))
        }
        BlockFormat::Iq1M => {
            let four = bits(32, place, 4);
            (byte(place) | (four & 7) << 8, (four >> 3) as u8)
        }
        _ => {
            let at = 34 + place / 4 * 2;
            let word = byte(at) | byte(at + 1) << 8;
            (byte(2 + place) | (word >> (place % 4 * 3) & 7) << 8, (word >> 15) as u8)
        }
    };
    Row { index, signs }
}

/// The scale of 16 numbers, which stands for the next odd number after its double.
fn scale(format: BlockFormat, block: &[u8], group: usize) -> i8 {
    let four = |at: usize, place: usize| block[at + place / 2] >> (place % 2 * 4) & 15;
    let scale = match format {
        BlockFormat::Iq2Xxs => block[9 + group / 2 * 8] >> 4,
        BlockFormat::Iq2Xs => four(66, group),
        BlockFormat::Iq2S => four(74, group),
        BlockFormat::Iq3Xxs => block[69 + group / 2 * 4] >> 4,
        BlockFormat::Iq3S => four(106, group / 2),
        BlockFormat::Iq1M => {
            let at = 48 + group / 4 * 2;
            (u16::from_le_bytes([block[at], block[at + 1]]) >> (group % 4 * 3) & 7) as u8
        }
        _ => block[35 + group / 2 * 2] >> 4 & 7,
    };
    scale as i8
}

fn word(block: &[u8], at: usize) -> usize {
    block[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | usize::from(*byte))
}
