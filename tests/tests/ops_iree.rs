//! Every good example of every operation, through IREE: within the operation's bound of the evaluator.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use ops::{Op, TensorType, Value};
use support::*;
use trace::Trace;

struct Case {
    name: String,
    text: String,
    op: Op,
    operands: Vec<Value>,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, examples) in Op::examples() {
        for (i, example) in examples.iter().filter(|e| e.result.is_ok()).enumerate() {
            let seed = |j: usize| (cases.len() * 8 + j) as u64;
            let operands =
                example.operands.iter().enumerate().map(|(j, text)| operand(text, seed(j))).collect();
            let text = format!("{} of {:?}", example.op, example.operands);
            cases.push(Case { name: format!("{name}_{i}"), text, op: op(example.op), operands });
        }
    }
    cases
}

#[test]
fn every_example_in_iree() {
    let cases = cases();
    let mut trace = Trace::default();
    for case in &cases {
        let inputs: Vec<TensorType> = case.operands.iter().map(|v| v.ty.clone()).collect();
        entry(&mut trace, &case.name, &inputs, |b, ids| Ok(vec![b.op(case.op.clone(), ids)?]));
    }
    let built = built(&trace);
    let program = built.load(&Weights::new());
    let mut failures = Vec::new();
    for case in &cases {
        let types: Vec<&TensorType> = case.operands.iter().map(|v| &v.ty).collect();
        let expected =
            case.op.eval(&case.operands.iter().collect::<Vec<_>>(), &case.op.infer(&types).unwrap());
        let found = &program.call(&case.name, &case.operands)[0];
        assert_eq!(found.ty, expected.ty, "{}", case.text);
        let bound = case.op.bound();
        if let Some((index, expected, found)) = bound.first_violation(&expected, found) {
            failures
                .push(format!("{}: element {index} is {found}, expected {expected} {bound:?}", case.text));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
