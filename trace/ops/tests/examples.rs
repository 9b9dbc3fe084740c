//! Tests the examples of every operation: parsing, printing, types, and values that NumPy computed.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use tracewright_ops::{Attribute, InferError, Op, Reader, TensorType, Value};

/// `f32[2,3]` or `f32[2,3] 1,2,3,4,5,6`.
fn operand(text: &str) -> (TensorType, Option<Vec<f64>>) {
    let mut reader = Reader::new(text);
    let ty = TensorType::parse(&mut reader).unwrap();
    let elements = text.split_once(' ').map(|(_, e)| e.split(',').map(|x| x.parse().unwrap()).collect());
    (ty, elements)
}

fn parse(text: &str) -> Op {
    let mut reader = Reader::new(text);
    let op = Op::parse(&mut reader).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert!(reader.at_end(), "{text}: text is left over");
    op
}

#[test]
fn every_operation_has_good_and_bad_examples() {
    for (name, examples) in Op::examples() {
        assert!(examples.iter().any(|e| e.result.is_ok()), "{name} has no good example");
        assert!(examples.iter().any(|e| e.result.is_err()), "{name} has no bad example");
        assert!(examples.iter().all(|e| parse(e.op).name() == name), "{name} has a stranger's example");
    }
}

#[test]
fn every_example_prints_back() {
    for example in Op::examples().iter().flat_map(|(_, e)| e.iter()) {
        let op = parse(example.op);
        let mut text = String::new();
        op.print(&mut text);
        assert_eq!(parse(&text), op, "{text}");
    }
}

#[test]
fn every_example_infers_and_evaluates() {
    for example in Op::examples().iter().flat_map(|(_, e)| e.iter()) {
        let op = parse(example.op);
        let operands: Vec<_> = example.operands.iter().map(|o| operand(o)).collect();
        let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| ty).collect();
        let what = format!("{} of {:?}", example.op, example.operands);
        let inferred: Result<TensorType, InferError> = op.infer(&types);
        match (inferred, example.result) {
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{what}: `{error}` lacks `{expected}`")
            }
            (Ok(ty), Ok(expected)) => {
                let (expected_ty, elements) = operand(expected);
                assert_eq!(ty, expected_ty, "{what}");
                if operands.iter().any(|(_, e)| e.is_none()) {
                    continue;
                }
                let values: Vec<Value> =
                    operands.into_iter().map(|(ty, e)| Value::new(ty, e.unwrap())).collect();
                let found = op.eval(&values.iter().collect::<Vec<_>>(), &ty);
                if let Some(elements) = elements {
                    let bits = |v: &[f64]| v.iter().map(|&x| ty.element.encode(x)).collect::<Vec<_>>();
                    assert_eq!(bits(&found.data), bits(&elements), "{what}: {:?}", found.data);
                }
            }
            (inferred, expected) => panic!("{what}: {inferred:?}, expected {expected:?}"),
        }
    }
}
