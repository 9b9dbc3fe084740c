//! Every kernel against the evaluator, on every feature level that this machine's processor contains.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod attention;
mod fused;
mod memory;
mod tiles;

use std::collections::BTreeSet;

use kernels::{FusedOp, Kernels};
use ops::format::ActivationBits;
use ops::ops::{BinaryKind, Concatenate, Narrow, Pack, PackedExperts, PackedLinear, PackedRows};
use ops::{Bound, ElementType, Op, TensorType, Value, WeightFormat};
use runtime::CompileOptions;
use targets::{Target, host_features};
use trace::NodeKind;
use tracewright_tests::calls::{Calls, CheckedCall, examples_of, random, wire, with_outliers};
use tracewright_tests::emulator::Emulator;
use tracewright_tests::long;
use tracewright_tests::tiles::emulated;

use self::attention::{attention, attention_step};
use crate::support::{Built, compile, compiler, one_round_less};

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
            format if format.groups().is_some() && !has(&"avx512bw") => &["avxvnni"],
            format if format.groups().is_some() => &["avx512bw", "avx512vnni", "amx-int8"],
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

/// All formats. The short form leaves out those that only files have: what stands around a product is the same code in
/// every format, and `every_product_and_lookup_on_every_level` tests how each is unpacked.
fn formats_around() -> impl Iterator<Item = WeightFormat> {
    let is_chosen = |format| WeightFormat::choices().any(|(chosen, _)| chosen == format);
    let all = WeightFormat::ALL.iter().copied();
    all.filter(move |&format| long::is_wanted() || format.element().is_some() || is_chosen(format))
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

/// Matmuls of all sizes share the code of their products and of quantization, so that a module compiles it once.
#[test]
fn matmuls_of_other_sizes_share_functions() {
    let Some((target, _)) = levels().into_iter().next() else { return };
    let counted = |sizes: &[[usize; 2]], format: WeightFormat| {
        let mut calls = Calls::default();
        for (seed, &[inputs, outputs]) in (1..).zip(sizes) {
            let activations = ActivationBits::Mixed;
            let op = PackedLinear { format, outputs, element: ElementType::F32, activations };
            let x = random(TensorType::new(ElementType::F32, [1, inputs]), seed);
            calls.call(op, vec![x, packed(format, outputs, inputs, seed)]);
        }
        let text = lower::lower(&calls.trace, &target).unwrap().text;
        ["func.func private @", "func.func @product_"].map(|word| text.matches(word).count())
    };
    for format in [WeightFormat::F32, WeightFormat::Q8, WeightFormat::Q4K] {
        let [functions, kernels] = counted(&[[256, 64]], format);
        assert!(functions > 0 && kernels == 1, "{format:?}: {functions} functions of {kernels} kernels");
        assert_eq!(counted(&[[256, 64], [512, 96], [1024, 128]], format), [functions, 3], "{format:?}");
    }
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
/// first format tests all extents, and each other every third in turn, or every fifth if only files have it.
fn extents_at(place: usize, format: WeightFormat) -> Vec<[usize; 3]> {
    let step = match place {
        _ if long::is_wanted() => 1,
        0 => 1,
        _ if formats_around().any(|around| around == format) => 3,
        _ => 5,
    };
    EXTENTS.into_iter().skip(place % step).step_by(step).collect()
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
    if format.groups().is_none() { ActivationBits::Eight } else { ActivationBits::ALL[case % 3] }
}

/// Products, of experts too, and lookups in the format at this index. As with extents, the short form tests all sizes of
/// experts with the first format, and one in turn with each other that an option chooses.
fn uses_of(place: usize, extents: &[[usize; 3]], format: WeightFormat) -> Calls {
    let mut all = products_of(extents, format);
    let cases = [[1, 2, 67, 32], [3, 2, 64, 16], [17, 3, 64, 48]].into_iter().enumerate();
    let is_chosen = formats_around().any(|around| around == format);
    let wanted = |case: usize| place == 0 || is_chosen && case == place % 3 || long::is_wanted();
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
            let found = violations(&uses_of(place, &extents_at(place, format), format), &target, &as_it_is);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
    }
}

/// A row with outliers does not change the rows beside it, which have outliers elsewhere or nowhere.
#[test]
fn rows_have_the_bits_that_they_have_alone() {
    const ROWS: usize = 13;
    for (target, mut formats) in levels() {
        // Activations are rounded before a format is read: the short form takes the formats that an option chooses.
        formats
            .retain(|format| format.element().is_none() && formats_around().any(|around| around == *format));
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
    // In the short form the least and the one with all. What is not run is compiled for the latter, in a format of each kind.
    let step = if long::is_wanted() { 1 } else { 2 };
    let once = emulator.is_none() && !long::is_wanted();
    let kinds = [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4K];
    for (name, formats) in ARM.into_iter().step_by(step) {
        if once && name != ARM[2].0 {
            continue;
        }
        let is_compiled = |format: &&WeightFormat| !once || kinds.contains(*format);
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
        if once || formats == WeightFormat::ALL {
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

#[test]
fn what_is_not_finite_stays_so() {
    for (target, formats) in levels() {
        let mut all = Calls::default();
        for format in formats.into_iter().filter(|&format| formats_around().any(|around| around == format)) {
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
        if all.calls.is_empty() {
            continue;
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
    let zeros = |chunk: &mut [u8]| chunk[32..40].rotate_left(1);
    let fifth = |chunk: &mut [u8]| chunk[64..128].fill(0);
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
            WeightFormat::Q5_0 => (704, vec![("fifth bits that are left out", &fifth)]),
            WeightFormat::Q4_1 => (1152, vec![("least numbers that are left out", &fifth)]),
            WeightFormat::Uint4G128 => (1064, vec![("the zero point of another row", &zeros)]),
            _ => (1, vec![]),
        }
    };
    // In the short form those of plain numbers once, and all with faults of their own.
    let is_short = |format: WeightFormat| format == WeightFormat::F32 || !faults(format).1.is_empty();
    let formats = WeightFormat::ALL.iter().copied();
    for format in formats.filter(|&format| long::is_wanted() || is_short(format)) {
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
        // The loop over a row's groups is that of all formats of integers.
        if long::is_wanted() || [WeightFormat::F32, WeightFormat::Q8].contains(&format) {
            let found = violations(&calls, &target, &one_round_less);
            assert!(!found.is_empty(), "{format:?}: a loop that ends one round early is not found");
        }
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
