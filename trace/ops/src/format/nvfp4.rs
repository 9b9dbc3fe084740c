//! Groups of 16 four-bit floats, each with a float of eight bits (e4m3) as its scale, as GGUF's NVFP4.

use half::f16;

use super::search::all_finite;
use super::{BlockFormat, Codes, DOUBLED_FLOATS, Groups, SUPER_BLOCK, ScaleBytes, Scales, mxfp4};
use crate::ElementType;

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Nvfp4,
    group: 16,
    scales: &[ScaleBytes { at: 0, count: SCALES, width: 1 }],
    read_scales: |block| {
        let scale = |group: usize| if group < SCALES { half_scale(block[group]) } else { 0.0 };
        Scales::All(std::array::from_fn(scale))
    },
    element: ElementType::F16,
    read: |block, codes| {
        for (codes, pairs) in codes.chunks_mut(16).zip(block[SCALES..].chunks(8)) {
            let [low, high] = [0, 4].map(|shift| pairs.iter().map(move |pair| pair >> shift & 15));
            codes.iter_mut().zip(low.chain(high)).for_each(|(code, four)| *code = four);
        }
    },
    write: |codes, block| {
        for (codes, pairs) in codes.chunks(16).zip(block[SCALES..].chunks_mut(8)) {
            pairs.iter_mut().enumerate().for_each(|(place, pair)| *pair = codes[place] | codes[place + 8] << 4);
        }
    },
    quantize: |numbers, _| nearest(numbers),
    choice: None,
    ..mxfp4::FORMAT
};

/// The scales of a block, which are its first bytes.
const SCALES: usize = 4;
/// The scale that is no number.
const NAN: u8 = 0x7f;

/// Half of a scale, by which the integers of [`DOUBLED_FLOATS`] are multiplied. As ggml does, the sign is ignored.
fn half_scale(scale: u8) -> f32 {
    // The same bits as f16 have an exponent that is less by 8.
    match scale & NAN {
        NAN => f32::NAN,
        bits => f16::from_bits(u16::from(bits) << 7).to_f32() * 128.0,
    }
}

/// Rounds at most 64 values. If a value is NaN, infinite or too large, all scales are NaN.
fn nearest(numbers: &[f32]) -> Vec<u8> {
    let mut block = vec![0; FORMAT.block.bytes()];
    let mut codes: Codes = [0; SUPER_BLOCK];
    for (group, numbers) in numbers.chunks(16).enumerate() {
        let largest = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let off = |scale: &u8| (half_scale(*scale) * f32::from(DOUBLED_FLOATS[7]) - largest).abs();
        block[group] = (0..NAN).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or_default();
        let scale = half_scale(block[group]);
        if scale > 0.0 {
            let own = codes[16 * group..].iter_mut();
            own.zip(numbers).for_each(|(code, x)| *code = (FORMAT.round)(x / scale));
        }
    }
    let most = half_scale(NAN - 1) * f32::from(DOUBLED_FLOATS[7]);
    if !all_finite(numbers) || numbers.iter().any(|x| x.abs() > most * 1.04) {
        block[..SCALES].fill(NAN);
    }
    (FORMAT.write)(&codes, &mut block);
    block
}
