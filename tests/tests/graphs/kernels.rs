//! Every kernel against the evaluator, on every feature level that this machine's processor contains.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::collections::{BTreeMap, BTreeSet};

use irpa::{Archive, EntryData, NewEntry, Sink, WriteOptions};
use kernels::{FusedOp, Kernels};
use ops::format::ActivationBits;
use ops::ops::{
    Append, BinaryKind, BroadcastInDim, Concatenate, Dequantize, MaskTerm, Narrow, Pack, PackedExperts,
    PackedLinear, PackedRows, Permute, Reshape, RmsNorm, Rope, RopeLayout, Sdpa, UnaryKind, WeightStyle,
};
use ops::{Bound, ElementType, InferError, Op, Real, TensorType, Value, WeightFormat};
use runtime::{CompileOptions, Device, ParameterData, Parameters};
use support::{Built, compile, compiler, one_round_less, parameter};
use targets::{Numerics, Target, host_features};
use trace::{Builder, NodeId, NodeKind, functions};
use tracewright_tests::calls::{Calls, CheckedCall, examples_of, random, wire, with_outliers};
use tracewright_tests::emulator::Emulator;
use tracewright_tests::in_iree;
use tracewright_tests::long;
use tracewright_tests::tiles::{emulated, refused};

/// Processors that differ in which code kernels are, what this machine has of them and itself first; and the formats
/// whose code is no other's before it.
fn levels() -> Vec<(Target, Vec<WeightFormat>)> {
    let has = |name: &str| host_features().iter().any(|&(feature, has)| has && feature == name);
    let level = |processor: &str, changes: Option<&str>| {
        compiler()
            .resolve(&Target { changes: changes.map(str::to_owned), ..Target::processor(processor) })
            .unwrap()
    };
    let mut targets = vec![compiler().resolve(&Target::host()).unwrap()];
    for (feature, processor, changes) in [
        ("avx2", "x86-64-v3", None),
        ("avxvnni", "x86-64-v3", Some("+avxvnni")),
        ("avx512bw", "x86-64-v4", None),
        ("avx512vnni", "x86-64-v4", Some("+avx512vnni")),
        ("avx512bf16", "x86-64-v4", Some("+avx512bf16")),
    ] {
        if has(feature) {
            targets.push(level(processor, changes));
        }
    }
    targets.retain(|target| Kernels::of(target).serve(WeightFormat::F32, 1, 1));
    // What the code of products in a format depends on.
    let code = |target: &Target, format: WeightFormat| -> Vec<&'static str> {
        let has = |name: &&str| target.features.iter().flatten().any(|feature| feature == name);
        let own: &[&str] = match format {
            format if format.element().is_none() && !has(&"avx512bw") => &["avxvnni"],
            format if format.element().is_none() => &["avx512bw", "avx512vnni", "amx-int8"],
            WeightFormat::Bf16 => &["avx512bw", "avx512bf16", "avx512fp16", "amx-bf16"],
            _ => &["avx512bw"],
        };
        own.iter().copied().filter(has).collect()
    };
    let mut seen = BTreeSet::new();
    let mut levels = Vec::new();
    for target in targets {
        let mut formats = WeightFormat::ALL.to_vec();
        formats.retain(|&format| seen.insert((format.word(), code(&target, format))));
        levels.push((target, formats));
    }
    levels.retain(|(_, formats)| !formats.is_empty());
    levels
}

/// The first of each width of vectors, where code knows no other instructions.
fn widths() -> impl Iterator<Item = Target> {
    levels().into_iter().filter(|(_, formats)| formats.contains(&WeightFormat::F32)).map(|(target, _)| target)
}

/// A weight of made-up numbers, as it is packed.
fn packed(format: WeightFormat, outputs: usize, inputs: usize, seed: u64) -> Value {
    let element = format.element().unwrap_or(ElementType::F32);
    let weight = random(TensorType::new(element, [outputs, inputs]), seed);
    let op = Op::from(Pack { format });
    let ty = op.infer(&[&weight.ty]).unwrap();
    op.eval(&[&weight], &ty)
}

/// Rows, inputs, outputs: one of each, whole lines and panels, what does not divide, and more than a block of each.
const EXTENTS: [[usize; 3]; 11] = [
    [1, 1, 1],
    [1, 256, 64],
    [1, 67, 5],
    [2, 33, 37],
    [3, 144, 17],
    [5, 130, 48],
    [8, 64, 16],
    [9, 31, 33],
    [20, 96, 33],
    [14, 290, 40],
    [263, 6, 16],
];

/// The extents to test for the format at this index. The long form tests all extents. In the short form, the
/// first format tests all extents, and each other tests every third in turn.
fn extents_at(place: usize) -> Vec<[usize; 3]> {
    if place == 0 || long::is_wanted() {
        EXTENTS.to_vec()
    } else {
        EXTENTS.into_iter().skip(place % 3).step_by(3).collect()
    }
}

/// The types of activations that a format is multiplied with.
fn activations(format: WeightFormat) -> Vec<ElementType> {
    match format.element() {
        Some(element) => vec![element],
        None => vec![ElementType::F32, ElementType::F16, ElementType::Bf16],
    }
}

/// The bits that activations get in a case, where a format rounds them.
fn bits(format: WeightFormat, case: usize) -> ActivationBits {
    if format.element().is_some() { ActivationBits::Eight } else { ActivationBits::ALL[case % 3] }
}

/// Products, of experts too, and lookups in the format at this index. As with extents, the short form tests all sizes of
/// experts with the first format, and one in turn with each other.
fn uses_of(place: usize, extents: &[[usize; 3]], format: WeightFormat) -> Calls {
    let mut all = products_of(extents, format);
    let cases = [[1, 2, 67, 32], [3, 2, 64, 16], [17, 3, 64, 48]].into_iter().enumerate();
    let wanted = |case: usize| place == 0 || case == place % 3 || long::is_wanted();
    for (case, [places, chosen, inputs, outputs]) in cases.filter(|(case, _)| wanted(*case)) {
        let (seed, experts) = (1000 + 100 * case as u64, 5);
        let element = activations(format)[0];
        let tensor = |shape: &[usize], seed| random(TensorType::new(element, shape), seed);
        let activations = bits(format, case);
        let op = PackedExperts { format, experts, outputs, element: ElementType::F32, activations };
        let stack = || packed(format, experts * outputs, inputs, seed);
        let indices = random(TensorType::new(ElementType::I32, [places, chosen]), seed + 1);
        all.call(op.clone(), vec![tensor(&[places, inputs], seed + 2), stack(), indices.clone()]);
        all.call(op.clone(), vec![tensor(&[places, chosen, inputs], seed + 3), stack(), indices]);
        all.call(op, vec![tensor(&[11, experts, inputs], seed + 4), stack()]);
    }
    all
}

/// Products, and lookups of every other extent: a row at a time, they know no blocks of rows.
fn products_of(extents: &[[usize; 3]], format: WeightFormat) -> Calls {
    let mut all = Calls::default();
    for (case, &[rows, inputs, outputs]) in extents.iter().enumerate() {
        let seed = 100 * case as u64;
        let elements = activations(format);
        let element = elements[case % elements.len()];
        let ty = TensorType::new(element, [rows, inputs]);
        let x = with_outliers(random(ty, seed));
        let result = if case % 2 == 0 { ElementType::F32 } else { element };
        let op = PackedLinear { format, outputs, element: result, activations: bits(format, case / 2) };
        all.call(op, vec![x, packed(format, outputs, inputs, seed + 1)]);
        if case % 2 == 1 {
            continue;
        }
        let indices = random(TensorType::new(ElementType::I32, [rows]), seed + 2);
        let op = PackedRows { format, outputs, inputs, element };
        all.call(op, vec![packed(format, outputs, inputs, seed + 3), indices]);
    }
    all
}

/// The same calls with other bytes of weights than the kernels are to get.
fn spoiled(mut calls: Calls, change: &dyn Fn(&mut [u8])) -> Calls {
    for call in &mut calls.calls {
        let weight = &mut call.arguments[usize::from(!call.text.starts_with("PackedRows"))];
        let mut bytes = weight.to_bytes();
        change(&mut bytes);
        *weight = Value::from_bytes(weight.ty.clone(), &bytes);
    }
    calls
}

fn built(calls: &Calls, target: &Target, edit: &dyn Fn(String) -> String) -> Built {
    built_with(calls, &CompileOptions::new(target.clone(), false), edit)
}

fn built_with(calls: &Calls, options: &CompileOptions, edit: &dyn Fn(String) -> String) -> Built {
    built_from(calls, &options.target, options, edit)
}

/// The kernels of one target, compiled for another.
fn built_from(
    calls: &Calls,
    target: &Target,
    options: &CompileOptions,
    edit: &dyn Fn(String) -> String,
) -> Built {
    let mut module = lower::lower(&calls.trace, target).unwrap();
    module.text = edit(module.text);
    module.text_without_locs = edit(module.text_without_locs);
    let vmfb = compile(&module, options);
    Built { module, vmfb }
}

/// The violations if tile instructions are emulated. Their registers take memory from the kernel, so it may
/// use more.
fn violations_emulated(
    calls: &Calls,
    [target, compiled]: [&Target; 2],
    edit: &dyn Fn(String) -> String,
) -> Vec<String> {
    let mut options = CompileOptions::new(compiled.clone(), false);
    options.flags.push("--iree-llvmcpu-stack-allocation-limit=65536".into());
    let edit = |text| emulated(&edit(text));
    built_from(calls, target, &options, &edit).load(&calls.weights).violations(calls)
}

fn violations(calls: &Calls, target: &Target, edit: &dyn Fn(String) -> String) -> Vec<String> {
    built(calls, target, edit).load(&calls.weights).violations(calls)
}

fn as_it_is(text: String) -> String {
    text
}

/// The examples of all operations that kernels compute for a target.
fn examples(target: &Target) -> Calls {
    let kernels = Kernels::of(target);
    let mut all = examples_of(|_| true);
    let served = |call: &CheckedCall| {
        let function = all.trace.entry(&call.name).unwrap();
        function.ids().all(|id| match &function.node(id).kind {
            NodeKind::Op(op) => {
                let operands = function.operands(id);
                let types: Vec<_> = operands.iter().map(|&operand| function.node(operand).ty()).collect();
                op.name().starts_with("packed_") || kernels.can_do(&FusedOp::alone(op, types))
            }
            _ => true,
        })
    };
    let names: Vec<String> = all.calls.iter().filter(|call| served(call)).map(|c| c.name.clone()).collect();
    for operation in [
        "append",
        "dequantize",
        "linear_attention",
        "packed_experts",
        "packed_linear",
        "packed_rows",
        "sdpa",
        "rope",
        "rms_norm",
    ] {
        assert!(names.iter().filter(|name| name.starts_with(operation)).count() > 1, "{operation}");
    }
    all.calls.retain(|call| names.contains(&call.name));
    all.trace = all.trace.with_entries(&names.iter().map(String::as_str).collect::<Vec<_>>());
    all
}

#[test]
fn every_product_and_lookup_on_every_level() {
    for (target, formats) in levels() {
        if formats.contains(&WeightFormat::F32) {
            // The compiler finds nothing wrong on its way either.
            let options = CompileOptions { verified: true, ..CompileOptions::new(target.clone(), false) };
            let calls = examples(&target);
            let found = built_with(&calls, &options, &as_it_is).load(&calls.weights).violations(&calls);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
        for (place, format) in formats.into_iter().enumerate() {
            let found = violations(&uses_of(place, &extents_at(place), format), &target, &as_it_is);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
    }
}

/// A row with outliers does not change the rows beside it, which have outliers elsewhere or nowhere.
#[test]
fn rows_have_the_bits_that_they_have_alone() {
    const ROWS: usize = 13;
    for (target, mut formats) in levels() {
        formats.retain(|format| format.element().is_none());
        if formats.is_empty() {
            continue; // the code of integers is that of a level before it
        }
        let mut calls = Calls::default();
        for format in formats {
            for (inputs, activations) in [(320, ActivationBits::Mixed), (70, ActivationBits::Sixteen)] {
                let op = PackedLinear { format, outputs: 40, element: ElementType::F32, activations };
                let x = with_outliers(random(TensorType::new(ElementType::F32, [ROWS, inputs]), 3));
                let arguments = vec![x, packed(format, 40, inputs, 5)];
                calls.graph(format!("rows of {op:?}"), arguments, Bound::Exact, |b, ids| {
                    let together = b.op(op.clone(), ids)?;
                    let alone = |row| {
                        let x = b.op(Narrow { axis: 0, start: row, length: 1 }, &[ids[0]])?;
                        b.op(op.clone(), &[x, ids[1]])
                    };
                    let alone = (0..ROWS).map(alone).collect::<Result<Vec<_>, _>>()?;
                    let alone = b.op(Concatenate { axis: 0 }, &alone)?;
                    b.binary(BinaryKind::Subtract, together, alone)
                });
            }
        }
        let found = violations(&calls, &target, &as_it_is);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}

/// Processors of another architecture, and the formats that their own instructions are for: the least, one that has
/// products of bytes, and one that has all.
const ARM: [(&str, &[WeightFormat]); 3] = [
    ("aarch64-linux-gnu:generic:+neon", WeightFormat::ALL),
    (
        "aarch64-linux-gnu:generic:+neon,+dotprod",
        &[WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Q4K, WeightFormat::Mxfp4, WeightFormat::Q6K],
    ),
    (
        "aarch64-linux-gnu:generic:+neon,+dotprod,+i8mm,+bf16",
        &[
            WeightFormat::Bf16,
            WeightFormat::Q8,
            WeightFormat::Q4,
            WeightFormat::Q4K,
            WeightFormat::Mxfp4,
            WeightFormat::Q6K,
        ],
    ),
];

#[test]
fn every_kernel_on_an_arm_processor() {
    let emulator = Emulator::find();
    if emulator.is_none() {
        eprintln!("no QEMU for AArch64 with libraries: kernels are compiled, and not run");
    }
    // Fewer than elsewhere, since compiling for vectors that are this short takes long.
    let extents = [EXTENTS[2], EXTENTS[4], EXTENTS[7]];
    let extents = if emulator.is_some() { &extents[..] } else { &extents[..1] };
    // In the short form the least and the one with all; what is not run is compiled for one of them.
    let step = if long::is_wanted() { 1 } else { 2 };
    let once = emulator.is_none() && !long::is_wanted();
    for (name, formats) in ARM.into_iter().step_by(step) {
        let is_compiled = |format: &&WeightFormat| !once || name == ARM[2].0 || !ARM[2].1.contains(*format);
        let target = compiler().resolve(&name.parse().unwrap()).unwrap();
        let found = |calls: &Calls| {
            let (trace, arguments) = calls.as_main().unwrap();
            let module = lower::lower(&trace, &target).unwrap();
            assert!(module.text.contains("stream.executable"), "{target}: no kernel is called");
            let vmfb = compile(&module, &CompileOptions::new(target.clone(), false));
            let Some(emulator) = &emulator else { return Vec::new() };
            let results = calls.calls.iter().flat_map(|call| &call.expected);
            let types: Vec<TensorType> = results.map(|value| wire(&value.ty)).collect();
            let results = calls.of_main(emulator.call_main(&vmfb, &arguments, &types).unwrap());
            calls.calls.iter().zip(results).filter_map(|(call, found)| call.violation(&found)).collect()
        };
        let uses = |(place, &format): (usize, &WeightFormat)| {
            if formats == WeightFormat::ALL && emulator.is_some() {
                uses_of(place, extents, format)
            } else {
                products_of(extents, format)
            }
        };
        let mut all: Vec<Calls> = formats.iter().filter(is_compiled).enumerate().map(uses).collect();
        if formats == WeightFormat::ALL {
            let mut attended = Calls::default();
            let cases = attention(1, false).into_iter().chain(attention(2, true));
            let step = if emulator.is_some() { 4 } else { attention_step() };
            cases.step_by(step).for_each(|(op, arguments)| attended.call(op, arguments));
            all.extend([examples(&target), attended]);
        }
        for calls in all {
            let found = found(&calls);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
        if emulator.is_some() {
            let sign = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte ^= 0x80);
            let found = found(&spoiled(products_of(&extents[..1], WeightFormat::Q8), &sign));
            assert!(!found.is_empty(), "{target}: bytes of another sign are not found");
        }
    }
}

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

/// A worker's stack has room for the largest kernels and their callers. One normalizes and quantizes a row.
/// Another multiplies by tiles, with halves, and has more rows than are held.
#[test]
fn workers_have_room_for_what_kernels_keep() {
    let Some((target, _)) = levels().into_iter().next() else { return };
    // In the short form numbers and bytes: those of four bits keep what bytes do.
    let formats = [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Q4K];
    for format in long::first(formats, 2) {
        let cases: [([usize; 3], &[usize]); 3] =
            [([1, 5824, 32], &[1]), ([1, 9408, 32], &[0, 1, 2]), ([150, 96, 64], &[3])];
        let calls = products_with_surroundings(&cases, format);
        let built = built(&calls, &target, &as_it_is);
        let found = built.load_on(Device::LocalTask { workers: 2 }, in_iree::parameters(&calls.weights));
        let found = found.violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for (target, formats) in levels() {
        let mut all = Calls::default();
        for format in formats {
            let element = activations(format)[0];
            let mut x = random(TensorType::new(element, [6, 70]), 0);
            // Every other row has one.
            for (i, special) in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN].into_iter().enumerate() {
                x.data[70 * (2 * i + 1) + 11] = special;
            }
            let op = PackedLinear {
                format,
                outputs: 20,
                element: ElementType::F32,
                activations: ActivationBits::Mixed,
            };
            all.call(op, vec![x, packed(format, 20, 70, 1)]);
        }
        let built = built(&all, &target, &as_it_is);
        let loaded = built.load(&all.weights);
        for call in &all.calls {
            let found = &loaded.call(&call.name, &call.arguments)[0];
            for (i, x) in found.data.iter().enumerate() {
                assert_eq!(x.is_finite(), (i / 20) % 2 == 0, "{target} {}: row {} is {x}", call.text, i / 20);
            }
        }
    }
}

/// Our own quantizing makes no byte of −128, but a GGUF file may have one: every product of it fits.
#[test]
fn the_smallest_byte_is_multiplied() {
    let mut calls = Calls::default();
    for (seed, [rows, inputs]) in [[1, 64], [14, 67]].into_iter().enumerate() {
        let packed = packed(WeightFormat::Q8, 32, inputs, seed as u64);
        let mut bytes = packed.to_bytes();
        // Stored with 128 added, behind the scales of each chunk.
        bytes.chunks_mut(1088).for_each(|chunk| chunk[64..].iter_mut().step_by(3).for_each(|byte| *byte = 0));
        let op = PackedLinear {
            format: WeightFormat::Q8,
            outputs: 32,
            element: ElementType::F32,
            activations: ActivationBits::Mixed,
        };
        let x = with_outliers(random(TensorType::new(ElementType::F32, [rows, inputs]), 7));
        calls.call(op, vec![x, Value::from_bytes(packed.ty, &bytes)]);
    }
    for (target, formats) in levels() {
        if formats.contains(&WeightFormat::Q8) {
            let found = violations(&calls, &target, &as_it_is);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let Some((target, _)) = levels().into_iter().next() else { return };
    let rotated = |chunk: &mut [u8]| chunk[64..].iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
    let next = |chunk: &mut [u8]| chunk[..64].rotate_left(32);
    let minima = |chunk: &mut [u8]| chunk[32..64].fill(0);
    let exponent = |chunk: &mut [u8]| chunk[..64].rotate_left(16);
    let signs = |chunk: &mut [u8]| chunk[64..].iter_mut().for_each(|byte| *byte &= 0x77);
    let counts = |chunk: &mut [u8]| chunk[64..256].iter_mut().for_each(|byte| *byte &= 63);
    type Change<'a> = (&'a str, &'a dyn Fn(&mut [u8]));
    // The bytes of a chunk, and what they become.
    let faults = |format| -> (usize, Vec<Change<'_>>) {
        match format {
            WeightFormat::Q8 => (1088, vec![("the scale of the next group", &next)]),
            WeightFormat::Q4 => {
                (576, vec![("the scale of the next group", &next), ("the other nibble first", &rotated)])
            }
            WeightFormat::Q4K => (
                2304,
                vec![
                    ("the scale of the next group", &next),
                    ("a minimum that is left out", &minima),
                    ("the upper bits of the last groups' scales", &counts),
                ],
            ),
            WeightFormat::Mxfp4 => (
                1088,
                vec![
                    ("the exponent of the next group", &exponent),
                    ("the other nibble first", &rotated),
                    ("floats without signs", &signs),
                ],
            ),
            _ => (1, vec![]),
        }
    };
    // In the short form those of plain numbers once, and all that have scales.
    let formats = WeightFormat::ALL
        .iter()
        .filter(|format| long::is_wanted() || !matches!(format, WeightFormat::F16 | WeightFormat::Bf16));
    for &format in formats {
        // A row and several, of more than a chunk.
        let uses = || products_of(&[EXTENTS[1], EXTENTS[4]], format);
        let (chunk, changes) = faults(format);
        let calls = uses();
        let sound = built(&calls, &target, &as_it_is);
        assert_eq!(sound.load(&calls.weights).violations(&calls), Vec::<String>::new());
        for (what, change) in changes {
            let calls = spoiled(uses(), &|bytes| bytes.chunks_mut(chunk).for_each(change));
            let found = sound.load(&calls.weights).violations(&calls);
            assert!(!found.is_empty(), "{format:?}: {what} is not found");
        }
        let found = violations(&calls, &target, &one_round_less);
        assert!(!found.is_empty(), "{format:?}: a loop that ends one round early is not found");
    }
}

/// A variable that tells the process of a test to plant a fault, which ends the process.
#[cfg(unix)]
const PLANTED: &str = "TRACEWRIGHT_TEST_PLANTED";

/// Behind a weight there may be nothing: kernels ask for memory ahead of its use, and do not read it. The weight ends where
/// its file does, and what is mapped behind it is missing.
#[cfg(unix)]
#[test]
fn nothing_is_read_behind_a_weight() {
    let planted = std::env::var_os(PLANTED).is_some();
    const PAGE: usize = 1 << 16;
    let [outputs, inputs] = [2048, 1024];
    for &format in WeightFormat::ALL {
        let weight = packed(format, outputs, inputs, 1);
        let element = activations(format)[0];
        let x = random(TensorType::new(element, [1, inputs]), 2);
        let mut all = Calls::default();
        all.weights.insert("weight".into(), weight.clone());
        let op = PackedLinear { format, outputs, element, activations: ActivationBits::Eight };
        all.graph(format!("{op:?}"), vec![x], Bound::UlpsOfLargest(16.0), |b, ids| {
            let weight = parameter(b, "weight", weight.ty.clone());
            b.op(op.clone(), &[ids[0], weight])
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.irpa");
        // Something before it, so that it ends with a page; and behind it something that will be missing.
        let write = |before: usize| {
            let entries = [("a", before), ("b", weight.ty.bytes()), ("c", 1 << 17)];
            let entries = entries.map(|(name, length)| NewEntry::raw(name, length as u64)).to_vec();
            let fill = |entry: &NewEntry, sink: &mut Sink<'_>| match entry.name() {
                "a" => sink.write(&vec![0; before]),
                "b" => sink.write(&weight.to_bytes()),
                _ => sink.write(&[0; 1 << 17]),
            };
            irpa::write::<irpa::ArchiveError>(&path, entries, WriteOptions::default(), fill).unwrap();
            let archive = Archive::open(&path).unwrap();
            let EntryData::Range(range) = archive.get("b").unwrap().data.clone() else { unreachable!() };
            (archive, range)
        };
        let (_, first) = write(PAGE);
        let (archive, range) = write(2 * PAGE - first.end % PAGE);
        assert_eq!(range.end % PAGE, 0, "the weight does not end with a page");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(range.end as u64).unwrap();
        let entries = BTreeMap::from([("weight".into(), ParameterData::Range(range))]);
        let parameters = Parameters { scope: "model".into(), bytes: archive.bytes(), entries };
        // A load that nobody uses would be left out.
        let load = |text: String| {
            let lines = text.lines().enumerate().map(|(number, line)| {
                let Some((before, rest)) = line.split_once("memref.prefetch ") else {
                    return format!("{line}\n");
                };
                let (buffer, _) = rest.split_once(", read").unwrap();
                let (_, ty) = rest.rsplit_once(" : ").unwrap();
                let element = ty.trim_end_matches('>').rsplit('x').next().unwrap();
                format!(
                    "{before}%read{number} = memref.load {buffer} : {ty}\n\
                     {before}llvm.inline_asm has_side_effects \"\", \"r\" %read{number} : ({element}) -> ()\n"
                )
            });
            lines.collect()
        };
        let target = compiler().resolve(&Target::host()).unwrap();
        let built = built(&all, &target, if planted { &load } else { &as_it_is });
        assert!(built.module.text.contains("memref.prefetch") != planted);
        let found = built.load_with(parameters).violations(&all);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
    if !planted {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "kernels::nothing_is_read_behind_a_weight"]).env(PLANTED, "1");
        let ended = child.output().unwrap();
        assert_eq!(ended.status.code(), None, "a load in place of a prefetch does not end the process");
    }
}

#[test]
fn without_features_there_is_no_kernel() {
    for target in ["riscv64-linux-gnu:generic-rv64:+v", "x86-64-v2"] {
        let target: Target = target.parse().unwrap();
        let target = compiler().resolve(&target).unwrap();
        assert!(!Kernels::of(&target).serve(WeightFormat::F32, 16, 16), "{target}");
        let op = PackedRows { format: WeightFormat::F32, outputs: 16, inputs: 4, element: ElementType::F32 };
        let mut all = Calls::default();
        let indices = Value::new(TensorType::new(ElementType::I32, [1]), [3.0]);
        all.call(op, vec![packed(WeightFormat::F32, 16, 4, 1), indices]);
        let error = lower::lower(&all.trace, &target).unwrap_err();
        assert!(error.to_string().contains("`packed_rows`, which no kernel computes"), "{error}");
    }
}

/// Attention: a cache of keys, its queries and the position of the first.
fn attention(seed: u64, ring: bool) -> Vec<(Op, Vec<Value>)> {
    let cases = [
        [1, 1, 1, 1, 1, 1],
        [1, 4, 1, 64, 64, 64],
        [2, 3, 1, 37, 20, 33],
        [3, 1, 5, 48, 16, 16],
        [2, 2, 16, 32, 32, 48],
        [1, 8, 3, 31, 80, 128],
        [1, 4, 2, 19, 256, 256],
        [1, 8, 1, 40, 512, 512],
        [2, 3, 2, 37, 512, 300],
        [1, 10, 1, 35, 570, 570],
    ];
    attention_of(&cases, &[ElementType::F32, ElementType::Bf16, ElementType::F16], seed, ring)
}

/// In the short form every fourth case: each size, and each element, position and mask.
fn attention_step() -> usize {
    if long::is_wanted() { 1 } else { 4 }
}

/// The same of given batches, groups, queries, keys, features and values.
fn attention_of(
    cases: &[[usize; 6]],
    elements: &[ElementType],
    seed: u64,
    ring: bool,
) -> Vec<(Op, Vec<Value>)> {
    let mut all = Vec::new();
    for (case, &[batch, group, queries, keys, features, values]) in cases.iter().enumerate() {
        let last = keys - queries;
        for (position, start) in [0, last / 2, last].into_iter().enumerate() {
            let seed = seed + 100 * case as u64 + 10 * position as u64;
            let element = elements[(case + position) % elements.len()];
            let width = 1 + keys / 3;
            let (mask, start) = match (ring, position) {
                // A ring that has turned several times, and one that is not full.
                (true, 2) => (
                    vec![MaskTerm::Causal, MaskTerm::Window(width.min(last + 1)), MaskTerm::Ring],
                    5 * keys + 3,
                ),
                (true, _) => {
                    (vec![MaskTerm::Causal, MaskTerm::Window(width.min(last + 1)), MaskTerm::Ring], start)
                }
                (false, 1) => (vec![MaskTerm::Causal, MaskTerm::Window(width)], start),
                (false, _) => (vec![MaskTerm::Causal], start),
            };
            let tensor = |shape: &[usize], seed| random(TensorType::new(element, shape), seed);
            let q = tensor(&[batch, 2, group, queries, features], seed);
            let k = tensor(&[batch, 2, keys, features], seed + 1);
            let v = tensor(&[batch, 2, keys, values], seed + 2);
            let offset = match position {
                1 => Value::new(
                    TensorType::new(ElementType::I32, [batch]),
                    (0..batch).map(|b| start.saturating_sub(b) as f64),
                ),
                _ => Value::new(TensorType::new(ElementType::I32, []), [start as f64]),
            };
            let softcap = (case % 2 == 1).then_some(ops::Real(2.0));
            let scale = (case % 3 == 1).then_some(ops::Real(0.25));
            let (mut mask, mut operands) = (mask, vec![q, k, v, offset]);
            // Of all masks, positions and elements.
            if (case + position) % 4 < 2 {
                let ring = mask.iter().position(|term| *term == MaskTerm::Ring).unwrap_or(mask.len());
                mask.insert(ring, MaskTerm::Sinks);
                operands.push(tensor(&[2, group], seed + 3));
            }
            all.push((Op::from(Sdpa { mask, scale, softcap, offset: true }), operands));
        }
    }
    all
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
        &plain("+avx512vnni"),
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

#[test]
fn attention_on_every_level() {
    let mut all = Calls::default();
    let cases = attention(1, false).into_iter().chain(attention(2, true));
    for (op, arguments) in cases.step_by(attention_step()) {
        all.call(op, arguments);
    }
    let all_keys = Sdpa { mask: vec![], scale: None, softcap: None, offset: false };
    let tensor = |shape: &[usize], seed| random(TensorType::new(ElementType::F32, shape), seed);
    all.call(all_keys, vec![tensor(&[3, 20, 24], 1), tensor(&[3, 50, 24], 2), tensor(&[3, 50, 30], 3)]);
    let mut windows = Calls::default();
    let has_window = |op: &Op| matches!(op, Op::Sdpa(sdpa) if sdpa.mask.iter().any(|term| matches!(term, MaskTerm::Window(_))));
    let windowed = attention(1, false).into_iter().filter(|(op, _)| has_window(op));
    windowed.step_by(attention_step()).for_each(|(op, arguments)| windows.call(op, arguments));
    for target in widths() {
        let found = violations(&all, &target, &as_it_is);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        let less = violations(&windows, &target, &|text| text.replace("arith.maxsi", "arith.minsi"));
        assert!(!less.is_empty(), "{target}: keys before the window's first are not found");
    }
}

/// Made-up integers in place of numbers, and what one of them stands for in each row.
fn integers(ty: &TensorType, seed: u64) -> [Value; 2] {
    let rows = random(TensorType::new(ElementType::F32, &ty.shape[..ty.rank() - 1]), seed + 1);
    let scales = Value::new(rows.ty.clone(), rows.data.iter().map(|x| x.abs() / 512.0));
    [random(ty.with_element(ElementType::I8), seed), scales]
}

#[test]
fn attention_reads_integers() {
    let mut all = Calls::default();
    let all_cases = attention(3, false).into_iter().chain(attention(4, true));
    for (case, (op, arguments)) in all_cases.step_by(attention_step()).enumerate() {
        let [q, k, v, others @ ..] = &arguments[..] else { unreachable!() };
        let text = format!("{op:?} of {} and integers", q.ty);
        let [[k, k_scales], [v, v_scales]] =
            [k, v].map(|of| integers(&of.ty, 1000 + 10 * case as u64 + of.ty.shape[3] as u64));
        let dequantize = Dequantize { element: q.ty.element };
        let mut arguments = vec![q.clone(), k, k_scales, v, v_scales];
        arguments.extend(others.iter().cloned());
        all.graph(text, arguments, op.bound(), |b, ids| {
            let k = b.op(dequantize.clone(), &ids[1..3])?;
            let v = b.op(dequantize.clone(), &ids[3..5])?;
            b.op(op.clone(), &[&[ids[0], k, v], &ids[5..]].concat())
        });
    }
    for target in widths() {
        let built = built(&all, &target, &as_it_is);
        let text = &built.module.text_without_locs;
        let count = |kernel: &str| text.matches(&format!("= flow.dispatch {kernel}")).count();
        // Another kernel prepares queries of many features.
        assert_eq!(count("@kernels::@attention_"), all.calls.len(), "one for each call");
        assert_eq!(count(""), all.calls.len() + count("@kernels::@queries_"), "nothing is dequantized");
        let found = built.load(&all.weights).violations(&all);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        for part in [2, 4] {
            all.calls.iter_mut().for_each(|call| call.arguments[part].data.rotate_left(1));
            let next = built.load(&all.weights).violations(&all);
            assert!(!next.is_empty(), "{target}: the scale of the next key is not found");
            all.calls.iter_mut().for_each(|call| call.arguments[part].data.rotate_right(1));
        }
    }
}

const STYLES: [WeightStyle; 3] = [WeightStyle::Scale, WeightStyle::Wide, WeightStyle::OnePlus];

fn norm(style: WeightStyle) -> RmsNorm {
    RmsNorm { epsilon: Real(1e-5), style }
}

/// The operations after a matmul, given x, the weight, and further operands.
type Ending = fn(&mut Builder<'_>, NodeId, &[NodeId]) -> Result<NodeId, InferError>;

/// The types of an ending's operands, for products `[rows, outputs]` in an element type.
type Operands = fn(ElementType, usize, usize) -> Vec<TensorType>;

/// The epilogues of matmuls that networks use.
fn endings() -> Vec<(&'static str, Ending, Operands)> {
    let none = |_, _, _| vec![];
    vec![
        ("nothing", |_, product, _| Ok(product), none),
        (
            "a residual",
            |b, product, ids| b.binary(BinaryKind::Add, ids[0], product),
            |element, rows, outputs| vec![TensorType::new(element, [rows, outputs])],
        ),
        (
            "a bias, a residual and another element type",
            |b, product, ids| {
                let (shape, element) = (b.ty(product).shape.clone(), b.ty(product).element);
                let wide = b.convert(product, ElementType::F32)?;
                let bias = b.convert(ids[0], ElementType::F32)?;
                let axes = vec![shape.len() - 1];
                let bias = b.op(BroadcastInDim { shape, axes }, &[bias])?;
                let sum = b.binary(BinaryKind::Add, wide, bias)?;
                let sum = b.convert(sum, element)?;
                let sum = b.binary(BinaryKind::Subtract, sum, ids[1])?;
                b.convert(sum, ElementType::F32)
            },
            |element, rows, outputs| {
                vec![TensorType::new(element, [outputs]), TensorType::new(element, [rows, outputs])]
            },
        ),
        (
            "silu of the first half times the second",
            |b, product, _| functions::gated(b, product, functions::silu),
            none,
        ),
        (
            "gelu of the first half times the second",
            |b, product, _| functions::gated(b, product, functions::gelu_tanh),
            none,
        ),
        (
            "functions",
            |b, product, _| {
                let a = b.unary(UnaryKind::Abs, product)?;
                let more = b.with_scalar(BinaryKind::Add, a, 1.5)?;
                let root = b.unary(UnaryKind::Sqrt, more)?;
                let inverse = b.unary(UnaryKind::Rsqrt, more)?;
                let least = b.with_scalar(BinaryKind::Minimum, product, 3.0)?;
                let power = b.unary(UnaryKind::Exponential, least)?;
                let power = b.unary(UnaryKind::Negate, power)?;
                let ratio = b.binary(BinaryKind::Divide, power, more)?;
                let most = b.binary(BinaryKind::Maximum, ratio, root)?;
                b.binary(BinaryKind::Multiply, most, inverse)
            },
            none,
        ),
    ]
}

/// Products with a norm before and an ending, in a format: of each of these extents all endings, or some.
fn products_with_surroundings(cases: &[([usize; 3], &[usize])], format: WeightFormat) -> Calls {
    let mut all = Calls::default();
    for (case, &([rows, inputs, outputs], wanted)) in cases.iter().enumerate() {
        for (i, (what, ending, operands)) in endings().into_iter().enumerate() {
            let seed = 1000 * case as u64 + 10 * i as u64;
            let elements = activations(format);
            let element = elements[(case + i) % elements.len()];
            // A weight that is half a row is no half of whole panels.
            if outputs % 2 == 1 && what.contains("half") || !wanted.contains(&i) {
                continue;
            }
            let style = [None, Some(STYLES[(case + i) % 3])][(case + i) % 2];
            let tensor = |shape: &[usize], seed| random(TensorType::new(element, shape), seed);
            let ty = TensorType::new(element, [rows, inputs]);
            let x = random(ty, seed);
            let mut arguments =
                vec![x, packed(format, outputs, inputs, seed + 1), tensor(&[inputs], seed + 2)];
            let types = operands(element, rows, outputs);
            arguments.extend(types.into_iter().zip(3..).map(|(ty, j)| random(ty, seed + j)));
            // Units of the activations' type, whatever the result's is; of bytes, if x is no grid of theirs.
            let units =
                if format.element().is_none() && style.is_some() { 0.06 / element.ulp(1.0) } else { 16.0 };
            let wide = if what.contains("another") { ElementType::F32 } else { element };
            let bound = Bound::UlpsOfLargest(units * element.ulp(1.0) / wide.ulp(1.0));
            let op = PackedLinear { format, outputs, element, activations: ActivationBits::Eight };
            let text = format!("{style:?}, {op:?} of {}, {what}", arguments[0].ty);
            all.graph(text, arguments, bound, |b, ids| {
                let x = match style {
                    Some(style) => b.op(norm(style), &[ids[0], ids[2]])?,
                    None => ids[0],
                };
                let product = b.op(op.clone(), &[x, ids[1]])?;
                ending(b, product, &ids[3..])
            });
        }
    }
    all
}

#[test]
fn products_swallow_what_is_around_them() {
    for target in widths() {
        for &format in WeightFormat::ALL {
            // What stands around a product is the same code in every format: all of it around those of one that is computed
            // as it is and of one that is not.
            let every = &[0, 1, 2, 3, 4, 5][..];
            let all = [
                ([1, 64, 64], every),
                ([9, 96, 96], every),
                ([1, 67, 37], &[1, 2]),
                ([2, 33, 64], &[0, 3]),
                ([15, 132, 64], &[4, 5]),
            ];
            let some = [([1, 64, 64], &[3][..]), ([9, 96, 96], &[1])];
            let cases = match format {
                _ if long::is_wanted() => &all[..],
                WeightFormat::Q8 => &all,
                WeightFormat::F32 => &all[..2],
                _ => &some,
            };
            let calls = products_with_surroundings(cases, format);
            let built = built(&calls, &target, &as_it_is);
            // Nothing is left but norms of several rows, and what quantizes those.
            let elementwise = built.module.text_without_locs.lines().filter(|line| {
                [
                    "stablehlo.add",
                    "stablehlo.multiply",
                    "stablehlo.logistic",
                    "stablehlo.tanh",
                    "stablehlo.slice",
                ]
                .iter()
                .any(|op| line.contains(op))
            });
            assert_eq!(elementwise.collect::<Vec<_>>(), Vec::<&str>::new());
            let found = built.load(&calls.weights).violations(&calls);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
    }
}

/// The kernel of a lookup also computes what follows: a scale, as of Gemma's embeddings, and the endings of products.
#[test]
fn lookups_swallow_what_follows() {
    let scale: Ending = |b, rows, _| b.with_scalar(BinaryKind::Multiply, rows, 33.75);
    let scaled: (_, _, Operands) = ("a scale", scale, |_, _, _| vec![]);
    for target in widths() {
        let mut calls = Calls::default();
        for (place, &format) in WeightFormat::ALL.iter().enumerate() {
            let endings = endings().into_iter().filter(|(what, ..)| !what.contains("half")).skip(1);
            for (case, (what, ending, operands)) in [scaled].into_iter().chain(endings).enumerate() {
                let (count, outputs, inputs) = [(1, 37, 64), (3, 20, 67)][(place + case) % 2];
                let elements = activations(format);
                let element = elements[case % elements.len()];
                let seed = 10 * (place * 8 + case) as u64;
                let indices = random(TensorType::new(ElementType::I32, [count]), seed);
                let types = operands(element, count, inputs).into_iter().zip(seed + 2..);
                let mut arguments = vec![packed(format, outputs, inputs, seed + 1), indices];
                arguments.extend(types.map(|(ty, seed)| random(ty, seed)));
                let op = PackedRows { format, outputs, inputs, element };
                // Units of the rows' type, whatever the result's is.
                let wide = if what.contains("another") { ElementType::F32 } else { element };
                let bound = Bound::UlpsOfLargest(4.0 * element.ulp(1.0) / wide.ulp(1.0));
                calls.graph(format!("{op:?}, {what}"), arguments, bound, |b, ids| {
                    let rows = b.op(op.clone(), &ids[..2])?;
                    ending(b, rows, &ids[2..])
                });
            }
        }
        let built = built(&calls, &target, &as_it_is);
        let left = ["stablehlo.add", "stablehlo.multiply", "stablehlo.subtract", "stablehlo.divide"];
        let lines = built.module.text_without_locs.lines();
        let elementwise = lines.filter(|line| left.iter().any(|op| line.contains(op)));
        assert_eq!(elementwise.collect::<Vec<_>>(), Vec::<&str>::new());
        let found = built.load(&calls.weights).violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}

/// Queries, keys and norms on their way to attention and into caches: what kernels take together.
fn ways_to_attention() -> Calls {
    let mut all = Calls::default();
    let rope = |axis| Rope { axis, layout: RopeLayout::HalfSplit };
    for (case, element) in [ElementType::F32, ElementType::Bf16, ElementType::F16].into_iter().enumerate() {
        let seed = 500 + 100 * case as u64;
        let tensor = |shape: &[usize], seed| random(TensorType::new(element, shape), seed);
        let (heads, group, features, half) = (2, 3, 40, [20, 16, 8][case]);
        let offset = Value::new(TensorType::new(ElementType::I32, []), [17.0]);
        let sdpa = Sdpa { mask: vec![MaskTerm::Causal], scale: None, softcap: None, offset: true };
        for (normed, quantized) in [(false, false), (true, false), (true, true)] {
            let kept = TensorType::new(element, [1, heads, 30, features]);
            let [[k, k_scales], [v, v_scales]] = [20, 30].map(|part| integers(&kept, seed + part));
            let dequantize = Dequantize { element };
            let arguments = vec![
                tensor(&[1, 1, if normed { 7 } else { 0 } + heads * group * features], seed),
                tensor(&[1, heads, 30, features], seed + 1),
                tensor(&[1, heads, 30, features], seed + 2),
                offset.clone(),
                tensor(&[1, half], seed + 3),
                tensor(&[1, half], seed + 4),
                tensor(&[features], seed + 5),
                k,
                k_scales,
                v,
                v_scales,
            ];
            let text = format!(
                "attention of rotated queries in {element}, normed: {normed}, quantized: {quantized}"
            );
            all.graph(text, arguments, Bound::UlpsOfLargest(8.0), |b, ids| {
                let mut q = ids[0];
                if normed {
                    q = b.op(Narrow { axis: 2, start: 7, length: heads * group * features }, &[q])?;
                }
                q = b.op(Reshape { shape: vec![1, 1, heads, group, features] }, &[q])?;
                if normed {
                    q = b.op(norm(STYLES[case]), &[q, ids[6]])?;
                }
                q = b.op(rope(1), &[q, ids[4], ids[5]])?;
                q = b.op(Reshape { shape: vec![1, heads, group, 1, features] }, &[q])?;
                let (mut k, mut v) = (ids[1], ids[2]);
                if quantized {
                    (k, v) = (b.op(dequantize.clone(), &ids[7..9])?, b.op(dequantize.clone(), &ids[9..11])?);
                }
                b.op(sdpa.clone(), &[q, k, v, ids[3]])
            });
        }
        let back = |order: [usize; 5]| Permute { order: order.to_vec() };
        let arguments = vec![
            tensor(&[2, 3, 5 + heads * group * features], seed + 60),
            tensor(&[2, heads, 30, features], seed + 61),
            tensor(&[2, heads, 30, features], seed + 62),
            Value::new(TensorType::new(ElementType::I32, [2]), [17.0, 4.0]),
            tensor(&[2, 3, half], seed + 63),
            tensor(&[2, 3, half], seed + 64),
        ];
        let text = format!("attention of rotated queries in {element}, token by token");
        all.graph(text, arguments, Bound::UlpsOfLargest(8.0), |b, ids| {
            let q = b.op(Narrow { axis: 2, start: 5, length: heads * group * features }, &[ids[0]])?;
            let q = b.op(Reshape { shape: vec![2, 3, heads, group, features] }, &[q])?;
            let q = b.op(rope(1), &[q, ids[4], ids[5]])?;
            let q = b.op(back([0, 2, 3, 1, 4]), &[q])?;
            let y = b.op(sdpa.clone(), &[q, ids[1], ids[2], ids[3]])?;
            b.op(back([0, 3, 1, 2, 4]), &[y])
        });
        for ring in [false, true] {
            let numbers = |numbers: [f64; 2]| Value::new(TensorType::new(ElementType::I32, [2]), numbers);
            let arguments = vec![
                tensor(&[2, heads, 11, features], seed + 70),
                tensor(&[2, 3, 5 + heads * features], seed + 71),
                numbers(if ring { [25.0, 3.0] } else { [9.0, 3.0] }),
                numbers([3.0, 2.0]),
                tensor(&[2, 3, half], seed + 72),
                tensor(&[2, 3, half], seed + 73),
                tensor(&[features], seed + 74),
            ];
            let text = format!("three {element} tokens in a cache, ring: {ring}");
            all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
                let new = b.op(Narrow { axis: 2, start: 5, length: heads * features }, &[ids[1]])?;
                let new = b.op(Reshape { shape: vec![2, 3, heads, features] }, &[new])?;
                let new = b.op(norm(STYLES[case]), &[new, ids[6]])?;
                let new = b.op(rope(1), &[new, ids[4], ids[5]])?;
                let new = b.op(Permute { order: vec![0, 2, 1, 3] }, &[new])?;
                b.op(Append { axis: 2, ring }, &[ids[0], new, ids[2], ids[3]])
            });
        }
        for (ring, normed, rotated) in [
            (false, false, false),
            (false, false, true),
            (false, true, true),
            (true, true, true),
            (true, true, false),
        ] {
            let number = |number: f64| Value::new(TensorType::new(ElementType::I32, []), [number]);
            let arguments = vec![
                tensor(&[1, heads, 11, features], seed + 40),
                tensor(&[1, 1, 5 + heads * features], seed + 41),
                number(if ring { 25.0 } else { 9.0 }),
                number(1.0),
                tensor(&[1, half], seed + 42),
                tensor(&[1, half], seed + 43),
                tensor(&[features], seed + 44),
            ];
            let text =
                format!("a {element} token in a cache, ring: {ring}, normed: {normed}, rotated: {rotated}");
            all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
                let mut new = b.op(Narrow { axis: 2, start: 5, length: heads * features }, &[ids[1]])?;
                new = b.op(Reshape { shape: vec![1, 1, heads, features] }, &[new])?;
                if normed {
                    new = b.op(norm(STYLES[case]), &[new, ids[6]])?;
                }
                if rotated {
                    new = b.op(rope(1), &[new, ids[4], ids[5]])?;
                }
                new = b.op(Reshape { shape: vec![1, heads, 1, features] }, &[new])?;
                b.op(Append { axis: 2, ring }, &[ids[0], new, ids[2], ids[3]])
            });
        }
        let arguments = vec![
            tensor(&[2, 3, heads, features], seed + 6),
            tensor(&[2, 3, half], seed + 7),
            tensor(&[2, 3, half], seed + 8),
            tensor(&[features], seed + 9),
        ];
        let text = format!("rotated norms in {element}");
        all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
            let x = b.op(norm(STYLES[case]), &[ids[0], ids[3]])?;
            b.op(rope(1), &[x, ids[1], ids[2]])
        });
        let arguments =
            vec![tensor(&[3, 37], seed + 10), tensor(&[37], seed + 11), tensor(&[3, 37], seed + 12)];
        let text = format!("a norm that is added in {element}");
        all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
            let normed = b.op(norm(STYLES[case]), &[ids[0], ids[1]])?;
            b.binary(BinaryKind::Add, ids[2], normed)
        });
    }
    all
}

#[test]
fn attention_and_caches_swallow_norm_and_rotation() {
    let calls = ways_to_attention();
    for target in widths() {
        let built = built(&calls, &target, &as_it_is);
        let dispatches = built.module.text_without_locs.matches("= flow.dispatch").count();
        assert_eq!(dispatches, calls.calls.len(), "one for each call");
        let found = built.load(&calls.weights).violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}

/// Attention whose results lose their last features, as in latent attention. Three queries move their
/// token axis before the head axis first.
fn attention_in_parts() -> Calls {
    let mut all = Calls::default();
    let (heads, keys) = (3, 30);
    let elements = [ElementType::F32, ElementType::Bf16, ElementType::F16];
    for (case, (features, length)) in [(40, 24), (300, 263), (576, 512)].into_iter().enumerate() {
        for queries in [1, 3] {
            let element = elements[case];
            let seed = 900 + 10 * case as u64 + queries as u64;
            let arguments = vec![
                random(TensorType::new(element, [2, heads, queries, features]), seed),
                random(TensorType::new(element, [2, keys, features]), seed + 4),
                Value::new(TensorType::new(ElementType::I32, [2]), [17.0, 4.0]),
            ];
            let sdpa = Sdpa { mask: vec![MaskTerm::Causal], scale: None, softcap: None, offset: true };
            let text = format!("{length} of {features} features of {queries} queries in {element}");
            all.graph(text, arguments, Bound::UlpsOfLargest(8.0), |b, ids| {
                let mut y = b.op(sdpa.clone(), &[ids[0], ids[1], ids[1], ids[2]])?;
                if queries > 1 {
                    y = b.op(Permute { order: vec![0, 2, 1, 3] }, &[y])?;
                }
                b.op(Narrow { axis: 3, start: 0, length }, &[y])
            });
        }
    }
    all
}

#[test]
fn attention_computes_only_the_features_that_are_read() {
    let calls = attention_in_parts();
    for target in widths() {
        let built = built(&calls, &target, &as_it_is);
        let text = &built.module.text_without_locs;
        assert_eq!(text.matches("= flow.dispatch").count(), 6 + 4, "four calls prepare their queries");
        assert_eq!(text.matches("stablehlo.").count(), 0, "{text}");
        let found = built.load(&calls.weights).violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}
