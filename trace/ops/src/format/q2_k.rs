//! Integers of two bits in groups of 16, as GGUF's Q2_K. The scale and the minimum of a group are whole numbers
//! of from 0 to 15 steps, and 16 groups share both steps.

use half::f16;

use super::block_types::half;
use super::search::all_finite;
use super::{BlockFormat, BlockSteps, Codes, Groups, Integers, SUPER_BLOCK, ScaleBytes, Scales, q6_k};

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q2K,
    planes: &[2],
    integers: Integers::Minus(0),
    scales: &[ScaleBytes { at: 0, count: LOW, width: 1 }, ScaleBytes { at: STEPS, count: 2, width: 2 }],
    read_scales: |block| {
        let counts = std::array::from_fn(|group| [block[group] & 15, block[group] >> 4].map(|count| count as i8));
        Scales::InSteps(BlockSteps { steps: [half(&block[STEPS..]), half(&block[STEPS + 2..])], counts })
    },
    minima: true,
    read: |block, codes| {
        for (place, code) in codes.iter_mut().enumerate() {
            let (byte, shift) = bits(place);
            *code = block[byte] >> shift & 3;
        }
    },
    write: |codes, block| {
        block[LOW..STEPS].fill(0);
        for (place, code) in codes.iter().enumerate() {
            let (byte, shift) = bits(place);
            block[byte] |= (code & 3) << shift;
        }
    },
    quantize: |numbers, _| nearest(numbers),
    round: |units| units.round().clamp(0.0, MOST) as u8,
    ..q6_k::FORMAT
};

/// The bytes of the block at which the codes and the steps begin.
const LOW: usize = 16;
const STEPS: usize = LOW + SUPER_BLOCK / 4;
const MOST: f32 = 3.0;
const MOST_STEPS: f32 = 15.0;

/// Byte and place of a code.
fn bits(place: usize) -> (usize, usize) {
    (LOW + place / 128 * 32 + place % 32, place % 128 / 32 * 2)
}

/// Rounds at most 256 values, of which the least or 0 becomes 0, and the largest 3. If a value is NaN or
/// infinite, the steps are NaN.
fn nearest(numbers: &[f32]) -> Vec<u8> {
    let groups = numbers.chunks(FORMAT.group);
    let fits: Vec<[f32; 2]> = groups
        .clone()
        .map(|group| {
            let [least, most] = [f32::min, f32::max].map(|of| group.iter().copied().fold(0.0, of));
            [(most - least) / MOST, -least]
        })
        .collect();
    let largest = |which: usize| fits.iter().fold(0.0f32, |most, fit| most.max(fit[which]));
    let finite = all_finite(numbers);
    let steps = [0, 1].map(|which| if finite { f16::from_f32(largest(which) / MOST_STEPS) } else { f16::NAN });
    let mut block = vec![0; FORMAT.block.bytes()];
    let mut codes: Codes = [0; SUPER_BLOCK];
    for (index, (group, fit)) in groups.zip(fits).enumerate() {
        let steps = steps.map(f16::to_f32);
        let counts = [0, 1].map(|which| {
            let count = if steps[which] > 0.0 { fit[which] / steps[which] } else { 0.0 };
            count.round().min(MOST_STEPS)
        });
        block[index] = counts[0] as u8 | (counts[1] as u8) << 4;
        let [scale, minimum] = [0, 1].map(|which| steps[which] * counts[which]);
        if scale > 0.0 {
            let own = codes[index * FORMAT.group..].iter_mut();
            own.zip(group).for_each(|(code, x)| *code = (FORMAT.round)((x + minimum) / scale));
        }
    }
    block[STEPS..].copy_from_slice(steps.map(f16::to_le_bytes).as_flattened());
    (FORMAT.write)(&codes, &mut block);
    block
}
