//! Tests that a trace computes the same values after all calls are inlined.

use ops::{ElementType, TensorType, Value};
use tracewright_trace::*;

/// A trace with nested blocks: `outer` calls `inner` once with another prefix, and reads a weight
/// that all calls share.
const TEXT: &str = r#"function @inner prefix="blocks.*.parts.*" {
  %0 = input 0 "x" () : f32[2] {D} from "blocks.*.parts.*" at "f.rs":1
  %1 = parameter "blocks.*.parts.*.w" () : f32[2] {D} from "blocks.*.parts.*.w" at "f.rs":2
  %2 = binary kind=multiply (%0, %1) : f32[2] {D} from "blocks.*.parts.*" at "f.rs":3
  return %2 "y"
}

function @outer prefix="blocks.*" {
  %0 = input 0 "x" () : f32[2] {D} from "blocks.*" at "f.rs":4
  %1 = call @inner prefix="blocks.*.parts.0" (%0) : [f32[2]] from "blocks.*.parts.0" at "f.rs":5
  %2 = result 0 (%1) : f32[2] {D} from "blocks.*.parts.0" at "f.rs":5
  %3 = parameter "shared" () : f32[2] {D} from "shared" at "f.rs":6
  %4 = binary kind=add (%2, %3) : f32[2] {D} from "blocks.*" at "f.rs":7
  return %4 "y"
  return %0 "x"
}

entry @main {
  %0 = input 0 "x" () : f32[2] {D} from "" at "f.rs":8
  %1 = input 1 "unused" () : i32[] from "" at "f.rs":8
  %2 = call @outer prefix="blocks.0" (%0) : [f32[2],f32[2]] from "blocks.0" at "f.rs":9
  %3 = result 0 (%2) : f32[2] {D} from "blocks.0" at "f.rs":9
  %4 = call @outer prefix="blocks.1" (%3) : [f32[2],f32[2]] from "blocks.1" at "f.rs":9
  %5 = result 0 (%4) : f32[2] {D} from "blocks.1" at "f.rs":9
  %6 = result 1 (%4) : f32[2] {D} from "blocks.1" at "f.rs":9
  return %5 "y"
  return %6 "before"
}
"#;

const INLINED: &str = r#"entry @main {
  %0 = input 0 "x" () : f32[2] {D} from "" at "f.rs":8
  %1 = input 1 "unused" () : i32[] from "" at "f.rs":8
  %2 = parameter "blocks.0.parts.0.w" () : f32[2] {D} from "blocks.0.parts.0.w" at "f.rs":2
  %3 = binary kind=multiply (%0, %2) : f32[2] {D} from "blocks.0.parts.0" at "f.rs":3
  %4 = parameter "shared" () : f32[2] {D} from "shared" at "f.rs":6
  %5 = binary kind=add (%3, %4) : f32[2] {D} from "blocks.0" at "f.rs":7
  %6 = parameter "blocks.1.parts.0.w" () : f32[2] {D} from "blocks.1.parts.0.w" at "f.rs":2
  %7 = binary kind=multiply (%5, %6) : f32[2] {D} from "blocks.1.parts.0" at "f.rs":3
  %8 = binary kind=add (%7, %4) : f32[2] {D} from "blocks.1" at "f.rs":7
  return %8 "y"
  return %5 "before"
}
"#;

#[test]
fn calls_are_replaced_by_what_they_call() {
    let trace: Trace = TEXT.parse().unwrap();
    trace.verify().unwrap();
    let inlined = trace.inlined();
    inlined.verify().unwrap();
    assert_eq!(inlined.to_string(), INLINED);
    assert_eq!(inlined.parameters(), trace.parameters());
    assert_eq!(inlined.inlined(), inlined);
}

#[test]
fn the_results_are_equal() {
    let trace: Trace = TEXT.parse().unwrap();
    let pair = |a, b| Value::new(TensorType::new(ElementType::F32, [2]), [a, b]);
    let weight = |key: &str| match key {
        "blocks.0.parts.0.w" => Some(pair(2.0, 3.0)),
        "blocks.1.parts.0.w" => Some(pair(5.0, 7.0)),
        "shared" => Some(pair(0.5, 0.25)),
        _ => None,
    };
    let results = |trace: &Trace| {
        let scalar = Value::new(TensorType::new(ElementType::I32, []), [0.0]);
        let evaluation = Evaluation { parameters: &weight, watch: None };
        evaluate(trace, "main", vec![pair(1.0, 2.0), scalar], evaluation).unwrap()
    };
    assert_eq!(results(&trace), [pair(13.0, 44.0), pair(2.5, 6.25)]);
    assert_eq!(results(&trace.inlined()), results(&trace));
}
