//! Codes of four bits in groups of 32, which a table makes integers, as GGUF's IQ4_NL.

use half::f16;

use super::block_types::{nibbles, paired};
use super::{BlockFormat, Groups, Integers, q4, q6_k};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Iq4Nl,
    exact: &[],
    integers: Integers::Table(&TABLE),
    quantize: |numbers, _| {
        let mut block = vec![0; FORMAT.block.bytes()];
        // The group of a block is its only one, so its scale is a step.
        let q6_k::Stepped { step, counts, codes } = q6_k::in_steps(&FORMAT, numbers, 1);
        let scale = step.to_f32() * f32::from(counts[0]);
        block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        (FORMAT.write)(&codes, &mut block);
        block
    },
    round: |units| nearest(&TABLE, units),
    keep: |_| None,
    choice: None,
    read: |block, codes| codes[..32].copy_from_slice(&nibbles(&block[2..])),
    write: |codes, block| block[2..].iter_mut().zip(paired(codes)).for_each(|(byte, pair)| *byte = pair),
    ..q4::FORMAT
};

/// The integers of the codes (`kvalues_iq4nl` of ggml).
pub(super) const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Returns the code whose integer is nearest to a number.
pub(super) fn nearest(table: &[i8; 16], units: f32) -> u8 {
    let off = |code: &u8| (f32::from(table[usize::from(*code)]) - units).abs();
    (0..16).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or_default()
}
