//! Six-bit integers in groups of 16, as GGUF's Q6_K. A scale is −128 to 127 steps; 16 groups share a step.

use half::f16;

use super::block_types::half;
use super::search::all_finite;
use super::{BlockFormat, BlockSteps, Codes, GROUPS, Groups, Integers, SUPER_BLOCK, ScaleBytes, Scales};
use crate::ElementType;

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q6K,
    exact: &[],
    group: 16,
    planes: &[4, 2],
    integers: Integers::Minus(LEAST),
    columns: SUPER_BLOCK,
    scales: &[
        ScaleBytes { at: COUNTS, count: 2 * GROUPS, width: 1 },
        ScaleBytes { at: STEP, count: 1, width: 2 },
    ],
    read_scales: |block| {
        let counts = std::array::from_fn(|group| [block[COUNTS + group] as i8, 0]);
        Scales::InSteps(BlockSteps { steps: [half(&block[STEP..]), f16::ZERO], counts })
    },
    element: ElementType::F16,
    in_steps: true,
    unit: 1.0,
    minima: false,
    read: |block, codes| {
        for (place, code) in codes.iter_mut().enumerate() {
            let [(low, low_shift), (high, high_shift)] = bits(place);
            *code = block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4;
        }
    },
    write: |codes, block| {
        block[..COUNTS].fill(0);
        for (place, code) in codes.iter().enumerate() {
            let [(low, low_shift), (high, high_shift)] = bits(place);
            block[low] |= (code & 15) << low_shift;
            block[high] |= (code >> 4 & 3) << high_shift;
        }
    },
    quantize: |numbers, _| nearest(numbers),
    round: |units| (units.round().clamp(-f32::from(LEAST), f32::from(LEAST) - 1.0) + f32::from(LEAST)) as u8,
    refit: None,
    keep: |_| None,
    choice: None,
};

/// The number that the block adds to each integer.
const LEAST: u8 = 32;
/// The bytes of the block at which the numbers of steps begin, and the step.
const COUNTS: usize = SUPER_BLOCK / 2 + SUPER_BLOCK / 4;
const STEP: usize = COUNTS + 2 * GROUPS;

/// Byte and place of a code's lower four bits, and of its upper two. A half block has 64 and 32 such bytes.
fn bits(place: usize) -> [(usize, usize); 2] {
    let (side, run, at) = (place / 128, place % 128 / 32, place % 32);
    [(side * 64 + run % 2 * 32 + at, run / 2 * 4), (SUPER_BLOCK / 2 + side * 32 + at, run * 2)]
}

fn nearest(numbers: &[f32]) -> Vec<u8> {
    let Stepped { step, counts, codes } = in_steps(&FORMAT, numbers, i8::MAX);
    let mut block = vec![0; FORMAT.block.bytes()];
    block[COUNTS..STEP].copy_from_slice(&counts.map(|count| count as u8));
    block[STEP..].copy_from_slice(&step.to_le_bytes());
    (FORMAT.write)(&codes, &mut block);
    block
}

/// The codes of a block, the step, and the scale of each group as a number of steps.
pub(super) struct Stepped {
    pub step: f16,
    pub counts: [i8; 2 * GROUPS],
    pub codes: Codes,
}

/// Rounds the values of a block. The value of a group that is farthest from zero becomes the integer of the
/// code 0, and the scale has at most `most` steps. If a value is NaN or infinite, the step is NaN.
pub(super) fn in_steps(groups: &Groups, numbers: &[f32], most: i8) -> Stepped {
    let mut found = Stepped { step: f16::NAN, counts: [0; 2 * GROUPS], codes: [groups.zero(); SUPER_BLOCK] };
    if !all_finite(numbers) {
        return found;
    }
    let farthest =
        |group: &[f32]| group.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    let end = f32::from(groups.integer(0));
    let scales: Vec<f32> = numbers.chunks(groups.group).map(|group| farthest(group) / end).collect();
    found.step = f16::from_f32(farthest(&scales).abs() / f32::from(most) / groups.unit);
    let step = found.step.to_f32() * groups.unit;
    for (index, (group, scale)) in numbers.chunks(groups.group).zip(scales).enumerate() {
        let steps = if step > 0.0 { scale / step } else { 0.0 };
        let count = steps.round().clamp(-f32::from(most) - 1.0, f32::from(most));
        found.counts[index] = count as i8;
        let scale = step * count;
        if scale != 0.0 {
            let own = found.codes[index * groups.group..].iter_mut();
            own.zip(group).for_each(|(code, x)| *code = (groups.round)(x / scale));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::WeightFormat;
    use super::*;

    /// The definition in `ggml-quants.c`, number by number.
    fn decoded(block: &[u8]) -> Vec<f32> {
        let step = f16::from_le_bytes([block[208], block[209]]).to_f32();
        let mut numbers = vec![0.0; 256];
        for n in 0..2 {
            let (low, high, scales) = (&block[64 * n..], &block[128 + 32 * n..], &block[192 + 8 * n..]);
            for l in 0..32 {
                for k in 0..4 {
                    let four = low[l + k % 2 * 32] >> (k / 2 * 4) & 15;
                    let code = i32::from(four) | i32::from(high[l] >> (2 * k) & 3) << 4;
                    let scale = step * f32::from(scales[l / 16 + 2 * k] as i8);
                    numbers[128 * n + 32 * k + l] = scale * (code - 32) as f32;
                }
            }
        }
        numbers
    }

    fn random(seed: u64) -> impl FnMut() -> u8 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        }
    }

    #[test]
    fn random_blocks_are_decoded_by_the_definition() {
        let mut byte = random(3);
        for case in 0..4096 {
            let mut block: Vec<u8> = (0..210).map(|_| byte()).collect();
            // Zero, infinity and NaN as steps.
            if let Some(step) = [0u16, 0x8000, 0x7c00, 0xfc00, 0x7e00].get(case) {
                block[208..].copy_from_slice(&step.to_le_bytes());
            }
            let mut found = vec![0.0; 256];
            BlockFormat::Q6K.decode(&block, 0, &mut found);
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(found.iter().zip(&decoded(&block)).all(same), "{case}");
            // A panel keeps all bits.
            let quantized = BlockFormat::Q6K.quantized(&block, 0).unwrap();
            let mut packed = vec![0; WeightFormat::Q6K.packed(1, 256).bytes()];
            WeightFormat::Q6K.pack_groups(&[0.0; 256], 256, &mut packed, |_, _| Some(quantized.clone()));
            let mut unpacked = vec![0.0; 256];
            WeightFormat::Q6K.unpack_panel(&packed, 256, &mut unpacked);
            assert!(unpacked.iter().zip(&found).all(same), "{case}");
        }
    }

    /// A block of file size is a panel of file size.
    #[test]
    fn a_number_needs_as_many_bits_as_in_the_file() {
        assert_eq!(WeightFormat::Q6K.packed(16, 512).bytes(), 16 * 2 * 210);
        let numbers: Vec<f32> = (0..256).map(|i| ((i * 37 % 64) as f32 - 32.0) * 0.5).collect();
        let block = nearest(&numbers);
        let off = numbers.iter().zip(decoded(&block)).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(off <= 0.5, "{off}");
    }
}
