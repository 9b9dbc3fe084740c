//! Forms of the lowered text that other systems got wrong, accepted by iree-compile and computing what they mean.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use ops::ops::{BinaryKind, UnaryKind};
use ops::{Bound, Value};
use support::*;
use trace::{Trace, functions};
use tracewright_tests::calls::{WeightValues, entry, evaluate, op, random, ty};

/// Calls every entry point with made-up arguments and compares with the evaluator, bit by bit or within `bound`.
fn check(trace: &Trace, weights: &WeightValues, bound: Bound) -> lower::Module {
    let built = built(trace);
    let program = built.load(weights);
    let mut failures = Vec::new();
    for signature in &built.module.signatures {
        let argument = |(i, a): (usize, &trace::Argument)| random(a.ty.clone(), i as u64 + 1);
        let arguments: Vec<Value> = signature.arguments.iter().enumerate().map(argument).collect();
        let expected = evaluate(trace, &signature.name, &arguments, weights);
        let found = program.call(&signature.name, &arguments);
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.ty, found.ty, "{}", signature.name);
            if let Some((i, e, f)) = bound.first_violation(expected, found) {
                failures.push(format!("{}: element {i} is {f}, expected {e}", signature.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    built.module
}

#[test]
fn s5_s6_s7_s14_s15_s16_s17_s18_forms_are_accepted_and_right() {
    let mut trace = Trace::default();
    entry(&mut trace, "s5_permute", &[ty("f32[2,3,4]")], |b, x| {
        Ok(vec![b.op(op("permute order=[0,2,1]"), x)?])
    });
    entry(&mut trace, "s6_narrow", &[ty("f32[2,8]")], |b, x| {
        Ok(vec![b.op(op("narrow axis=1 start=2 length=4"), x)?])
    });
    entry(&mut trace, "s7_split", &[ty("f32[3,8]")], |b, x| {
        let chunks = functions::split(b, x[0], 1, &[4, 4])?;
        Ok(vec![b.with_scalar(BinaryKind::Maximum, chunks[1], 0.0)?])
    });
    // The made-up indices lie in −100..=100: too low, right, too high.
    for (rank, indices) in ["i32[]", "i32[3]", "i32[2,3]", "i32[2,3,1]"].iter().enumerate() {
        let types = [ty("f32[70,5]"), ty(indices)];
        entry(&mut trace, &format!("s14_gather_{rank}"), &types, |b, x| Ok(vec![b.op(op("gather"), x)?]));
    }
    entry(&mut trace, "s17_concatenate", &[ty("bf16[2,3]"), ty("bf16[2,5]"), ty("bf16[2,1]")], |b, x| {
        Ok(vec![b.op(op("concatenate axis=1"), x)?])
    });
    entry(&mut trace, "s18_batched_product", &[ty("f32[2,3,4,1]"), ty("f32[2,3,1,6]")], |b, x| {
        // One term a sum, so that the answer is exact.
        let text = "left_batch=[0,1] right_batch=[0,1] left_contract=[3] right_contract=[2] element=f32";
        Ok(vec![b.op(op(&format!("dot_general {text}")), x)?])
    });
    let module = check(&trace, &WeightValues::new(), Bound::Exact);
    for form in [
        "stablehlo.transpose %arg0, dims = [0, 2, 1] : (tensor<2x3x4xf32>) -> tensor<2x4x3xf32>",
        "stablehlo.slice %arg0 [0:2, 2:6] : (tensor<2x8xf32>) -> tensor<2x4xf32>",
        "\"stablehlo.gather\"(",
        "dim = 1 : (tensor<2x3xbf16>, tensor<2x5xbf16>, tensor<2x1xbf16>) -> tensor<2x9xbf16>",
        "batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2]",
    ] {
        assert!(module.text.contains(form), "{form}");
    }
}

/// One layer called three times: `x ← tanh(x · wᵀ) + x`, and what it was given.
const LAYERS: &str = r#"function @layer prefix="layers.*" {
  %0 = input 0 "x" () : f32[2,3] from "layers.*" at "toy.rs":1
  %1 = parameter "layers.*.w" () : f32[3,3] from "layers.*" at "toy.rs":2
  %2 = linear (%0, %1) : f32[2,3] from "layers.*" at "toy.rs":2
  %3 = unary kind=tanh (%2) : f32[2,3] from "layers.*" at "toy.rs":2
  %4 = parameter "scale" () : f32[2,3] from "scale" at "toy.rs":3
  %5 = binary kind=multiply (%3, %4) : f32[2,3] from "layers.*" at "toy.rs":3
  %6 = binary kind=add (%5, %0) : f32[2,3] from "layers.*" at "toy.rs":3
  return %6 "y"
  return %0 "x"
}

entry @main {
  %0 = input 0 "x" () : f32[2,3] from "" at "toy.rs":9
  %1 = call @layer prefix="layers.0" (%0) : [f32[2,3],f32[2,3]] from "layers.0" at "toy.rs":9
  %2 = result 0 (%1) : f32[2,3] from "layers.0" at "toy.rs":9
  %3 = call @layer prefix="layers.1" (%2) : [f32[2,3],f32[2,3]] from "layers.1" at "toy.rs":9
  %4 = result 0 (%3) : f32[2,3] from "layers.1" at "toy.rs":9
  %5 = call @layer prefix="layers.2" (%4) : [f32[2,3],f32[2,3]] from "layers.2" at "toy.rs":9
  %6 = result 0 (%5) : f32[2,3] from "layers.2" at "toy.rs":9
  %7 = result 1 (%5) : f32[2,3] from "layers.2" at "toy.rs":9
  return %6 "y"
  return %7 "before"
}
"#;

#[test]
fn s22_a_layer_called_three_times_reads_its_own_weights() {
    let trace: Trace = LAYERS.parse().unwrap();
    let weights: WeightValues =
        trace.parameters().unwrap().into_iter().zip(50..).map(|(p, i)| (p.key, random(p.ty, i))).collect();
    assert_eq!(weights.keys().collect::<Vec<_>>(), ["layers.0.w", "layers.1.w", "layers.2.w", "scale"]);
    let module = check(&trace, &weights, Bound::UlpsOfLargest(16.0));
    assert_eq!(module.text.matches("func.func private @layer(").count(), 1);
    assert_eq!(module.text.matches(" = call @layer(").count(), 3);
    // The weights matter, each of them.
    let answer =
        |weights: &WeightValues| evaluate(&trace, "main", &[random(ty("f32[2,3]"), 1)], weights).remove(0);
    for key in weights.keys() {
        let mut other = weights.clone();
        other.get_mut(key).unwrap().data.iter_mut().for_each(|x| *x = 0.25 - *x);
        assert_ne!(answer(&weights), answer(&other), "{key}");
    }
}

/// A table too large to be written where it is used, two functions that read it.
#[test]
fn shared_constants_keep_their_bits() {
    let table = "constant value=f32[300,3] rope_table sin scaling=1.0 inv_freq=[1.0,0.25,0.0625]";
    let mut trace = Trace::default();
    entry(&mut trace, "table", &[], |b, _| Ok(vec![b.op(op(table), &[])?]));
    entry(&mut trace, "negated", &[], |b, _| {
        let table = b.op(op(table), &[])?;
        Ok(vec![b.unary(UnaryKind::Negate, table)?])
    });
    let module = check(&trace, &WeightValues::new(), Bound::Exact);
    assert_eq!(module.text.matches("util.global private").count(), 1);
}

/// Equal numbers that an operation makes of constants; iree-compile 3.13 takes one of them for their sum.
#[test]
fn sums_of_constants_have_all_their_terms() {
    let mut trace = Trace::default();
    let threes = "constant value=f32[2,3] splat 3.0";
    entry(&mut trace, "sum", &[], |b, _| {
        let threes = b.op(op(threes), &[])?;
        let negated = b.unary(UnaryKind::Negate, threes)?;
        Ok(vec![b.op(op("reduce kind=add axes=[1]"), &[negated])?])
    });
    entry(&mut trace, "norm", &[ty("f32[3]")], |b, x| {
        let threes = b.op(op(threes), &[])?;
        Ok(vec![b.op(op("rms_norm epsilon=0.0 style=scale"), &[threes, x[0]])?])
    });
    check(&trace, &WeightValues::new(), Bound::Ulps(4.0));
}
