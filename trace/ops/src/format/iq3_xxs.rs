//! Codes as in [`iq2`], with the integers of IQ3_XXS in GGUF.

use super::{BlockFormat, Groups, Integers, iq2, iq4_nl, q6_k};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Iq3XxsCodes,
    exact: &[BlockFormat::Iq3Xxs],
    integers: Integers::Table(&TABLE),
    unit: 1.0 / 4.0,
    quantize: |numbers, _| iq2::block(&q6_k::in_steps(&FORMAT, numbers, i8::MAX)),
    round: |units| iq4_nl::nearest(&TABLE, units),
    ..iq2::FORMAT
};

/// The integers of the codes: the numbers of the grid, and the negative ones.
const TABLE: [i8; 16] = [62, 52, 44, 36, 28, 20, 12, 4, -62, -52, -44, -36, -28, -20, -12, -4];
