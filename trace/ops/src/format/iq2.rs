//! Codes of four bits in groups of 16, which a table makes integers, for the blocks of IQ1 and IQ2 in GGUF. The scale of
//! a group is a whole number of eighths of a step, and 16 groups share a step.

use half::f16;

use super::block_types::{half, nibbles, paired};
use super::{BlockFormat, BlockSteps, GROUP, GROUPS, Groups, Integers, SUPER_BLOCK, ScaleBytes, Scales, iq4_nl, q6_k};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Iq2Codes,
    exact: &[BlockFormat::Iq1S, BlockFormat::Iq1M, BlockFormat::Iq2Xxs, BlockFormat::Iq2Xs, BlockFormat::Iq2S],
    planes: &[4],
    integers: Integers::Table(&TABLE),
    scales: &[
        ScaleBytes { at: COUNTS, count: 2 * GROUPS, width: 1 },
        ScaleBytes { at: STEP, count: 1, width: 2 },
    ],
    read_scales: |block| {
        let counts = std::array::from_fn(|group| [block[COUNTS + group] as i8, 0]);
        Scales::InSteps(BlockSteps { steps: [half(&block[STEP..]), f16::ZERO], counts })
    },
    unit: 1.0 / 8.0,
    read: |block, codes| {
        let pairs = block.chunks(GROUP / 2);
        codes.chunks_mut(GROUP).zip(pairs).for_each(|(codes, pairs)| codes.copy_from_slice(&nibbles(pairs)));
    },
    write: |codes, block| {
        let pairs = codes.chunks(GROUP).flat_map(paired);
        block.iter_mut().zip(pairs).for_each(|(byte, pair)| *byte = pair);
    },
    quantize: |numbers, _| block(&q6_k::in_steps(&FORMAT, numbers, i8::MAX)),
    round: |units| iq4_nl::nearest(&TABLE, units),
    ..q6_k::FORMAT
};

/// The integers of the codes: the numbers of the grids of IQ2, and those of IQ1 in eighths.
const TABLE: [i8; 16] = [43, 25, 8, 9, 7, 1, 0, 0, -43, -25, -8, -9, -7, -1, 0, 0];

/// The bytes of the block at which the numbers of steps begin, and the step.
const COUNTS: usize = SUPER_BLOCK / 2;
const STEP: usize = COUNTS + 2 * GROUPS;

pub(super) fn block(q6_k::Stepped { step, counts, codes }: &q6_k::Stepped) -> Vec<u8> {
    let mut block = vec![0; FORMAT.block.bytes()];
    (FORMAT.write)(codes, &mut block);
    block[COUNTS..STEP].copy_from_slice(&counts.map(|count| count as u8));
    block[STEP..].copy_from_slice(&step.to_le_bytes());
    block
}
