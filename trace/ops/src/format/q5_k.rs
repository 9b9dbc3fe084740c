//! Integers of five bits in groups of 32 with scales and minima in steps, as GGUF's Q5_K: a block of
//! [`q4_k`] with fifth bits.

use super::q4_k::{self, SuperBlock};
use super::{BlockFormat, Groups};

pub(super) const FORMAT: Groups = Groups {
    block: BLOCK,
    planes: &[4, 1],
    write: |codes, block| {
        let mut all = SuperBlock::read(block);
        all.integers.as_flattened_mut().copy_from_slice(codes);
        block.copy_from_slice(&all.bytes(BLOCK));
    },
    quantize: |numbers, weights| SuperBlock::nearest(numbers, weights, MOST).bytes(BLOCK),
    round: |units| units.round().clamp(0.0, MOST) as u8,
    refit: None,
    choice: None,
    ..q4_k::FORMAT
};

const BLOCK: BlockFormat = BlockFormat::Q5K;
/// The largest unsigned 5-bit integer, as an f32.
const MOST: f32 = 31.0;
