//! Element conversion against the definition, on every 16-bit pattern and on the hard 32-bit ones.

use half::{bf16, f16};
use ops::ElementType::{self, *};
use tracewright_irpa::{ArchiveError, convert};

fn converted(src: &[u8], from: ElementType, to: ElementType) -> Vec<u8> {
    let mut dst = vec![0; to.bytes(src.len() * 8 / from.bits())];
    convert(src, from, to, &mut dst).expect("convertible");
    dst
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

#[test]
fn every_half_survives_the_way_through_f32() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (ty, value) in [
        (F16, (|bits| f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
        (Bf16, |bits| bf16::from_bits(bits).to_f32()),
    ] {
        let wide = converted(&all, ty, F32);
        for (bits, bytes) in wide.chunks_exact(4).enumerate() {
            let (found, expected) = (f32::from_le_bytes(bytes.try_into().unwrap()), value(bits as u16));
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{bits:#x}"
            );
        }
        for (bits, back) in halves(&converted(&wide, F32, ty)).enumerate() {
            let expected = value(bits as u16);
            assert!(back == bits as u16 || expected.is_nan() && value(back).is_nan(), "{bits:#x}");
        }
    }
}

/// The nearest neighbour by definition: the candidate with the smallest distance, the even one on a tie.
fn nearest(value: f32, to_f64: fn(u16) -> f64, infinity: u16) -> u16 {
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let value = f64::from(value).abs();
    // Candidates are ordered like their bits; above the largest finite one, infinity stands one step further.
    let (mut low, mut high) = (0, infinity);
    let size = |bits| {
        if bits == infinity { 2.0 * to_f64(infinity - 1) - to_f64(infinity - 2) } else { to_f64(bits) }
    };
    while high - low > 1 {
        let middle = (low + high) / 2;
        if size(middle) <= value { low = middle } else { high = middle }
    }
    let (below, above) = (value - size(low), size(high) - value);
    sign | if below < above || (below == above && low % 2 == 0) { low } else { high }
}

#[test]
fn s2_float_to_float_rounds_to_nearest_even() {
    let f16_value: fn(u16) -> f64 = |bits| f16::from_bits(bits).to_f64();
    let bf16_value: fn(u16) -> f64 = |bits| bf16::from_bits(bits).to_f64();
    let mut values: Vec<f32> = vec![f32::MAX, f32::MIN_POSITIVE, 65504.0, 65519.99, 65520.0, 1e-45];
    for step in 0..400_000u32 {
        // Spread over all finite patterns, with the low bits around the ties of both types.
        let bits = step.wrapping_mul(0x9e37_79b1) & 0x7fff_ffff;
        for tie in [bits, bits & !0x1fff | 0x1000, bits & !0xffff | 0x8000, (bits & !0xffff | 0x8000) + 1] {
            values.extend([f32::from_bits(tie), -f32::from_bits(tie)]);
        }
    }
    values.retain(|value| value.is_finite());
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for (ty, value_of, infinity) in [(F16, f16_value, 0x7c00), (Bf16, bf16_value, 0x7f80)] {
        for (value, found) in values.iter().zip(halves(&converted(&bytes, F32, ty))) {
            assert_eq!(found, nearest(*value, value_of, infinity), "{value:e} to {ty}");
        }
    }
    // Between the halves there is one rounding too.
    let some: Vec<u8> = (0..0x7c00u16).flat_map(u16::to_le_bytes).collect();
    for (bits, found) in halves(&converted(&some, F16, Bf16)).enumerate() {
        assert_eq!(found, nearest(f16::from_bits(bits as u16).to_f32(), bf16_value, 0x7f80));
    }
}

#[test]
fn nan_stays_nan_and_infinity_infinite() {
    // A NaN whose set bits are all cut off must not become an infinity.
    for bits in [0x7f80_0001u32, 0x7fc0_0000, 0xff80_0001, 0xffff_ffff, 0x7f80_8000] {
        let src = bits.to_le_bytes();
        assert!(halves(&converted(&src, F32, F16)).all(|h| f16::from_bits(h).is_nan()), "{bits:#x}");
        assert!(halves(&converted(&src, F32, Bf16)).all(|h| bf16::from_bits(h).is_nan()), "{bits:#x}");
    }
    let infinity = f32::NEG_INFINITY.to_le_bytes();
    assert_eq!(converted(&infinity, F32, F16), f16::NEG_INFINITY.to_le_bytes());
    assert_eq!(converted(&infinity, F32, Bf16), bf16::NEG_INFINITY.to_le_bytes());
}

#[test]
fn blocks_lengths_and_alignment_do_not_matter() {
    let bytes: Vec<u8> = (0..6 * 1024 + 7).map(|i| (i * 31) as u8).collect();
    for count in [0, 1, 2, 1023, 1024, 1025, 1535] {
        for shift in 0..4 {
            let src = &bytes[shift..shift + 4 * count];
            let one_by_one: Vec<u8> = src.chunks(4).flat_map(|one| converted(one, F32, Bf16)).collect();
            assert_eq!(converted(src, F32, Bf16), one_by_one);
        }
    }
}

#[test]
fn what_would_have_to_guess_is_an_error() {
    for (from, to) in [(I32, F32), (F32, I8), (I1, Bf16), (I8, I32), (I4, I8)] {
        let mut dst = vec![0; to.bytes(8)];
        let error = convert(&vec![0; from.bytes(8)], from, to, &mut dst).unwrap_err();
        assert!(matches!(error, ArchiveError::Conversion { from: f, to: t } if (f, t) == (from, to)));
        assert!(error.to_string().starts_with(&format!("cannot convert {from} to {to}: ")), "{error}");
    }
    assert!(matches!(convert(&[0; 5], F32, F16, &mut [0; 2]), Err(ArchiveError::ConversionLength { .. })));
    assert!(matches!(convert(&[0; 8], F32, F16, &mut [0; 6]), Err(ArchiveError::ConversionLength { .. })));
    assert_eq!(converted(&[1, 2, 3], I4, I4), [1, 2, 3]);
}
