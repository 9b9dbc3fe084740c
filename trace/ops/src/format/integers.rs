//! Integers of few bits with a scale for each group, and perhaps a zero point, as quantized Hugging Face folders
//! have them. A block has one group: an f16 scale, a byte with the zero point, and the codes as a stream of bits.
//! A number is (code − zero point) × scale, which f32 represents exactly.

use half::f16;

use super::block_types::half;
use super::search::all_finite;
use super::{BlockFormat, Codes, GROUP, Groups, Integers, SUPER_BLOCK, ScaleBytes, Scales};
use crate::ElementType;

/// The scale alone, and the scale with a zero point of which a panel keeps four bits.
pub(super) const SCALE: &[ScaleBytes] = &[ScaleBytes { at: 0, count: 1, width: 2 }];
pub(super) const SCALE_AND_ZERO: &[ScaleBytes] =
    &[ScaleBytes { at: 0, count: 1, width: 2 }, ScaleBytes { at: 2, count: 1, width: ScaleBytes::FOUR_BITS }];

/// The facts of integers without zero points.
pub(super) const fn symmetric<const BITS: usize, const SPAN: usize>(
    block: BlockFormat,
    planes: &'static [usize],
) -> Groups {
    Groups {
        block,
        exact: &[],
        group: GROUP,
        planes,
        integers: Integers::Minus(1 << (BITS - 1)),
        columns: 4 * GROUP,
        scales: SCALE,
        read_scales: |block| Scales::Each([half(block).to_f32(), 0.0]),
        element: ElementType::F16,
        in_steps: false,
        unit: 1.0,
        minima: false,
        read: |block, codes| read::<BITS>(&block[2..], codes),
        write: |codes, block| write::<BITS>(codes, &mut block[2..]),
        quantize: |numbers, _| {
            let most = f32::from((1u8 << (BITS - 1)) - 1);
            let largest = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let scale = if all_finite(numbers) { f16::from_f32(largest / most) } else { f16::NAN };
            rounded::<BITS, SPAN>(scale, None, numbers)
        },
        round: |units| nearest(units, f32::from(1u8 << (BITS - 1)), BITS),
        refit: None,
        keep: |_| None,
        choice: None,
    }
}

/// The facts of integers with zero points.
pub(super) const fn shifted<const BITS: usize, const SPAN: usize>(
    block: BlockFormat,
    planes: &'static [usize],
) -> Groups {
    Groups {
        integers: Integers::Minus(0),
        scales: SCALE_AND_ZERO,
        read_scales: |block| {
            let scale = half(block).to_f32();
            Scales::Each([scale, scale * f32::from(block[2])])
        },
        // The minimum is the product of the scale and the zero point, which f16 cannot represent.
        element: ElementType::F32,
        minima: true,
        read: |block, codes| read::<BITS>(&block[3..], codes),
        write: |codes, block| write::<BITS>(codes, &mut block[3..]),
        quantize: |numbers, _| {
            let [least, most] = [f32::min, f32::max].map(|of| numbers.iter().copied().fold(0.0, of));
            let steps = f32::from(u8::MAX >> (8 - BITS));
            let scale = if all_finite(numbers) { f16::from_f32((most - least) / steps) } else { f16::NAN };
            let zero =
                if scale > f16::ZERO { (-least / scale.to_f32()).round().clamp(0.0, steps) } else { 0.0 };
            rounded::<BITS, SPAN>(scale, Some(zero as u8), numbers)
        },
        round: |units| nearest(units, 0.0, BITS),
        ..symmetric::<BITS, SPAN>(block, planes)
    }
}

fn nearest(units: f32, zero: f32, bits: usize) -> u8 {
    (units.round() + zero).clamp(0.0, f32::from(u8::MAX >> (8 - bits))) as u8
}

fn rounded<const BITS: usize, const SPAN: usize>(scale: f16, zero: Option<u8>, numbers: &[f32]) -> Vec<u8> {
    let shift = zero.unwrap_or(1 << (BITS - 1));
    let mut codes: Codes = [shift; SUPER_BLOCK];
    if scale.is_finite() && scale > f16::ZERO {
        let units = numbers.iter().map(|x| x / scale.to_f32());
        codes.iter_mut().zip(units).for_each(|(code, units)| *code = nearest(units, f32::from(shift), BITS));
    }
    let mut bytes: Vec<u8> = scale.to_le_bytes().into_iter().chain(zero).collect();
    let header = bytes.len();
    bytes.resize(header + SPAN * BITS / 8, 0);
    write::<BITS>(&codes, &mut bytes[header..]);
    bytes
}

fn read<const BITS: usize>(bytes: &[u8], codes: &mut Codes) {
    for (codes, bytes) in codes.chunks_exact_mut(8).zip(bytes.chunks_exact(BITS)) {
        let all = bytes.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        for (place, code) in codes.iter_mut().enumerate() {
            *code = (all >> (place * BITS)) as u8 & u8::MAX >> (8 - BITS);
        }
    }
}

fn write<const BITS: usize>(codes: &Codes, bytes: &mut [u8]) {
    for (codes, bytes) in codes.chunks_exact(8).zip(bytes.chunks_exact_mut(BITS)) {
        let all = codes.iter().rev().fold(0u64, |all, code| all << BITS | u64::from(*code));
        bytes.copy_from_slice(&all.to_le_bytes()[..BITS]);
    }
}
