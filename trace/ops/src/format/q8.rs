//! Symmetric integers of eight bits in groups of 32, as GGUF's Q8_0.

use half::f16;

use super::groups::Group;
use super::search::{group_of, group_weights, in_units, largest, scale_of_bytes};
use super::{BlockFormat, GROUP, Groups, Integers, Offered, ScaleBytes, Scales};
use crate::ElementType;

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q8_0,
    exact: &[BlockFormat::Q5_0, BlockFormat::Q4_0, BlockFormat::Q1_0],
    group: GROUP,
    planes: &[8],
    integers: Integers::Minus(128),
    columns: 2 * GROUP,
    scales: &[ScaleBytes { at: 0, count: 1, width: 2 }],
    read_scales: |block| Scales::Each([f16::from_le_bytes([block[0], block[1]]).to_f32(), 0.0]),
    element: ElementType::F16,
    in_steps: false,
    unit: 1.0,
    minima: false,
    read: |block, codes| {
        codes.iter_mut().zip(&block[2..]).for_each(|(code, byte)| *code = byte.wrapping_add(128));
    },
    write: |codes, block| {
        block[2..].iter_mut().zip(codes).for_each(|(byte, code)| *byte = code.wrapping_sub(128));
    },
    quantize: |numbers, weights| bytes(&group(numbers, weights)),
    round: |units| (units.round().clamp(-127.0, 127.0) as i8 as u8).wrapping_add(128),
    refit: None,
    keep: |group| Some(bytes(group)),
    choice: Some(Offered::All),
};

fn bytes(Group { integers, scale }: &Group) -> Vec<u8> {
    scale.to_le_bytes().into_iter().chain(integers.iter().map(|&integer| integer as u8)).collect()
}

pub(super) fn group(numbers: &[f32], weights: &[f32]) -> Group {
    group_of(numbers, |numbers| {
        let largest = largest(numbers).abs();
        let scale = scale_of_bytes(numbers, &group_weights(weights), largest);
        in_units(numbers, scale.unwrap_or(largest / 127.0), [-127.0, 127.0])
    })
}
