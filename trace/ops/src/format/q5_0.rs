//! Symmetric integers of five bits in groups of 32, as GGUF's Q5_0.

use super::block_types::{fifth_bits, put_fifth_bits};
use super::groups::Group;
use super::search::{group_of, in_units, largest};
use super::{BlockFormat, Groups, Integers, q4};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q5_0,
    exact: &[],
    planes: &[4, 1],
    integers: Integers::Minus(LEAST),
    read: |block, codes| fifth_bits(&block[2..], codes),
    write: |codes, block| put_fifth_bits(codes, &mut block[2..]),
    quantize: |numbers, _| nearest(numbers),
    round: |units| (units.round().clamp(RANGE[0], RANGE[1]) - RANGE[0]) as u8,
    keep: |_| None,
    choice: None,
    ..q4::FORMAT
};

/// The number that the block adds to each integer.
const LEAST: u8 = 16;
const RANGE: [f32; 2] = [-16.0, 15.0];

/// Rounds at most 32 values, of which the value that is farthest from zero becomes −16.
fn nearest(numbers: &[f32]) -> Vec<u8> {
    let Group { integers, scale } = group_of(numbers, |numbers| {
        in_units(numbers, half::f16::from_f32(largest(numbers) / RANGE[0]).to_f32(), RANGE)
    });
    let mut block = vec![0; FORMAT.block.bytes()];
    block[..2].copy_from_slice(&scale.to_le_bytes());
    put_fifth_bits(&integers.map(|integer| (integer as u8).wrapping_add(LEAST)), &mut block[2..]);
    block
}
