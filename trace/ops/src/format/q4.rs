//! Symmetric integers of four bits in groups of 32, as GGUF's Q4_0.

use half::f16;

use super::block_types::{nibbles, paired};
use super::groups::Group;
use super::search::{self, group_of, group_weights, in_units, largest};
use super::{BlockFormat, GROUP, Groups, Integers, Offered, ScaleBytes, Scales};
use crate::ElementType;

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q4_0,
    exact: &[BlockFormat::Q1_0],
    group: GROUP,
    planes: &[4],
    integers: Integers::Minus(8),
    columns: 2 * GROUP,
    scales: &[ScaleBytes { at: 0, count: 1, width: 2 }],
    read_scales: |block| Scales::Each([f16::from_le_bytes([block[0], block[1]]).to_f32(), 0.0]),
    element: ElementType::F16,
    in_steps: false,
    unit: 1.0,
    minima: false,
    read: |block, codes| codes[..GROUP].copy_from_slice(&nibbles(&block[2..])),
    write: |codes, block| block[2..].iter_mut().zip(paired(codes)).for_each(|(byte, pair)| *byte = pair),
    quantize: |numbers, weights| bytes(&group(numbers, weights)),
    round: |units| (units.round().clamp(-8.0, 7.0) + 8.0) as u8,
    refit: None,
    keep: |group| group.integers.iter().all(|x| (-8..8).contains(x)).then(|| bytes(group)),
    choice: Some(Offered::Mixed),
};

fn bytes(Group { integers, scale }: &Group) -> Vec<u8> {
    let codes = integers.map(|integer| (integer + 8) as u8);
    scale.to_le_bytes().into_iter().chain(paired(&codes)).collect()
}

pub(super) fn group(numbers: &[f32], weights: &[f32]) -> Group {
    group_of(numbers, |numbers| {
        let largest = largest(numbers);
        if largest == 0.0 {
            return in_units(numbers, 0.0, [-8.0, 7.0]);
        }
        let scale = search::scale(numbers, &group_weights(weights), largest).to_f32();
        // If the scale is 0 or infinite as f16, the code computes the integers with the scale as
        // f32.
        let is_one = scale.is_finite() && scale != 0.0;
        in_units(numbers, if is_one { scale } else { largest / -8.0 }, [-8.0, 7.0])
    })
}
