//! Quantized weights without kernels: their plain form through IREE against the meaning of the packed one, on
//! processors with and without wide vectors.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use lower::Weights as Stored;
use ops::format::{ActivationBits, GroupPart};
use ops::ops::{GroupedLinear, GroupedRows, Pack, PackedLinear, PackedRows, Quantize};
use ops::{ElementType, Op, TensorType, Value, WeightFormat};
use runtime::CompileOptions;
use support::{Built, compile, compiler};
use targets::{Target, host_features};
use trace::{NodeKind, Quantization};
use tracewright_tests::calls::{Calls, CheckedCall, entry, examples_of, op, random, ty, with_outliers};
use tracewright_tests::leeway::Leeway;
use tracewright_tests::long;

const FORMATS: [WeightFormat; 20] = [
    WeightFormat::Q8,
    WeightFormat::Q4,
    WeightFormat::Q4K,
    WeightFormat::Mxfp4,
    WeightFormat::Q6K,
    WeightFormat::Q5_0,
    WeightFormat::Q5K,
    WeightFormat::Q4_1,
    WeightFormat::Q5_1,
    WeightFormat::Q3K,
    WeightFormat::Q2K,
    WeightFormat::Iq4Nl,
    WeightFormat::Iq4Xs,
    WeightFormat::Iq2,
    WeightFormat::Iq3Xxs,
    WeightFormat::Iq3S,
    WeightFormat::Nvfp4,
    WeightFormat::Uint4G128,
    WeightFormat::Uint3G128,
    WeightFormat::Int8G128,
];

/// Rows, inputs, outputs: one of each, whole groups, what does not divide, and more rows than are multiplied as
/// integers.
const EXTENTS: [[usize; 3]; 8] =
    [[1, 1, 1], [1, 256, 64], [1, 67, 5], [2, 33, 37], [5, 130, 48], [8, 16, 16], [32, 96, 33], [33, 81, 40]];

/// This machine's processor, and what it contains with shorter vectors.
fn levels() -> Vec<Target> {
    let has = |name: &str| host_features().iter().any(|&(feature, has)| has && feature == name);
    let lesser = [("x86-64-v2", "avx2"), ("x86-64-v3", "avx512bw")].into_iter().filter(|(_, more)| has(more));
    let targets = lesser.map(|(name, _)| Target::processor(name)).chain([Target::host()]);
    targets.map(|target| compiler().resolve(&target).unwrap()).collect()
}

fn made(op: impl Into<Op>, weight: &Value) -> Value {
    let op = op.into();
    op.eval(&[weight], &op.infer(&[&weight.ty]).unwrap())
}

/// The parts of a weight in groups; `spoil` may change the bytes of the integers and the scales.
fn parts(format: WeightFormat, weight: &Value, spoil: &dyn Fn(GroupPart, &mut Value)) -> Vec<Value> {
    let part = |&part: &GroupPart| {
        let mut value = made(Quantize { format, part }, weight);
        spoil(part, &mut value);
        value
    };
    format.parts().iter().map(part).collect()
}

/// Products and lookups of weights in groups, and what they are of the same weights in panels.
fn uses(extents: &[[usize; 3]], format: WeightFormat, spoil: &dyn Fn(GroupPart, &mut Value)) -> Calls {
    let mut all = Calls::default();
    let mut add = |plain: Op, packed: Op, arguments: Vec<Value>, operands: [&Value; 2]| {
        let name = format!("call{}", all.calls.len());
        let types: Vec<TensorType> = arguments.iter().map(|value| value.ty.clone()).collect();
        entry(&mut all.trace, &name, &types, |b, ids| Ok(vec![b.op(plain.clone(), ids)?]));
        let result = plain.infer(&types.iter().collect::<Vec<_>>()).unwrap();
        let expected = vec![packed.eval(&operands, &result)];
        let text = format!("{plain:?} of {types:?}");
        all.calls.push(CheckedCall {
            name,
            text,
            arguments,
            expected,
            leeway: vec![Leeway::Within(plain.bound())],
        });
    };
    for (case, &[rows, inputs, outputs]) in extents.iter().enumerate() {
        let seed = 100 * case as u64;
        let element = [ElementType::F32, ElementType::Bf16, ElementType::F16][case % 3];
        let weight = random(TensorType::new(ElementType::F32, [outputs, inputs]), seed);
        let panels = made(Pack { format }, &weight);
        let parts = parts(format, &weight, spoil);
        let x = with_outliers(random(TensorType::new(element, [rows, inputs]), seed + 1));
        let result = if case % 2 == 0 { ElementType::F32 } else { element };
        let activations = ActivationBits::ALL[case / 2 % 3];
        add(
            GroupedLinear { format, element: result, activations }.into(),
            PackedLinear { format, outputs, element: result, activations }.into(),
            [vec![x.clone()], parts.clone()].concat(),
            [&x, &panels],
        );
        let indices = random(TensorType::new(ElementType::I32, [rows]), seed + 2);
        add(
            GroupedRows { format, inputs, element }.into(),
            PackedRows { format, outputs, inputs, element }.into(),
            [parts, vec![indices.clone()]].concat(),
            [&panels, &indices],
        );
    }
    all
}

fn built(calls: &Calls, target: &Target) -> Built {
    let module = lower::lower(&lower::expand(&calls.trace).unwrap(), target).unwrap();
    let vmfb = compile(&module, &CompileOptions::new(target.clone(), true));
    Built { module, vmfb }
}

fn violations(calls: &Calls, target: &Target) -> Vec<String> {
    built(calls, target).load(&calls.weights).violations(calls)
}

fn as_it_is(_: GroupPart, _: &mut Value) {}

#[test]
fn products_and_lookups_on_every_level() {
    let host = compiler().resolve(&Target::host()).unwrap();
    for target in levels() {
        let examples = examples_of(|name| name.starts_with("grouped"));
        assert!(examples.calls.len() > 5);
        let found = violations(&examples, &target);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        let formats = if target == host || long::is_wanted() { &FORMATS[..] } else { &FORMATS[..1] };
        for (place, &format) in formats.iter().enumerate() {
            // In the short form, formats that you can choose have half of the extents, in turn, and the others a quarter.
            // On this machine, the first has all.
            let step = match () {
                () if target == host && place == 0 || long::is_wanted() => 1,
                () if format.facts().choice.is_some() => 2,
                () => 4,
            };
            let extents: Vec<_> = EXTENTS.into_iter().skip(place % step).step_by(step).collect();
            let found = violations(&uses(&extents, format, &as_it_is), &target);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let target = compiler().resolve(&Target::host()).unwrap();
    // A row and several, of more than a group.
    let uses = |format, spoil: &dyn Fn(GroupPart, &mut Value)| uses(&[EXTENTS[1], EXTENTS[4]], format, spoil);
    let swapped = |part, value: &mut Value| {
        if part == GroupPart::Integers {
            let bytes: Vec<u8> = value.to_bytes().into_iter().map(|byte| byte.rotate_left(4)).collect();
            *value = Value::from_bytes(value.ty.clone(), &bytes);
        }
    };
    // In the short form, formats whose parts differ: scales alone, scales of scales, minima, tables, zero points.
    let structures = [
        WeightFormat::Q8,
        WeightFormat::Q4,
        WeightFormat::Q4K,
        WeightFormat::Mxfp4,
        WeightFormat::Q6K,
        WeightFormat::Iq4Xs,
        WeightFormat::Iq2,
        WeightFormat::Uint4G128,
    ];
    for format in FORMATS.into_iter().filter(|format| long::is_wanted() || structures.contains(format)) {
        let next = |part, value: &mut Value| {
            // Of steps those of the minimum.
            if part == GroupPart::Scales {
                value.data.rotate_left(1);
            }
        };
        // The program is one: what differs is what it is given.
        let built = built(&uses(format, &as_it_is), &target);
        let red = |what: &str, calls: &Calls| {
            let found = built.load(&calls.weights).violations(calls);
            assert!(!found.is_empty(), "{format:?}: {what} is not found");
        };
        red("the scale of the next group", &uses(format, &next));
        if format == WeightFormat::Q4 {
            red("the other number of a byte first", &uses(format, &swapped));
        }
    }
}

/// The stored form of a weight that a program uses twice, for a target and an option.
fn stored(target: &Target, weights: Stored) -> Vec<(String, String)> {
    let mut trace = trace::Trace::default();
    entry(&mut trace, "main", &[ty("f32[3,40]"), ty("i32[2]")], |b, x| {
        let parameter = trace::Parameter::new("w", ty("f32[70,40]"));
        let types = vec![parameter.ty.clone()];
        let w = b.push(NodeKind::Parameter(parameter), types, &[]);
        Ok(vec![b.op(op("linear"), &[x[0], w])?, b.op(op("gather"), &[w, x[1]])?])
    });
    let stored = lower::Implementations::of(&trace, &weights, target).unwrap().expand().unwrap();
    let parameters = stored.parameters().unwrap();
    let module = lower::lower(&stored, target).unwrap();
    assert_eq!(module.text.contains("flow.dispatch"), parameters.iter().any(|p| p.is_packed()));
    parameters.into_iter().map(|p| (p.key.clone(), p.ty.to_string())).collect()
}

#[test]
fn what_no_kernel_serves_is_stored_plainly() {
    let q4 = Stored { quantize: Quantization::All(WeightFormat::Q4), kernels: true, ..Stored::default() };
    let plain = [("w", "i8[70,2,16]"), ("w.scales", "f16[70,2]")].map(|(k, t)| (k.to_owned(), t.to_owned()));
    let v3 = compiler().resolve(&Target::processor("x86-64-v3")).unwrap();
    assert_eq!(stored(&v3, q4.clone()), [("w".to_owned(), "i8[5,1,576]".to_owned())]);
    assert_eq!(stored(&v3, Stored { kernels: false, ..q4.clone() }), plain);
    for target in ["riscv64-linux-gnu:generic-rv64:+v", "x86-64-v2"] {
        assert_eq!(stored(&compiler().resolve(&target.parse().unwrap()).unwrap(), q4.clone()), plain);
    }
}
