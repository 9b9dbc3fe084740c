//! Faults that a transformer may have and still speak, planted into the trace of a network that passes: each must
//! turn the comparison with transformers red.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use tracewright::ops::ops::{Binary, BinaryKind, Constant, Permute, Reshape, RmsNorm, Sdpa};
use tracewright::ops::{ElementType, InferError, Literal, Op, Real, RopeTable, TensorType};
use tracewright::trace::{Builder, NodeId};
use tracewright_tests::golden::{Golden, Report, Sizes, build, check};
use tracewright_tests::rewrite::rewrite;

/// Two layers, two key-value heads with three query heads each.
const FIXTURE: &str = "llama-untied";

type Replaced = Result<Option<NodeId>, InferError>;

/// How the network compares after `replace` went over its trace. Token by token, most faults show as well as in
/// longer chunks, and compile sooner.
fn report(chunk: usize, replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced) -> Report {
    let golden = Golden::fixture(FIXTURE).unwrap();
    let edit = |trace| {
        let faulty = rewrite(&trace, replace)?;
        faulty.verify()?;
        Ok(faulty)
    };
    let subject =
        build(&golden.model, &Sizes { chunk, ..Sizes::of(&golden) }, &["prefill", "decode"], edit).unwrap();
    check(&golden, &subject).unwrap()
}

/// Asserts that a fault is found.
fn red(name: &str, chunk: usize, replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced) {
    let report = report(chunk, replace);
    println!("{name}: {report}");
    assert!(!report.passes(), "{name} went unnoticed: {report}");
}

#[test]
fn without_a_fault_the_rewritten_trace_passes() {
    let report = report(1, |_, _, _| Ok(None));
    assert!(report.passes(), "{report}");
}

/// Each query sees one key of the future.
#[test]
fn the_causal_mask_off_by_one() {
    red("mask off by one", 8, |b, op, operands| {
        let (Op::Sdpa(sdpa), &[q, k, v, offset]) = (op, operands) else { return Ok(None) };
        assert_eq!((sdpa.mask.len(), sdpa.offset), (1, true));
        let value = Literal::splat(TensorType::new(ElementType::I32, []), 1.0);
        let one = b.op(Constant { value }, &[])?;
        let later = b.op(Binary { kind: BinaryKind::Add }, &[offset, one])?;
        b.op(Sdpa::clone(sdpa), &[q, k, v, later]).map(Some)
    });
}

/// 10,000 becomes about 10,093.
#[test]
fn another_rope_base() {
    red("rope base", 1, |b, op, _| {
        let Op::Constant(constant) = op else { return Ok(None) };
        let Some(table) = constant.value.as_rope_table() else { return Ok(None) };
        let slower = |f: &Real| Real(f64::from(f.0.powf(1.001) as f32));
        let table = RopeTable { inv_freq: table.inv_freq.iter().map(slower).collect(), ..table.clone() };
        let value = Literal::rope_table(constant.value.ty().element, table);
        b.op(Constant { value }, &[]).map(Some)
    });
}

/// 1e-5 becomes 1e-6.
#[test]
fn another_norm_epsilon() {
    red("norm epsilon", 1, |b, op, operands| {
        let Op::RmsNorm(norm) = op else { return Ok(None) };
        assert_eq!(norm.epsilon, Real(1e-5));
        b.op(RmsNorm { epsilon: Real(1e-6), ..norm.clone() }, operands).map(Some)
    });
}

/// The features of q are read as `[G, K, E]` where they are `[K, G, E]`.
#[test]
fn the_order_of_heads() {
    red("head order", 1, |b, op, operands| {
        let (Op::Sdpa(sdpa), &[q, k, v, offset]) = (op, operands) else { return Ok(None) };
        let &[batch, heads, groups, queries, features] = &b.ty(q).shape[..] else { panic!("grouped heads") };
        assert_eq!((heads, groups), (2, 3));
        let q = b.op(Reshape { shape: vec![batch, groups, heads, queries, features] }, &[q])?;
        let q = b.op(Permute { order: vec![0, 2, 1, 3, 4] }, &[q])?;
        b.op(Sdpa::clone(sdpa), &[q, k, v, offset]).map(Some)
    });
}

#[test]
fn k_and_v_swapped() {
    red("k and v swapped", 1, |b, op, operands| {
        let (Op::Sdpa(sdpa), &[q, k, v, offset]) = (op, operands) else { return Ok(None) };
        b.op(Sdpa::clone(sdpa), &[q, v, k, offset]).map(Some)
    });
}
