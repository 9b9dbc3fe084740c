//! Integers of three bits in groups of 16, as GGUF's Q3_K. The scale of a group is a whole number of
//! from −32 to 31 steps, and 16 groups share a step.

use half::f16;

use super::block_types::half;
use super::{BlockFormat, BlockSteps, GROUP, GROUPS, Groups, Integers, SUPER_BLOCK, ScaleBytes, Scales, q6_k};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q3K,
    exact: &[BlockFormat::Tq1_0, BlockFormat::Tq2_0],
    planes: &[2, 1],
    integers: Integers::Minus(4),
    scales: &[ScaleBytes { at: COUNTS, count: 3, width: 4 }, ScaleBytes { at: STEP, count: 1, width: 2 }],
    read_scales: |block| {
        let count = |group: usize| {
            let [(low, low_shift), (high, high_shift)] = count_bits(group);
            [(block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4) as i8 - LEAST_COUNT, 0]
        };
        Scales::InSteps(BlockSteps { steps: [half(&block[STEP..]), f16::ZERO], counts: std::array::from_fn(count) })
    },
    read: |block, codes| {
        for (place, code) in codes.iter_mut().enumerate() {
            let [(low, low_shift), (high, high_shift)] = bits(place);
            *code = block[low] >> low_shift & 3 | (block[high] >> high_shift & 1) << 2;
        }
    },
    write: |codes, block| {
        block[..COUNTS].fill(0);
        for (place, code) in codes.iter().enumerate() {
            let [(low, low_shift), (high, high_shift)] = bits(place);
            block[low] |= (code & 3) << low_shift;
            block[high] |= (code >> 2 & 1) << high_shift;
        }
    },
    quantize: |numbers, _| block(&q6_k::in_steps(&FORMAT, numbers, LEAST_COUNT - 1)),
    round: |units| (units.round().clamp(-4.0, 3.0) + 4.0) as u8,
    ..q6_k::FORMAT
};

/// The bytes of the block at which the lower bits, the numbers of steps and the step begin.
const LOW: usize = GROUP;
const COUNTS: usize = LOW + SUPER_BLOCK / 4;
const STEP: usize = COUNTS + 12;
/// The number that the block adds to each number of steps.
const LEAST_COUNT: i8 = 32;

/// Byte and place of a code's lower two bits, and of its upper one.
fn bits(place: usize) -> [(usize, usize); 2] {
    let (side, run, at) = (place / 128, place % 128 / 32, place % 32);
    [(LOW + side * 32 + at, run * 2), (at, side * 4 + run)]
}

/// Byte and place of the lower four bits of a group's number of steps, and of the upper two.
fn count_bits(group: usize) -> [(usize, usize); 2] {
    [(COUNTS + group % GROUPS, group / GROUPS * 4), (COUNTS + GROUPS + group % 4, group / 4 * 2)]
}

pub(super) fn block(q6_k::Stepped { step, counts, codes }: &q6_k::Stepped) -> Vec<u8> {
    let mut block = vec![0; FORMAT.block.bytes()];
    (FORMAT.write)(codes, &mut block);
    for (group, count) in counts.iter().enumerate() {
        let [(low, low_shift), (high, high_shift)] = count_bits(group);
        let count = (count + LEAST_COUNT) as u8;
        block[low] |= (count & 15) << low_shift;
        block[high] |= (count >> 4) << high_shift;
    }
    block[STEP..].copy_from_slice(&step.to_le_bytes());
    block
}
