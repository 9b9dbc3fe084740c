//! Converts the bytes of tensors between element types.

use crate::ArchiveError;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use ops::ElementType;

/// Elements in an intermediate buffer, which fits into the first-level cache.
const BLOCK: usize = 1024;

/// Rounds to nearest even; a NaN stays a NaN. Equal types copy the bytes, even of unsupported ones. The
/// slices may be unaligned.
pub fn convert(src: &[u8], from: ElementType, to: ElementType, dst: &mut [u8]) -> Result<(), ArchiveError> {
    if from != to && !(from.is_float() && to.is_float()) {
        return Err(ArchiveError::Conversion { from, to });
    }
    let count = src.len() * 8 / from.bits();
    if from.bytes(count) != src.len() || to.bytes(count) != dst.len() {
        return Err(ArchiveError::ConversionLength {
            from,
            to,
            source_bytes: src.len(),
            target_bytes: dst.len(),
        });
    }
    if from == to {
        dst.copy_from_slice(src);
        return Ok(());
    }
    // f32 can represent every value of the narrow types, so a conversion through f32 rounds only once.
    let mut block = [0f32; BLOCK];
    for (src, dst) in src.chunks(from.bytes(BLOCK)).zip(dst.chunks_mut(to.bytes(BLOCK))) {
        let block = &mut block[..src.len() * 8 / from.bits()];
        read(src, from, block);
        write(block, to, dst);
    }
    Ok(())
}

pub(crate) fn is_finite(bytes: &[u8], element: ElementType) -> bool {
    // A NaN and an infinity have an exponent of ones.
    let halves = |exponent: u16| {
        let halves = bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half));
        halves.fold(true, |all, half| all & (half & exponent != exponent))
    };
    match element {
        ElementType::F16 => halves(0x7c00),
        ElementType::Bf16 => halves(0x7f80),
        ElementType::F32 => {
            let words = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word));
            words.fold(true, |all, word| all & word.is_finite())
        }
        _ => true,
    }
}

fn read(src: &[u8], from: ElementType, block: &mut [f32]) {
    match from {
        ElementType::Bf16 => {
            for (value, bytes) in block.iter_mut().zip(src.as_chunks().0) {
                *value = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        ElementType::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            for (half, bytes) in halves.iter_mut().zip(src.as_chunks().0) {
                *half = f16::from_le_bytes(*bytes);
            }
            halves[..block.len()].convert_to_f32_slice(block);
        }
        _ => {
            for (value, bytes) in block.iter_mut().zip(src.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
}

fn write(block: &[f32], to: ElementType, dst: &mut [u8]) {
    match to {
        ElementType::Bf16 => {
            for (value, bytes) in block.iter().zip(dst.as_chunks_mut().0) {
                *bytes = bf16::from_f32(*value).to_le_bytes();
            }
        }
        ElementType::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            halves[..block.len()].convert_from_f32_slice(block);
            for (half, bytes) in halves.iter().zip(dst.as_chunks_mut().0) {
                *bytes = half.to_le_bytes();
            }
        }
        _ => {
            for (value, bytes) in block.iter().zip(dst.as_chunks_mut().0) {
                *bytes = value.to_le_bytes();
            }
        }
    }
}
