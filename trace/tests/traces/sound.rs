//! Tests that the verification accepts valid traces, and reports the errors of invalid traces.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::error::Error as _;

use ops::ops::{Binary, BinaryKind};
use ops::{ElementType, TensorType, Value};
use tracewright_trace::*;

fn parse(text: &str) -> Trace {
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(ElementType::F32, shape)
}

const FROM: &str = r#"from "p" at "f.rs":7"#;

/// A trace with the entry point `@main`, in which `FROM` is the provenance of every node.
fn main_of(nodes: &str) -> Trace {
    let lines = nodes.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines
        .map(|line| if line.starts_with('%') { format!("  {line} {FROM}\n") } else { format!("  {line}\n") });
    parse(&format!("{LAYER}entry @main {{\n{}}}\n", lines.collect::<String>()))
}

/// The layer computes y = x · w.
const LAYER: &str = r#"function @layer prefix="layers.*" {
  %0 = input 0 "x" () : f32[2] from "layers.*" at "f.rs":1
  %1 = parameter "layers.*.w" () : f32[2] from "layers.*" at "f.rs":2
  %2 = binary kind=multiply (%0, %1) : f32[2] from "layers.*" at "f.rs":3
  return %2 "y"
  return %0 "x"
}
"#;

#[test]
fn every_kind_of_broken_trace_is_refused() {
    let broken = [
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = input 1 "y" () : f32[3]
               %2 = binary kind=add (%0, %1) : f32[2]"#,
            "the node %2 of `main` (p, f.rs:7) is not valid\n  because: `add`: operands must have one type, found `f32[2]` and `f32[3]`",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = unary kind=tanh (%0) : f32[3]"#,
            "the node %1 of `main` (p, f.rs:7) has the type `f32[3]`, expected `f32[2]`",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = unary kind=tanh (%0) : bf16[2]"#,
            "has the type `bf16[2]`, expected `f32[2]`",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = input 2 "y" () : f32[2]"#,
            "inputs are not numbered 0, 1, …",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = input 0 "y" () : f32[2]"#,
            "inputs are not numbered 0, 1, …",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2] {B,S}"#,
            "the node %0 of `main`: there are not as many axis names as axes",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = call @layer prefix="layers.0" (%0) : [f32[2]]"#,
            "has the type `f32[2]`, expected `f32[2], f32[2]`",
        ),
        (
            r#"%0 = input 0 "x" () : f32[3]
               %1 = call @layer prefix="layers.0" (%0) : [f32[2],f32[2]]"#,
            "the node %1 of `main`: a call's arguments do not have the types of the function's inputs",
        ),
        (
            r#"%0 = call @layer prefix="layers.0" () : [f32[2],f32[2]]"#,
            "a call's arguments do not have the types",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = call @layer prefix="layers.0" (%0) : [f32[2],f32[2]]
               %2 = unary kind=tanh (%1) : f32[2]"#,
            "the node %2 of `main`: a call is used instead of one of its results",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = call @layer prefix="layers.0" (%0) : [f32[2],f32[2]]
               return %1 "y""#,
            "the node %1 of `main`: a call is returned instead of one of its results",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = call @layer prefix="layers.0" (%0) : [f32[2],f32[2]]
               %2 = result 2 (%1) : f32[2]"#,
            "the node %2 of `main`: a `result` needs a call that has it",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = result 0 (%0) : f32[2]"#,
            "the node %1 of `main`: a `result` needs a call that has it",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = call @layer prefix="layers.0" (%0) : [f32[2],f32[2]]
               %2 = result 0 (%1) : f32[3]"#,
            "has the type `f32[3]`, expected `f32[2]`",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = parameter "w" () : f32[2]
               %2 = parameter "w" () : bf16[2]"#,
            "parameter `w` is declared as `f32[2]` and as `bf16[2]`",
        ),
        (
            r#"%0 = input 0 "x" () : f32[2]
               %1 = call @layer prefix="layers.0" (%0) : [f32[2],f32[2]]
               %2 = parameter "layers.0.w" () : f32[5]"#,
            "parameter `layers.0.w` is declared as",
        ),
    ];
    for (nodes, expected) in broken {
        let error = main_of(nodes).verify().unwrap_err();
        let (mut cause, mut error) = (error.source(), error.to_string());
        while let Some(inner) = cause {
            error += &format!("\n  because: {inner}");
            cause = inner.source();
        }
        assert!(error.contains(expected), "`{error}` lacks `{expected}`");
    }

    let twice = parse(&format!("{LAYER}{LAYER}"));
    assert_eq!(twice.verify().unwrap_err().to_string(), "two functions have the name `layer`");
}

#[test]
fn broken_graphs_that_no_text_can_say_are_refused() {
    let input = |index| Node {
        kind: NodeKind::input(index, format!("x{index}")),
        types: vec![f32s(&[2])],
        axes: vec![],
        provenance: Provenance::new("p", "f.rs", 7),
    };
    let sound = main_of(r#"%0 = input 0 "x" () : f32[2]"#);
    sound.verify().unwrap();
    let refuse = |trace: &Trace, expected: &str| {
        let error = trace.verify().unwrap_err().to_string();
        assert!(error.contains(expected), "`{error}` lacks `{expected}`");
    };

    let mut no_such_result = sound.clone();
    no_such_result.functions[1].outputs.push(Output::new("y", NodeId::new(9)));
    refuse(&no_such_result, "the node %9 of `main`: a result is no node");

    // A function must not call itself or a later function.
    for callee in [1, 2, 77] {
        let mut recursive = sound.clone();
        let call = NodeKind::Call { function: FunctionId(callee), prefix: String::new() };
        recursive.functions[1].push(Node { kind: call, ..input(0) }, &[]);
        refuse(&recursive, "the node %1 of `main`: a call of a function that does not come before");
    }
}

/// Tests that a node keeps the order of its operands, in whatever order petgraph lists the edges.
#[test]
fn s8_operand_order_survives_any_order_of_edges() {
    let ty = f32s(&[1]);
    let provenance = Provenance::new("p", "f.rs", 7);
    // The test passes six operands in each of the 720 orders, and passes two operands twice.
    let mut orders: Vec<Vec<usize>> = vec![vec![]];
    for i in 0..6 {
        let insert = |order: &Vec<usize>, at: usize| [&order[..at], &[i], &order[at..]].concat();
        orders = orders.iter().flat_map(|o| (0..=o.len()).map(move |at| insert(o, at))).collect();
    }
    assert_eq!(orders.len(), 720);
    let mut function = Function::new("f", "");
    let mut builder = Builder { function: &mut function, provenance };
    let input = |b: &mut Builder<'_>, index: usize| {
        b.push(NodeKind::input(index, format!("x{index}")), vec![ty.clone()], &[])
    };
    let inputs: Vec<NodeId> = (0..6).map(|i| input(&mut builder, i)).collect();
    for order in &orders {
        let operands: Vec<NodeId> = order.iter().chain(&order[..2]).map(|&i| inputs[i]).collect();
        let node = builder.op(ops::ops::Concatenate { axis: 0 }, &operands).unwrap();
        assert_eq!(builder.function.operands(node), operands);
    }
    // The order must also survive the text form, and the evaluation of a − b, b − a and a − a.
    let (a, b) = (inputs[0], inputs[1]);
    let results = [(a, b), (b, a), (a, a)]
        .map(|(x, y)| builder.op(Binary { kind: BinaryKind::Subtract }, &[x, y]).unwrap());
    function.outputs = results.map(|node| Output::new("y", node)).into();
    let trace = Trace { functions: vec![function], entries: vec![FunctionId(0)] };
    let trace_again = parse(&trace.to_string());
    assert_eq!(trace_again, trace);
    trace.verify().unwrap();
    let arguments: Vec<Value> =
        (0..6).map(|i| Value::new(ty.clone(), [[10.0, 3.0, 0.0, 0.0, 0.0, 0.0][i]])).collect();
    for trace in [trace, trace_again] {
        let evaluation = Evaluation { parameters: &|_| None, watch: None };
        let found = evaluate(&trace, "f", arguments.clone(), evaluation).unwrap();
        assert_eq!(found.iter().map(|v| v.data[0]).collect::<Vec<_>>(), [7.0, -7.0, 0.0]);
    }
}

/// The trace computes x · w₃ · w₅ − (x · w₃). The layer is a single function, and each call has its
/// own weights.
const CALLS: &str = r#"
    %0 = input 0 "x" () : f32[2]
    %1 = call @layer prefix="layers.3" (%0) : [f32[2],f32[2]]
    %2 = result 0 (%1) : f32[2]
    %3 = call @layer prefix="layers.5" (%2) : [f32[2],f32[2]]
    %4 = result 0 (%3) : f32[2]
    %5 = result 1 (%3) : f32[2]
    %6 = binary kind=subtract (%4, %5) : f32[2]
    %7 = parameter "unused" () : f32[2]
    return %6 "y""#;

#[test]
fn calls_evaluate_with_their_own_weights() {
    let trace = main_of(CALLS);
    trace.verify().unwrap();
    let value = |data: [f64; 2]| Value::new(f32s(&[2]), data);
    let weights = |key: &str| match key {
        "layers.3.w" => Some(value([2.0, 3.0])),
        "layers.5.w" => Some(value([5.0, 7.0])),
        _ => None,
    };
    let mut seen = Vec::new();
    let mut watch = |provenance: &Provenance, prefix: &str, value: &Value| {
        seen.push((provenance.path.to_string(), prefix.to_owned(), value.data.clone()));
    };
    let evaluation = Evaluation { parameters: &weights, watch: Some(&mut watch) };
    let found = evaluate(&trace, "main", vec![value([1.0, 10.0])], evaluation).unwrap();
    assert_eq!(found, [value([8.0, 180.0])]);
    let expected = [
        ("layers.*", "layers.3", [2.0, 30.0]),
        ("layers.*", "layers.5", [10.0, 210.0]),
        ("p", "", [8.0, 180.0]),
    ];
    assert_eq!(seen, expected.map(|(path, prefix, data)| (path.into(), prefix.into(), data.to_vec())));

    let keys: Vec<String> = trace.parameters().unwrap().into_iter().map(|p| p.key).collect();
    assert_eq!(keys, ["layers.3.w", "layers.5.w", "unused"]);
    let counts =
        Counts { functions: 2, nodes: 11, parameters: 3, parameter_elements: 6, parameter_bytes: 24 };
    assert_eq!(trace.counts().unwrap(), counts);
}

#[test]
fn what_cannot_be_evaluated_is_an_error() {
    let trace = main_of(CALLS);
    let value = |ty: TensorType| Value::new(ty.clone(), vec![1.0; ty.count()]);
    let attempt = |name: &str, arguments: Vec<Value>, weight: TensorType| {
        let weights = |key: &str| (key != "layers.5.w").then(|| value(weight.clone()));
        evaluate(&trace, name, arguments, Evaluation { parameters: &weights, watch: None })
            .unwrap_err()
            .to_string()
    };
    let x = value(f32s(&[2]));
    assert_eq!(
        attempt("layer", vec![], f32s(&[2])),
        "the trace has no entry point `layer`; its entry points are [\"main\"]"
    );
    assert_eq!(attempt("main", vec![], f32s(&[2])), "`main` takes arguments of the types (f32[2]), found ()");
    assert_eq!(
        attempt("main", vec![value(f32s(&[3]))], f32s(&[2])),
        "`main` takes arguments of the types (f32[2]), found (f32[3])"
    );
    let lacks = |key: &str| format!("the parameter `{key}` has no value of the type `f32[2]`");
    assert_eq!(attempt("main", vec![x.clone()], f32s(&[2])), lacks("layers.5.w"));
    assert_eq!(attempt("main", vec![x], f32s(&[5])), lacks("layers.3.w"));
}

#[test]
fn a_prefix_is_replaced_at_a_dot_only() {
    for (key, prefix, replacement, expected) in [
        ("layers.*.w", "layers.*", "layers.3", "layers.3.w"),
        ("layers.*", "layers.*", "layers.3", "layers.3"),
        ("layers.*x.w", "layers.*", "layers.3", "layers.*x.w"),
        ("norm.w", "layers.*", "layers.3", "norm.w"),
        ("w", "", "layers.3", "w"),
        ("*.w", "*", "7", "7.w"),
        ("a.*.b.*.w", "a.*.b.*", "a.*.b.2", "a.*.b.2.w"),
    ] {
        assert_eq!(resolve_key(key, prefix, replacement), expected, "{key} {prefix} {replacement}");
    }
}

#[test]
fn elements_of_a_list_share_a_pattern() {
    assert_eq!(key_pattern("model.layers.12.mlp.3"), "model.layers.*.mlp.*");
    assert_eq!(key_pattern("model.layers12.w2"), "model.layers12.w2");
}

#[test]
fn with_entries_keeps_what_they_call() {
    let text =
        format!("{LAYER}{}{}", LAYER.replace("@layer", "@other"), &main_of(CALLS).to_string()[LAYER.len()..]);
    let text = text.replacen("call @layer", "call @other", 1);
    let mut trace = parse(&text);
    trace.entries.push(FunctionId(0));
    trace.verify().unwrap();
    let names = |trace: &Trace| trace.functions.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&trace), ["layer", "other", "main"]);
    let only = trace.with_entries(&["layer"]);
    assert_eq!(names(&only), ["layer"]);
    assert_eq!(names(&trace.with_entries(&["main"])), ["layer", "other", "main"]);
    assert_eq!(names(&trace.with_entries(&["none"])), Vec::<String>::new());
    trace.with_entries(&["main"]).verify().unwrap();
    let renumbered = parse(&text.replace("call @layer", "call @other")).with_entries(&["main"]);
    assert_eq!(names(&renumbered), ["other", "main"]);
    renumbered.verify().unwrap();
}
