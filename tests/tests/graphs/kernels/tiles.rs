//! Matmuls and attention with AMX: as they are here, refused by the system, and emulated.

use kernels::Kernels;
use ops::format::ActivationBits;
use ops::ops::{PackedLinear, Sdpa};
use ops::{Bound, ElementType, TensorType, Value, WeightFormat};
use targets::{Numerics, Target, host_features};
use tracewright_tests::calls::{Calls, random};
use tracewright_tests::long;
use tracewright_tests::tiles::refused;

use super::attention::attention_of;
use super::fused::products_with_surroundings;
use super::{as_it_is, built, packed, violations, violations_emulated};
use crate::support::{compiler, parameter};

/// Matmuls with tiles in critical sizes: slightly more than a tile, more rows than are held, exactly as many,
/// more columns than are near. They include epilogues with halves, and weights that are not at the start of
/// an allocation. Only every `step`-th size is tested.
fn tiled(format: WeightFormat, step: usize) -> Calls {
    // Nothing around it, a sum, and halves that meet.
    let cases: [([usize; 3], &[usize]); 7] = [
        ([17, 96, 37], &[0]),
        ([150, 64, 48], &[2]),
        ([40, 544, 64], &[3]),
        ([16, 64, 32], &[1]),
        // These three are in bf16, of numbers that are bytes and scales.
        ([128, 256, 64], &[3]),
        ([128, 256, 64], &[2]),
        ([128, 384, 48], &[1]),
    ];
    let cases: Vec<_> = cases.into_iter().step_by(step).collect();
    let mut all = products_with_surroundings(&cases, format);
    let weights = ["a", "b"].into_iter().zip(1..).map(|(key, seed)| (key, packed(format, 64, 64, seed)));
    let weights: Vec<(&str, Value)> = weights.collect();
    all.weights.extend(weights.iter().map(|(key, weight)| ((*key).to_owned(), weight.clone())));
    let x = random(TensorType::new(ElementType::Bf16, [33, 64]), 4);
    let activations = ActivationBits::Mixed;
    let op = PackedLinear { format, outputs: 64, element: ElementType::Bf16, activations };
    all.graph(format!("a chain of {op:?}"), vec![x], Bound::UlpsOfLargest(16.0), |b, ids| {
        weights.iter().try_fold(ids[0], |x, (key, weight)| {
            let weight = parameter(b, key, weight.ty.clone());
            b.op(op.clone(), &[x, weight])
        })
    });
    all
}

/// A processor with tiles, and whether this one runs its code: by tiles, if it has them and the system grants them, else as
/// where they are refused.
fn tiled_target() -> (Target, bool) {
    let changes = "+amx-tile,+amx-bf16,+amx-int8,+avx512vnni,+avx512bf16";
    let target = Target { changes: Some(changes.into()), ..Target::processor("x86-64-v4") };
    let target = compiler().resolve(&target).unwrap();
    let needs = |name: &str| {
        !name.starts_with("amx") && target.features.iter().flatten().any(|feature| feature == name)
    };
    let runs = host_features().into_iter().all(|(name, has)| has || !needs(name));
    if !runs {
        eprintln!("this processor is none of {target}: kernels are compiled, and not run");
    }
    (target, runs)
}

#[test]
fn products_by_tiles() {
    let (target, runs) = tiled_target();
    let changes = Some("+amx-tile,+amx-bf16,+amx-int8".to_owned());
    let wide = compiler().resolve(&Target { changes, ..Target::processor("x86-64-v4") }).unwrap();
    let formats =
        [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Q4K, WeightFormat::Mxfp4];
    // Where vectors are short, it takes LLVM long: numbers and bytes, and in the long form what becomes bytes.
    for format in long::first(formats, if runs { 5 } else { 2 }) {
        let calls = tiled(format, if runs { 1 } else { 2 });
        if !runs {
            // That LLVM knows the instructions, of bytes and of bf16.
            let some = products_with_surroundings(&[([17, 96, 37], &[0]), ([128, 256, 64], &[1])], format);
            built(&some, &target, &as_it_is);
            // Of instructions that this processor lacks only those of tiles are left, which are replaced; of vectors that are
            // longer than its own LLVM makes several.
            let host = compiler().resolve(&Target::host()).unwrap();
            if Kernels::of(&host).serve(format, 1, 1) {
                let found = violations_emulated(&calls, [&wide, &host], &as_it_is);
                assert!(found.is_empty(), "{wide}, emulated by {host}: {}", found.join("\n"));
            }
            continue;
        }
        // As they are here, where the system refuses them, and as the manual says that tiles do it.
        let found = violations(&calls, &target, &as_it_is);
        assert!(found.is_empty(), "{target}, here: {}", found.join("\n"));
        let found = violations(&calls, &target, &|text| refused(&text));
        assert!(found.is_empty(), "{target}, refused: {}", found.join("\n"));
        let found = violations_emulated(&calls, [&target, &target], &as_it_is);
        assert!(found.is_empty(), "{target}, emulated: {}", found.join("\n"));
        // Rows of another tile: of numbers, which those of four bits in groups become, and of bytes.
        let [right, wrong] = match format {
            WeightFormat::Bf16 | WeightFormat::Q4K | WeightFormat::Mxfp4 => {
                ["tmm3, tmm5, tmm7", "tmm3, tmm4, tmm7"]
            }
            _ => ["tmm1, tmm5, tmm7", "tmm1, tmm4, tmm7"],
        };
        let replaced = |text: String| {
            assert!(text.contains(right), "{target}: {format:?} is not multiplied by {right}");
            text.replace(right, wrong)
        };
        let found = violations_emulated(&calls, [&target, &target], &replaced);
        assert!(!found.is_empty(), "{target}: {wrong} in place of {right} is not found");
    }
}

/// Tiles of keys that end before the last, of queries of two heads, of rows that do not fill them; wide heads, and as many
/// rows as a worker holds.
#[test]
fn attention_by_tiles() {
    let small = [[1, 1, 17, 32, 32, 16], [2, 4, 18, 41, 64, 64], [2, 1, 20, 64, 96, 48]];
    let large = [[1, 4, 40, 77, 64, 64], [1, 2, 40, 130, 128, 128], [1, 4, 24, 90, 256, 256]];
    let calls = |cases: &[[usize; 6]]| {
        let mut calls = Calls::default();
        for (op, arguments) in [false, true]
            .into_iter()
            .flat_map(|ring| attention_of(cases, &[ElementType::Bf16], u64::from(ring), ring))
        {
            calls.call(op, arguments);
        }
        // All keys, in no order.
        let all_keys = Sdpa { mask: vec![], scale: None, softcap: None, offset: false };
        let tensor = |shape: &[usize], seed| random(TensorType::new(ElementType::Bf16, shape), seed);
        calls.call(all_keys, vec![tensor(&[3, 20, 32], 1), tensor(&[3, 50, 32], 2), tensor(&[3, 50, 48], 3)]);
        calls
    };
    let (target, runs) = tiled_target();
    let small = calls(if runs { &small } else { &small[..1] });
    let large = calls(&large);
    for calls in [&small, &large].into_iter().take(if runs { 2 } else { 1 }) {
        let built = built(calls, &target, &as_it_is);
        let lines = built.module.text.lines();
        let tiled = lines.filter(|line| line.contains("flow.dispatch") && line.contains("_tiles")).count();
        assert_eq!(tiled, calls.calls.len(), "not all by tiles");
        if runs {
            let found = built.load(&calls.weights).violations(calls);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
            let found = violations(calls, &target, &|text| refused(&text));
            assert!(found.is_empty(), "{target}, refused: {}", found.join("\n"));
        }
    }
    if !runs {
        return;
    }
    let found = violations_emulated(&small, [&target, &target], &as_it_is);
    assert!(found.is_empty(), "{target}, emulated: {}", found.join("\n"));
    for (right, wrong) in [("tmm1, tmm4, tmm2", "tmm1, tmm3, tmm2"), ("tmm0, tmm5, tmm6", "tmm0, tmm6, tmm5")]
    {
        let found = violations_emulated(&small, [&target, &target], &|text| text.replace(right, wrong));
        assert!(!found.is_empty(), "{target}: {wrong} in place of {right} is not found");
    }
}

/// With [`Numerics::Invariant`], kernels for a processor with AMX are the kernels for the same processor without AMX;
/// with [`Numerics::Portable`], those for the same processor without instructions for bf16.
#[test]
fn numerics_use_no_tiles_and_no_bf16() {
    let (fast, _) = tiled_target();
    let of = |numerics| Target { numerics, ..fast.clone() };
    let plain = |changes: &str| {
        let plain = Target { changes: Some(changes.into()), ..Target::processor("x86-64-v4") };
        compiler().resolve(&plain).unwrap()
    };
    let with_bf16 = plain("+avx512vnni,+avx512bf16");
    let targets = [
        &fast,
        &of(Numerics::Invariant),
        &with_bf16,
        &Target { numerics: Numerics::Portable, ..with_bf16.clone() },
        &of(Numerics::Portable),
        &Target { numerics: Numerics::Portable, ..plain("+avx512vnni") },
    ];
    for format in [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Q4K] {
        let calls = tiled(format, 1);
        let texts = targets.map(|target| lower::lower(&calls.trace, target).unwrap().text);
        let [fast, invariant, with_bf16, portable_bf16, portable, without_bf16] = texts;
        assert!(fast.contains("tmm1") && invariant == with_bf16, "{format:?}");
        assert!(portable == without_bf16 && portable_bf16 == without_bf16, "{format:?}");
        assert_eq!(with_bf16.contains("dpbf16ps"), format == WeightFormat::Bf16, "{format:?}");
    }
}
