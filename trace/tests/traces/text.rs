//! Tests the text form: printed text parses to an equal trace, and an error contains the position
//! in the text.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use ops::{ElementType, Literal, Real, RopePart, RopeTable, TensorType};
use tracewright_trace::*;

fn parse(text: &str) -> Trace {
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A trace with two calls of a layer, with constants of every form, and with names that need
/// escapes.
const EVERYTHING: &str = r#"function @layer prefix="layers.*" {
  %0 = input 0 "x" () : bf16[2,3] {B,D} from "layers.*" at "models/src/llama.rs":10
  %1 = parameter "layers.*.w" () : bf16[4,3] {_,D} from "layers.*.proj" at "models/src/llama.rs":11
  %2 = linear (%0, %1) : bf16[2,4] {B,F} from "layers.*.proj" at "models/src/llama.rs":11
  return %2 "wide"
  return %0 "same"
}

entry @main {
  %0 = input 1 "second \"quoted\" \\ and\n\ttabbed" role=extended(original 4096) () : i32[] from "" at "a \"b\".rs":0
  %1 = input 0 "x" () : bf16[2,3] {B,D} from "" at "models/src/llama.rs":20
  %2 = call @layer prefix="layers.0" (%1) : [bf16[2,4],bf16[2,3]] from "layers.0" at "models/src/llama.rs":21
  %3 = result 1 (%2) : bf16[2,3] {B,D} from "layers.0" at "models/src/llama.rs":21
  %4 = call @layer prefix="layers.1" (%3) : [bf16[2,4],bf16[2,3]] from "layers.1" at "models/src/llama.rs":21
  %5 = result 0 (%4) : bf16[2,4] {B,F} from "layers.1" at "models/src/llama.rs":21
  %6 = constant value=f32[2] splat bits 0x7fc01234 () : f32[2] from "nan" at "n.rs":1
  %7 = constant value=f32[2] splat -0.0 () : f32[2] from "zero" at "n.rs":2
  %8 = constant value=bf16[2] dense 0xc17f0080 () : bf16[2] from "dense" at "n.rs":3
  %9 = constant value=f32[0,4] dense 0x () : f32[0,4] from "empty" at "n.rs":4
  %10 = constant value=f32[8,2] rope_table sin scaling=1.5 inv_freq=[1.0,0.01] () : f32[8,2] from "rope" at "n.rs":5
  %11 = constant value=i4[3] dense 0xf107 () : i4[3] from "four" at "n.rs":6
  %12 = rms_norm epsilon=1e-5 style=one_plus (%3, %13) : bf16[2,3] from "norm" at "n.rs":7
  return %5 "out"
  return %7 "out \"2\""
}
"#;

#[test]
fn what_is_printed_reads_back() {
    // The last node of the text refers forward, which has its own test.
    let text: String = EVERYTHING.lines().filter(|l| !l.contains("%13")).map(|l| format!("{l}\n")).collect();
    let trace = parse(&text);
    trace.verify().unwrap();
    assert_eq!(trace.to_string(), text);
    assert_eq!(parse(&trace.to_string()), trace);

    let main = trace.entry("main").unwrap();
    let inputs: Vec<&str> = main.inputs().iter().map(|(name, _)| *name).collect();
    assert_eq!(inputs, ["x", "second \"quoted\" \\ and\n\ttabbed"]);
    let constant = |i: usize| match &main.node(NodeId::new(i)).kind {
        NodeKind::Op(ops::Op::Constant(op)) => op.value.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(constant(6).as_splat(), Some(0x7fc0_1234), "a NaN keeps its payload");
    assert_eq!(constant(6).to_bytes(), [0x34, 0x12, 0xc0, 0x7f, 0x34, 0x12, 0xc0, 0x7f]);
    assert_eq!(constant(7), Literal::splat(TensorType::new(ElementType::F32, [2]), -0.0));
    let inv_freq = vec![Real(1.0), Real(0.01)];
    let table = RopeTable { part: RopePart::Sin, positions: 8, scaling: Real(1.5), inv_freq };
    assert_eq!(constant(10), Literal::rope_table(ElementType::F32, table));
}

/// Changes one piece of a valid trace, and checks the error message.
#[test]
fn errors_give_line_and_column() {
    let cases = [
        ("function @layer", "functoin @layer", "line 1, column 1: expected `function`, found `functoin`"),
        ("%0 = input 0 \"x\" ()", "%1 = input 0 \"x\" ()", "line 2, column 3: expected `%0 =`, found `%1`"),
        ("bf16[4,3]", "bf17[4,3]", "`bf17` is not an element type"),
        (
            "linear (%0, %1)",
            "linaer (%0, %1)",
            "line 4, column 8: expected the name of an operation, found `linaer`",
        ),
        ("linear (%0, %1)", "linear (%0, %2)", "line 4, column 22: expected a node before %2"),
        ("linear (%0, %1)", "linear (%0 %1)", "line 4, column 19: expected `,`, found `%1)`"),
        ("call @layer prefix=\"layers.0\"", "call @lager prefix=\"layers.0\"", "`lager` is none"),
        ("splat -0.0", "splat minus", "expected a real number"),
        ("0xc17f0080", "0xc17f00", "expected 4 bytes for bf16[2]"),
        ("bits 0x7fc01234", "bits 0x17fc01234", "expected at most 8 hex digits"),
        ("inv_freq=[1.0,0.01]", "inv_freq=[1.0]", "expected 2 frequencies"),
        ("rope_table sin", "rope_table tan", "expected one of `cos` `sin`"),
        ("\":10\n", "\":10 more\n", "line 2, column 85: expected `\\n`, found `more`"),
        ("return %2 \"wide\"", "return %7 \"wide\"", "line 5, column 13: expected a node before %3"),
        ("epsilon=1e-5", "epsilon=1e-5e", "expected a real number"),
        ("style=one_plus", "style=two_plus", "expected one of `scale` `wide` `one_plus`"),
        ("epsilon=1e-5 ", "", "expected `epsilon=`"),
        ("(%3, %13)", "(%3, %13)", "line 22, column 54: expected a node before %12"),
        ("\"rope\"", "\"rope", "expected"),
    ];
    for (from, to, expected) in cases {
        assert!(EVERYTHING.contains(from), "{from}");
        let error = EVERYTHING.replacen(from, to, 1).parse::<Trace>().unwrap_err().to_string();
        assert!(error.contains(expected), "{to}: `{error}` lacks `{expected}`");
        assert!(error.starts_with("line "), "{error}");
    }
}

/// Tests text that is cut off anywhere. The parser returns an error with a position or a shorter
/// trace, and never panics.
#[test]
fn truncated_text_is_refused() {
    for end in (0..EVERYTHING.len()).filter(|&i| EVERYTHING.is_char_boundary(i)) {
        if let Ok(trace) = EVERYTHING[..end].parse::<Trace>() {
            assert_eq!(parse(&trace.to_string()), trace);
        }
    }
}
