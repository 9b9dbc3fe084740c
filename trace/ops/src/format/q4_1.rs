//! Integers of four bits in groups of 32, with a scale and a least number for each group, as GGUF's Q4_1.

use half::f16;

use super::block_types::{half, nibbles, paired};
use super::search::all_finite;
use super::{BlockFormat, Codes, Groups, Integers, SUPER_BLOCK, ScaleBytes, Scales, q4};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q4_1,
    exact: &[],
    integers: Integers::Minus(0),
    scales: &[ScaleBytes { at: 0, count: 1, width: 2 }, ScaleBytes { at: 2, count: 1, width: 2 }],
    read_scales: |block| Scales::Each([half(block).to_f32(), -half(&block[2..]).to_f32()]),
    minima: true,
    read: |block, codes| codes[..32].copy_from_slice(&nibbles(&block[4..])),
    write: |codes, block| block[4..].iter_mut().zip(paired(codes)).for_each(|(byte, pair)| *byte = pair),
    quantize: |numbers, _| nearest(&FORMAT, numbers),
    round: |units| units.round().clamp(0.0, 15.0) as u8,
    keep: |_| None,
    choice: None,
    ..q4::FORMAT
};

/// Rounds at most 32 values: the least becomes 0, and the largest the largest code. If a value is NaN or
/// infinite, the scale is NaN.
pub(super) fn nearest(groups: &Groups, numbers: &[f32]) -> Vec<u8> {
    let [least, most] = [f32::min, f32::max].map(|of| numbers.iter().copied().reduce(of).unwrap_or_default());
    let steps = ((1u16 << groups.bits()) - 1) as f32;
    let scale = if all_finite(numbers) { (most - least) / steps } else { f32::NAN };
    let halves = [scale, least].map(f16::from_f32);
    let [scale, least] = halves.map(f16::to_f32);
    let mut codes: Codes = [0; SUPER_BLOCK];
    if scale > 0.0 {
        codes.iter_mut().zip(numbers).for_each(|(code, x)| *code = (groups.round)((x - least) / scale));
    }
    let mut block = vec![0; groups.block.bytes()];
    block[..4].copy_from_slice(halves.map(f16::to_le_bytes).as_flattened());
    (groups.write)(&codes, &mut block);
    block
}
