//! Functions of the dsl that are several operations each: IREE's answers are the evaluator's.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use dsl::*;
use ops::{Bound, TensorType, Value};
use support::*;
use trace::Role;
use tracewright_tests::calls::{WeightValues, evaluate};

const B: Axis = Axis("B");
const S: Axis = Axis("S");
const E: Axis = Axis("E");
const N: Axis = Axis("N");
const TAP: Axis = Axis("T");

/// The differences of each column's largest element and each row's smallest.
fn outer(x: Tensor<F32>) -> Tensor<F32> {
    let (columns, rows) = (x.max(B).rename(S, N), x.min(S));
    columns.broadcast(rows) - rows.broadcast(columns)
}

/// A function that is recorded.
type Recorded = fn(Tensor<F32>) -> Tensor<F32>;

#[test]
fn functions_of_several_operations_in_iree() {
    let functions: [(&str, Recorded); 14] = [
        ("argmax", |x| nn::argmax(x, S).to()),
        ("argmax_of_bf16", |x| nn::argmax(x.to::<Bf16>(), B).to()),
        ("largest", |x| nn::topk(x, S, 4).0),
        ("indices", |x| nn::topk(x, S, 4).1.to()),
        ("largest_of_all", |x| nn::topk(x, S, 7).0),
        ("indices_of_all", |x| nn::topk(x, S, 7).1.to()),
        ("largest_of_bf16", |x| nn::topk(x.to::<Bf16>(), B, 2).0.to()),
        ("cumsum", |x| x.cumsum(S)),
        ("cumsum_of_bf16", |x| x.to::<Bf16>().cumsum(S).to()),
        ("cumsum_of_integers", |x| x.less(8).select(x, 9).maximum(-9).to::<I32>().cumsum(B).to()),
        ("concat", |x| Tensor::concat(&[x, x.narrow(S, 1, 2), -x], S)),
        ("stack", |x| Tensor::stack(&[x, x.abs().ln()], E)),
        ("outer", outer),
        ("gelu", |x| nn::relu(nn::gelu(x)).pow(3)),
    ];
    let mut recording = Recording::new(());
    for (name, function) in functions {
        let recorded = recording.entry_with(name, |(), entry| {
            let x = entry.input::<F32>("x", Role::Plain, &[B.of(3), S.of(7)]);
            entry.output("y", Role::Plain, function(x));
        });
        recording = recorded.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let trace = recording.finish().trace;

    let infinite = f64::INFINITY;
    let x = [
        [1., 5., 3., 5., 2., -0., 0.],
        [0., f64::NAN, 7., -infinite, f64::NAN, infinite, 1e-3],
        [-infinite, 2., -infinite, 2., -infinite, -3., -infinite],
    ];
    let x = [Value::new(TensorType::new(F32::element(), [3, 7]), x.concat())];
    let weights = WeightValues::new();
    let built = built(&trace);
    let program = built.load(&weights);
    for (name, _) in functions {
        let (expected, found) = (evaluate(&trace, name, &x, &weights), program.call(name, &x));
        let bound = if name == "gelu" { Bound::UlpsOfLargest(8.0) } else { Bound::Ulps(4.0) };
        assert_eq!(bound.first_violation(&expected[0], &found[0]), None, "{name}: {expected:?} {found:?}");
        // What `torch.argmax` gives.
        match name {
            "argmax" => assert_eq!(found[0].data[..], [1., 1., 1.]),
            "argmax_of_bf16" => assert_eq!(found[0].data[..], [0., 1., 1., 0., 1., 1., 1.]),
            _ => {}
        }
    }
}

/// The numbers are those of `torch.nn.functional.conv1d`.
#[test]
fn convolutions_in_iree() {
    let number = |i: usize, modulus: usize, less: f64| (i % modulus) as f64 - less;
    let x = (0..14).map(|i| number(i / 2 * 5 + i % 2 * 3, 11, 4.0));
    let x = Value::new(TensorType::new(F32::element(), [7, 2]), x);
    let cases: [([usize; 3], &[f64]); 4] = [
        ([3, 1, 1], &[-9., 27., 49., -13., -13., -1., 13., 22., -16., -10., 10., 13., -11., -22.]),
        ([3, 2, 1], &[-9., 27., -13., -1., -16., -10., -11., -22.]),
        ([4, 3, 0], &[52., -16., -32., 10.]),
        ([2, 2, 3], &[0., 0., -4., 6., -7., -16., -9., -19., -11., -22., 0., 0.]),
    ];
    let name = |sizes: [usize; 3]| format!("conv1d_{}_{}_{}", sizes[0], sizes[1], sizes[2]);
    let mut recording = Recording::new(());
    for (sizes @ [width, stride, padding], _) in cases {
        let recorded = recording.entry_with(&name(sizes), |(), entry| {
            let x = entry.input::<F32>("x", Role::Plain, &[S.of(7), E.of(2)]);
            let taps = entry.input::<F32>("taps", Role::Plain, &[N.of(2), E.of(2), TAP.of(width)]);
            entry.output("y", Role::Plain, nn::conv1d(x, S, taps, [E, TAP], stride, padding));
        });
        recording = recorded.unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
    }
    let trace = recording.finish().trace;
    let weights = WeightValues::new();
    let built = built(&trace);
    let program = built.load(&weights);
    for (sizes @ [width, ..], expected) in cases {
        let taps = (0..4 * width).map(|i| {
            let (output, channel, tap) = (i / (2 * width), i / width % 2, i % width);
            number(output * 7 + channel * 4 + tap * 3, 9, 3.0)
        });
        let taps = Value::new(TensorType::new(F32::element(), [2, 2, width]), taps);
        let inputs = [x.clone(), taps];
        assert_eq!(program.call(&name(sizes), &inputs)[0].data[..], *expected, "{sizes:?}");
        assert_eq!(evaluate(&trace, &name(sizes), &inputs, &weights)[0].data[..], *expected, "{sizes:?}");
    }
}
