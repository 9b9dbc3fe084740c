//! Integers of five bits in groups of 32, with a scale and a least number for each group, as GGUF's Q5_1.

use super::block_types::{fifth_bits, put_fifth_bits};
use super::{BlockFormat, Groups, q4_1};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q5_1,
    planes: &[4, 1],
    read: |block, codes| fifth_bits(&block[4..], codes),
    write: |codes, block| put_fifth_bits(codes, &mut block[4..]),
    quantize: |numbers, _| q4_1::nearest(&FORMAT, numbers),
    round: |units| units.round().clamp(0.0, 31.0) as u8,
    ..q4_1::FORMAT
};
