//! Codes of four bits in groups of 32, which the table of [`iq4_nl`] makes integers, as GGUF's IQ4_XS. The scale of
//! a group is a whole number of from −32 to 31 steps, and eight groups share a step.

use half::f16;

use super::block_types::{half, nibbles, paired};
use super::{
    BlockFormat, BlockSteps, GROUP, GROUPS, Groups, Integers, SUPER_BLOCK, ScaleBytes, Scales, iq4_nl, q6_k,
};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Iq4Xs,
    group: GROUP,
    planes: &[4],
    integers: Integers::Table(&iq4_nl::TABLE),
    columns: SUPER_BLOCK,
    scales: &[ScaleBytes { at: 0, count: 2, width: 4 }],
    read_scales: |block| {
        let mut counts = [[0; 2]; 2 * GROUPS];
        for (group, count) in counts.iter_mut().enumerate().take(GROUPS) {
            let [(low, low_shift), (high, high_shift)] = count_bits(group);
            count[0] =
                (block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4) as i8 - LEAST_COUNT;
        }
        Scales::InSteps(BlockSteps { steps: [half(block), f16::ZERO], counts })
    },
    read: |block, codes| {
        let pairs = block[CODES..].chunks(GROUP / 2);
        codes.chunks_mut(GROUP).zip(pairs).for_each(|(codes, pairs)| codes.copy_from_slice(&nibbles(pairs)));
    },
    write: |codes, block| {
        let pairs = codes.chunks(GROUP).flat_map(paired);
        block[CODES..].iter_mut().zip(pairs).for_each(|(byte, pair)| *byte = pair);
    },
    quantize: |numbers, _| {
        let q6_k::Stepped { step, counts, codes } = q6_k::in_steps(&FORMAT, numbers, LEAST_COUNT - 1);
        let mut block = vec![0; FORMAT.block.bytes()];
        for (group, count) in counts.into_iter().enumerate().take(GROUPS) {
            let [(low, low_shift), (high, high_shift)] = count_bits(group);
            let count = (count + LEAST_COUNT) as u8;
            block[low] |= (count & 15) << low_shift;
            block[high] |= (count >> 4) << high_shift;
        }
        block[..2].copy_from_slice(&step.to_le_bytes());
        (FORMAT.write)(&codes, &mut block);
        block
    },
    round: |units| iq4_nl::nearest(&iq4_nl::TABLE, units),
    ..q6_k::FORMAT
};

/// The bytes of the block at which the lower bits of the numbers of steps begin, and the codes.
const LOW: usize = 4;
const CODES: usize = LOW + GROUPS / 2;
/// The number that the block adds to each number of steps.
const LEAST_COUNT: i8 = 32;

/// Byte and place of the lower four bits of a group's number of steps, and of the upper two.
fn count_bits(group: usize) -> [(usize, usize); 2] {
    [(LOW + group / 2, group % 2 * 4), (2 + group / 4, group % 4 * 2)]
}
