//! Tests of the storage formats, which compare each format with its definition.

use half::{bf16, f16};

use super::groups::Group;
use super::*;

fn numbers(count: usize) -> Vec<f32> {
    (0..count as u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0) - 1.0).collect()
}

#[test]
fn panels_come_back_within_half_a_unit_of_their_groups() {
    for &format in WeightFormat::ALL {
        for (outputs, inputs) in [(16, 64), (16, 67), (3, 33), (9, 1), (16, 130)] {
            let rows = numbers(outputs * inputs);
            let mut packed = vec![0; format.packed(outputs, inputs).bytes()];
            format.pack_panel(&rows, inputs, &mut packed);
            let mut found = vec![f32::NAN; rows.len()];
            format.unpack_panel(&packed, inputs, &mut found);
            for (row, (expected, found)) in rows.chunks(inputs).zip(found.chunks(inputs)).enumerate() {
                for (expected, found) in expected.chunks(GROUP).zip(found.chunks(GROUP)) {
                    let largest = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                    let bound = match format {
                        WeightFormat::F32 => 0.0,
                        WeightFormat::F16 => largest / 2048.0,
                        WeightFormat::Bf16 => largest / 256.0,
                        // The bound is half a unit, plus the rounding error of a scale with
                        // eleven bits.
                        WeightFormat::Q8 => largest * (0.5 / 127.0 + 1.0 / 2048.0),
                        // The bound is a whole unit, because the integers on one side of zero
                        // end at 7 instead of 8.
                        WeightFormat::Q4 => largest * (1.0 / 8.0 + 1.0 / 2048.0),
                        // The bound is half a unit of twice the largest number, plus the
                        // rounding errors of the scale and the minimum.
                        WeightFormat::Q4K => largest * 0.13,
                        // The largest floats are 4 and 6. With the larger of two scales, the largest
                        // value is from 2 to 4, and the smaller scale has a smaller sum of errors.
                        WeightFormat::Mxfp4 => largest * 0.26,
                        // The bound is a whole unit, and half a step of the scale.
                        WeightFormat::Q6K => largest * 0.05,
                        // The bound is a whole unit, because the integers on one side of zero end at 15.
                        WeightFormat::Q5_0 => largest * (1.0 / 16.0 + 1.0 / 1024.0),
                        WeightFormat::Q5K => largest * 0.08,
                        // The bound is half a unit of twice the largest number.
                        WeightFormat::Q4_1 => largest * 0.07,
                        WeightFormat::Q5_1 => largest * 0.035,
                        // The bound is a whole unit, and half a step of the scale.
                        WeightFormat::Q3K => largest * 0.4,
                        WeightFormat::Q2K => largest * 0.6,
                        // The largest integer of the table is 113, and its integers are up to 24 apart.
                        WeightFormat::Iq4Nl => largest * 0.13,
                        WeightFormat::Iq4Xs => largest * 0.2,
                        // The bound is half of the largest gap of the table, or beyond its shorter side.
                        WeightFormat::Iq2 | WeightFormat::Nvfp4 => largest * 0.26,
                        WeightFormat::Iq3Xxs | WeightFormat::Iq3S => largest * 0.15,
                        // The bounds are half a unit and one unit for numbers from -1 to 1.
                        WeightFormat::Int4G128 => 0.072,
                        WeightFormat::Uint4G128 | WeightFormat::Uint4G32 => 0.134,
                        WeightFormat::Int8G128 => 0.005,
                        WeightFormat::Uint2G128 => 0.67,
                        WeightFormat::Uint3G128 => 0.29,
                        // The bound is half a step of three bits, with the largest number of the panel.
                        WeightFormat::F8 | WeightFormat::F8Rows => 1.0 / 16.0,
                        // The largest numbers are 0.3 and 0.34 apart.
                        WeightFormat::Nf4 | WeightFormat::Fp4 => 0.18,
                        WeightFormat::Nf4Nested | WeightFormat::Fp4Nested => 0.19,
                    };
                    for (x, y) in expected.iter().zip(found) {
                        assert!(
                            (x - y).abs() <= bound,
                            "{format:?} [{outputs},{inputs}] row {row}: {y} for {x}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn rows_in_groups_come_back_as_panels_do() {
    for format in [WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Mxfp4, WeightFormat::Q5_0] {
        for inputs in [1, 16, 33, 64, 67] {
            let row = numbers(inputs);
            let mut panel = vec![0; format.packed(1, inputs).bytes()];
            format.pack_panel(&row, inputs, &mut panel);
            let mut expected = vec![0.0; inputs];
            format.unpack_panel(&panel, inputs, &mut expected);
            let [integers, scales] = [GroupPart::Integers, GroupPart::Scales].map(|part| {
                let mut bytes = vec![0; format.grouped(part, 1, inputs).map_or(0, |ty| ty.bytes())];
                format.group_row(part, &row, &mut bytes, |_| None);
                bytes
            });
            let groups = integers.chunks(4 * format.groups().unwrap().bits()).zip(scales.chunks(2));
            let found: Vec<f32> = groups
                .flat_map(|(bytes, scale)| {
                    let scale = [scale[0], scale[1]];
                    let scale = match format {
                        WeightFormat::Mxfp4 => bf16::from_le_bytes(scale).to_f32(),
                        _ => f16::from_le_bytes(scale).to_f32(),
                    };
                    let bytes: Vec<i8> = bytes.iter().map(|&byte| byte as i8).collect();
                    format.integers(&bytes).into_iter().map(move |integer| f32::from(integer) * scale)
                })
                .collect();
            assert_eq!(found[..inputs], expected, "{format:?} {inputs}");
            assert!(found[inputs..].iter().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn activations_lose_at_most_half_a_byte() {
    for x in [numbers(100), vec![0.0; 33], vec![1e30, -1e-30, 7.0]] {
        let mut found = x.clone();
        in_integers(&mut found, ActivationBits::Eight);
        for (x, found) in x.chunks(GROUP).zip(found.chunks(GROUP)) {
            let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            assert!(x.iter().zip(found).all(|(a, b)| (a - b).abs() <= largest * 0.5001 / 127.0));
        }
    }
    let mut rounded = numbers(32);
    in_integers(&mut rounded, ActivationBits::Eight);
    assert_ne!(rounded, numbers(32));
    for special in [f32::NAN, f32::INFINITY] {
        let mut x = [1.0, special, 2.0];
        in_integers(&mut x, ActivationBits::Eight);
        assert!(x.iter().all(|x| !x.is_finite()), "{x:?}");
    }
}

/// A number that is not finite, at any place, makes the scales of its group and no other scale NaN or
/// infinite. So every number of the group is NaN or infinite after quantization, and never 0.
#[test]
fn numbers_that_are_not_finite_stay_so() {
    for format in WeightFormat::grouped_formats() {
        let together = format.together().unwrap();
        for (inputs, rows) in [(together, 1), (2 * together + 7, 3)] {
            let sound = numbers(rows * inputs);
            let pack = |rows: &[f32]| {
                let mut packed = vec![0; format.packed(PANEL, inputs).bytes()];
                let finite = format.pack_groups(rows, inputs, &mut packed, |_, _| None);
                let mut found = vec![0.0; rows.len()];
                format.unpack_panel(&packed, inputs, &mut found);
                (finite, found)
            };
            let (finite, expected) = pack(&sound);
            assert!(finite && expected.iter().all(|x| x.is_finite()), "{format:?}");
            for place in (0..sound.len()).step_by(5) {
                for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
                    let mut rows = sound.clone();
                    rows[place] = special;
                    let (finite, found) = pack(&rows);
                    assert!(!finite, "{format:?} {place}");
                    let run = |i: usize| (i / inputs, i % inputs / together);
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        if run(i) == run(place) {
                            assert!(!found.is_finite(), "{format:?} {place}: {found} at {i}")
                        } else {
                            assert_eq!(found, expected, "{format:?} {place}: at {i}")
                        }
                    }
                    for &part in format.parts() {
                        let row = &rows[place / inputs * inputs..][..inputs];
                        let mut bytes = vec![0; format.grouped(part, 1, inputs).unwrap().bytes()];
                        assert!(!format.group_row(part, row, &mut bytes, |_| None), "{format:?} {part:?}");
                    }
                }
            }
        }
    }
}

fn is_finite(format: WeightFormat, numbers: &[f32]) -> bool {
    format.groups().unwrap().is_finite(&format.quantize(numbers).bytes)
}

/// Numbers whose scale exceeds the largest f16 are finite, but their quantized values are not.
#[test]
fn numbers_beyond_the_scales_are_not_finite() {
    for (format, most) in [(WeightFormat::Q8, 8.0e6), (WeightFormat::Q4, 4.5e5), (WeightFormat::Q4K, 4.0e6)] {
        assert!(is_finite(format, &[1.0, -most]), "{format:?}");
        assert!(!is_finite(format, &[1.0, -most * 1e3]), "{format:?}");
    }
    for most in [f32::MAX, -1e38, f32::MIN_POSITIVE, 1e-45] {
        assert!(is_finite(WeightFormat::Mxfp4, &[1.0, most]));
    }
}

#[test]
fn the_largest_of_four_bits_is_minus_eight() {
    let Group { integers, scale } = q4::group(&[0.5, -1.0, 4.0, 2.0], &[]);
    assert_eq!((scale.to_f32(), &integers[..4]), (-0.5, &[-1, 2, -8, -4][..]));
    let Group { integers, scale } = q8::group(&[0.0; 4], &[]);
    assert_eq!((scale.to_f32(), integers), (0.0, [0; GROUP]));
}

/// Tests the definition for each value: the value becomes the nearest integer, and halves are
/// rounded away from zero. The error is at most the error of the scale for which the largest
/// value becomes 127.
#[test]
fn eight_bits_are_as_they_are_number_by_number() {
    let mut groups: Vec<Vec<f32>> = numbers(32 * 500).chunks(32).map(<[f32]>::to_vec).collect();
    // These groups contain equal magnitudes with different signs, halves and their neighbours,
    // and numbers whose scale is 0 as f16.
    groups.extend([vec![1.0, -1.0], vec![-1.0, 1.0], vec![-0.0], vec![1e-45, 0.0, -1e-40]]);
    for half in (-255..256).map(|n| n as f32 / 2.0) {
        groups.push(vec![127.0, half, half.next_up(), half.next_down()]);
        groups.push(vec![-8.0, half, half.next_up(), half.next_down()]);
    }
    for group in groups {
        let largest = group.iter().fold(0.0f32, |m, &x| m.max(x.abs()));
        let Group { integers, scale: found } = q8::group(&group, &[]);
        let usual = f16::from_f32(largest / 127.0).to_f32();
        // Without a scale in the range of f16, the integers belong to the scale as f32.
        let scale = if usual.is_finite() && usual != 0.0 { found.to_f32() } else { largest / 127.0 };
        let integer = |scale: f32, x: f32| {
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            (x * inverse).round().clamp(-127.0, 127.0)
        };
        let expected: Vec<i8> = group.iter().map(|&x| integer(scale, x) as i8).collect();
        assert_eq!(integers[..group.len()], expected, "{group:?}");
        assert!(integers[group.len()..].iter().all(|&integer| integer == 0));
        let numbers = || group.iter().filter(|x| !x.is_nan());
        let error = |scale: f32| numbers().map(|&x| (x - integer(scale, x) * scale).powi(2)).sum::<f32>();
        if usual.is_finite() && usual != 0.0 && largest.is_finite() {
            assert!(error(scale) <= error(usual) * 1.0001, "{group:?}");
            assert!((0.999..=127.0 / 63.0).contains(&(scale / usual)), "{group:?}");
        }
    }
}

/// Eight bits keep most of what a checkpoint with a few equal steps per group has.
#[test]
fn eight_bits_find_the_steps_of_other_formats() {
    let lost = |group: &[f32], scale: f32| {
        group.iter().map(|x| (x - (x / scale).round().clamp(-127.0, 127.0) * scale).powi(2)).sum::<f32>()
    };
    let (mut found, mut usual) = (0.0, 0.0);
    let mut state = 1u64;
    let mut sixteen = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 60) as f32
    };
    for i in 0..500 {
        // Q4_1: sixteen steps from a minimum.
        let (step, least) = (0.01 + 0.0001 * i as f32, -0.07 - 0.00013 * i as f32);
        let group: Vec<f32> = (0..GROUP).map(|_| sixteen() * step + least).collect();
        let largest = group.iter().fold(0.0f32, |m, &x| m.max(x.abs()));
        found += lost(&group, q8::group(&group, &[]).scale.to_f32());
        usual += lost(&group, largest / 127.0);
    }
    assert!(found < 0.3 * usual, "{found} and {usual}");
}

/// With outliers in one group, this group gets 16 bits, and the other groups keep 8 bits.
#[test]
fn groups_with_outliers_lose_less() {
    let mut x = numbers(32 * 8 + 7);
    x[40] = 30.0;
    let mut all = [ActivationBits::Eight, ActivationBits::Mixed, ActivationBits::Sixteen].map(|bits| {
        let mut rounded = x.clone();
        in_integers(&mut rounded, bits);
        rounded
    });
    let [eight, mixed, sixteen] = &mut all;
    for (group, x) in x.chunks(GROUP).enumerate() {
        let range = group * GROUP..group * GROUP + x.len();
        let same = if group == 1 { &sixteen } else { &eight };
        assert_eq!(mixed[range.clone()], same[range.clone()]);
        let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= largest * 0.51 / 127.0 / 254.0;
        assert!(x.iter().zip(&sixteen[range]).all(near));
    }
}

/// Tests that the error of 4-bit rounding is at most the error of a rounding in which the largest
/// value becomes −8. The error of 4-bit rounding must also be near the smallest error among two
/// thousand scales.
#[test]
fn the_scale_of_four_bits_is_near_the_best() {
    let weights: Vec<f32> = (0..GROUP).map(|i| 1.0 + (i * 7 % 32) as f32).collect();
    let (mut all, mut best_of_all, mut simple_of_all) = (0.0, 0.0, 0.0);
    for numbers in numbers(32 * 200).chunks(GROUP) {
        for weights in [&[][..], &weights] {
            let error = |scale: f64| -> f64 {
                let error = |(i, x): (usize, &f32)| {
                    let integer = (f64::from(*x) / scale).round().clamp(-8.0, 7.0);
                    let weight = weights.get(i).map_or(1.0, |weight| f64::from(*weight));
                    weight * (f64::from(*x) - integer * scale).powi(2)
                };
                numbers.iter().enumerate().map(error).sum()
            };
            let largest = numbers.iter().fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
            let simple = error(f64::from(largest) / -8.0);
            let scales = (-1000..1000).filter(|&n| n != 0).map(|n| f64::from(n) / 1000.0 * 0.25);
            let best = scales.map(error).fold(f64::INFINITY, f64::min);
            let found = error(q4::group(numbers, weights).scale.to_f64());
            assert!(found <= simple * 1.001, "{found} {simple}");
            (all, best_of_all, simple_of_all) = (all + found, best_of_all + best, simple_of_all + simple);
        }
    }
    assert!(all < 1.06 * best_of_all && all < 0.93 * simple_of_all, "{all} {best_of_all} {simple_of_all}");
}

/// Tests that values do not change if they are multiples of a scale.
#[test]
fn four_bits_keep_what_they_can_say() {
    for scale in [0.5f32, -0.25, 0.001_953_125] {
        let numbers: Vec<f32> = (0..32).map(|i| ((i * 5 % 16) as f32 - 8.0) * scale).collect();
        let Group { integers, scale } = q4::group(&numbers, &[]);
        let found: Vec<f32> = integers.iter().map(|&q| f32::from(q) * scale.to_f32()).collect();
        assert_eq!(found, numbers);
    }
}
