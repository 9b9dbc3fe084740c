//! Tests properties of every module: weights, functions and calls, locations, and operations that a
//! module never contains.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use expect_test::expect;
use ops::Op;
use support::*;
use targets::Target;
use trace::Trace;
use tracewright_lower::{LowerError, location, lower};

/// A trace with three calls of the same layer. The layer calls another function.
const LAYERS: &str = r#"function @inner prefix="layers.*.mlp" {
  %0 = input 0 "x" () : f32[2,3] from "layers.*.mlp" at "models/src/toy.rs":1
  %1 = parameter "layers.*.mlp.w" () : f32[3,3] from "layers.*.mlp" at "models/src/toy.rs":2
  %2 = linear (%0, %1) : f32[2,3] from "layers.*.mlp" at "models/src/toy.rs":2
  return %2 "y"
}

function @layer prefix="layers.*" {
  %0 = input 0 "x" () : f32[2,3] from "layers.*" at "models/src/toy.rs":11
  %1 = parameter "layers.*.norm" () : f32[3] from "layers.*.norm" at "models/src/toy.rs":12
  %2 = parameter "shared" () : f32[3] from "shared" at "models/src/toy.rs":13
  %3 = rms_norm epsilon=1e-5 style=scale (%0, %1) : f32[2,3] from "layers.*.norm" at "models/src/toy.rs":12
  %4 = call @inner prefix="layers.*.mlp" (%3) : [f32[2,3]] from "layers.*.mlp" at "models/src/toy.rs":14
  %5 = result 0 (%4) : f32[2,3] from "layers.*.mlp" at "models/src/toy.rs":14
  %6 = rms_norm epsilon=1e-5 style=one_plus (%5, %2) : f32[2,3] from "shared" at "models/src/toy.rs":13
  return %6 "y"
  return %3 "normed"
}

entry @main {
  %0 = input 0 "x" () : f32[2,3] from "" at "models/src/toy.rs":20
  %1 = input 1 "start" role=start(context 8) () : i32[] from "" at "models/src/toy.rs":20
  %2 = call @layer prefix="layers.0" (%0) : [f32[2,3],f32[2,3]] from "layers.0" at "models/src/toy.rs":21
  %3 = result 0 (%2) : f32[2,3] from "layers.0" at "models/src/toy.rs":21
  %4 = call @layer prefix="layers.1" (%3) : [f32[2,3],f32[2,3]] from "layers.1" at "models/src/toy.rs":21
  %5 = result 0 (%4) : f32[2,3] from "layers.1" at "models/src/toy.rs":21
  %6 = call @layer prefix="layers.2" (%5) : [f32[2,3],f32[2,3]] from "layers.2" at "models/src/toy.rs":21
  %7 = result 1 (%6) : f32[2,3] from "layers.2" at "models/src/toy.rs":21
  return %7 "y"
  return %1 "start"
}
"#;

fn layers() -> Trace {
    let trace: Trace = LAYERS.parse().unwrap();
    trace.verify().unwrap();
    trace
}

#[test]
fn s22_every_weight_is_a_named_parameter_and_a_repeated_layer_is_one_function() {
    let module = lowered(&layers());
    let lines = |start: &str| module.text.lines().filter(|l| l.trim_start().starts_with(start)).count();
    assert_eq!(lines("util.global private @\"layers."), 6);
    assert_eq!(lines("util.global private @\"shared\" = #flow.parameter.named<\"model\"::\"shared\">"), 1);
    assert_eq!(lines("util.global "), module.parameters.len());
    assert_eq!(lines("func.func private @layer("), 1);
    assert_eq!(lines("func.func "), 3);
    assert_eq!(module.text.matches("= call @layer(").count(), 3);
    let entry = module.text.lines().find(|line| line.contains("func.func @main")).unwrap();
    let header = "  func.func @main(%arg0: tensor<2x3xf32>, %arg1: i32) -> (tensor<2x3xf32>, tensor<i32>) {";
    assert_eq!(entry, header, "arguments are no weights");
    let keys: Vec<&str> = module.parameters.iter().map(|p| p.key.as_str()).collect();
    let expected =
        ["layers.0", "layers.1", "layers.2"].map(|l| [format!("{l}.mlp.w"), format!("{l}.norm")]).concat();
    assert_eq!(keys, [&expected.iter().map(String::as_str).collect::<Vec<_>>()[..], &["shared"]].concat());
    let signature = &module.signatures[0];
    let host = signature.arguments.iter().map(|a| (a.name.as_str(), a.is_host_scalar()));
    assert_eq!(host.collect::<Vec<_>>(), [("x", false), ("start", true)]);
    assert_eq!(signature.results.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["y", "start"]);
    expect![[r#"
        util.global private @"layers.0.mlp.w" = #flow.parameter.named<"model"::"layers.0.mlp.w"> : tensor<3x3xf32>
        util.global private @"layers.0.norm" = #flow.parameter.named<"model"::"layers.0.norm"> : tensor<3xf32>
        util.global private @"layers.1.mlp.w" = #flow.parameter.named<"model"::"layers.1.mlp.w"> : tensor<3x3xf32>
        util.global private @"layers.1.norm" = #flow.parameter.named<"model"::"layers.1.norm"> : tensor<3xf32>
        util.global private @"layers.2.mlp.w" = #flow.parameter.named<"model"::"layers.2.mlp.w"> : tensor<3x3xf32>
        util.global private @"layers.2.norm" = #flow.parameter.named<"model"::"layers.2.norm"> : tensor<3xf32>
        util.global private @"shared" = #flow.parameter.named<"model"::"shared"> : tensor<3xf32>
        func.func private @inner(%arg0: tensor<2x3xf32>, %weight0: tensor<3x3xf32>) -> (tensor<2x3xf32>) {
          %0 = stablehlo.reshape %arg0 : (tensor<2x3xf32>) -> tensor<2x3xf32>
          %1 = stablehlo.dot_general %0, %weight0, contracting_dims = [1] x [1] : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32>
          %2 = stablehlo.reshape %1 : (tensor<2x3xf32>) -> tensor<2x3xf32>
          return %2 : tensor<2x3xf32>
        }
        func.func private @layer(%arg0: tensor<2x3xf32>, %weight0: tensor<3x3xf32>, %weight1: tensor<3xf32>, %weight2: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
          %0 = stablehlo.multiply %arg0, %arg0 : tensor<2x3xf32>
          %1 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
          %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<2xf32>) -> tensor<2x3xf32>
          %4 = stablehlo.constant dense<0x40400000> : tensor<2x3xf32>
          %5 = stablehlo.divide %3, %4 : tensor<2x3xf32>
          %6 = stablehlo.constant dense<0x3727C5AC> : tensor<2x3xf32>
          %7 = stablehlo.add %5, %6 : tensor<2x3xf32>
          %8 = stablehlo.rsqrt %7 : tensor<2x3xf32>
          %9 = stablehlo.multiply %arg0, %8 : tensor<2x3xf32>
          %10 = stablehlo.broadcast_in_dim %weight1, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
          %11 = stablehlo.multiply %9, %10 : tensor<2x3xf32>
          %12 = call @inner(%11, %weight0) : (tensor<2x3xf32>, tensor<3x3xf32>) -> (tensor<2x3xf32>)
          %13 = stablehlo.multiply %12, %12 : tensor<2x3xf32>
          %14 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %15 = stablehlo.reduce(%13 init: %14) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
          %16 = stablehlo.broadcast_in_dim %15, dims = [0] : (tensor<2xf32>) -> tensor<2x3xf32>
          %17 = stablehlo.constant dense<0x40400000> : tensor<2x3xf32>
          %18 = stablehlo.divide %16, %17 : tensor<2x3xf32>
          %19 = stablehlo.constant dense<0x3727C5AC> : tensor<2x3xf32>
          %20 = stablehlo.add %18, %19 : tensor<2x3xf32>
          %21 = stablehlo.rsqrt %20 : tensor<2x3xf32>
          %22 = stablehlo.multiply %12, %21 : tensor<2x3xf32>
          %23 = stablehlo.constant dense<0x3F800000> : tensor<3xf32>
          %24 = stablehlo.add %weight2, %23 : tensor<3xf32>
          %25 = stablehlo.broadcast_in_dim %24, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
          %26 = stablehlo.multiply %22, %25 : tensor<2x3xf32>
          return %26, %11 : tensor<2x3xf32>, tensor<2x3xf32>
        }
        func.func @main(%arg0: tensor<2x3xf32>, %arg1: i32) -> (tensor<2x3xf32>, tensor<i32>) {
          %0 = tensor.from_elements %arg1 : tensor<i32>
          %1 = util.global.load immutable @"layers.0.mlp.w" : tensor<3x3xf32>
          %2 = util.global.load immutable @"layers.0.norm" : tensor<3xf32>
          %3 = util.global.load immutable @"shared" : tensor<3xf32>
          %4:2 = call @layer(%arg0, %1, %2, %3) : (tensor<2x3xf32>, tensor<3x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
          %5 = util.global.load immutable @"layers.1.mlp.w" : tensor<3x3xf32>
          %6 = util.global.load immutable @"layers.1.norm" : tensor<3xf32>
          %7:2 = call @layer(%4#0, %5, %6, %3) : (tensor<2x3xf32>, tensor<3x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
          %8 = util.global.load immutable @"layers.2.mlp.w" : tensor<3x3xf32>
          %9 = util.global.load immutable @"layers.2.norm" : tensor<3xf32>
          %10:2 = call @layer(%7#0, %8, %9, %3) : (tensor<2x3xf32>, tensor<3x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
          return %10#1, %0 : tensor<2x3xf32>, tensor<i32>
        }
    "#]].assert_eq(&body(&layers()));
}

/// The operations that Tracewright can lower for every target. These are all operations except
/// kernel operations and operations that `bake` computes.
fn portable() -> impl Iterator<Item = (&'static str, &'static [ops::Example])> {
    Op::examples().into_iter().filter(|(name, _)| !name.starts_with("pack") && *name != "quantize")
}

/// One function with all valid examples of all portable operations.
fn everything() -> Trace {
    let mut trace = Trace::default();
    for (name, examples) in portable() {
        for (i, example) in examples.iter().filter(|e| e.result.is_ok()).enumerate() {
            let mut one = of_op(example.op, example.operands);
            one.functions[0].name = format!("{name}_{i}");
            trace.entries.push(trace::FunctionId(trace.functions.len() as u32));
            trace.functions.push(one.functions.remove(0));
        }
    }
    trace.verify().unwrap();
    trace
}

#[test]
fn m6_what_never_occurs() {
    for trace in [everything(), layers()] {
        let module = lowered(&trace);
        for text in [&module.text, &module.text_without_locs] {
            for never in ["custom_call", "xf64", "<f64", " f64", "cosine", "sine", "chlo."] {
                assert!(!text.contains(never), "{never}");
            }
        }
    }
}

#[test]
fn every_statement_says_where_it_comes_from() {
    for trace in [everything(), layers()] {
        let module = lowered(&trace);
        let statements = module.text.lines().filter(|line| line.starts_with("    %"));
        let mut count = 0;
        for line in statements {
            assert!(line.contains(" loc(\"") && line.ends_with(":0))"), "{line}");
            count += 1;
        }
        assert!(count > 10);
        assert!(!module.text_without_locs.contains("loc("));
        let strip = |line: &str| line.split(" loc(").next().unwrap_or_default().to_owned() + "\n";
        assert_eq!(module.text.lines().map(strip).collect::<String>(), module.text_without_locs);
    }
    let module = lowered(&layers());
    let linear = module.text.lines().find(|line| line.contains("stablehlo.dot_general")).unwrap();
    assert!(linear.ends_with(" loc(\"layers.*/mlp\"(\"models/src/toy.rs\":2:0))"), "{linear}");
    let call = module.text.lines().find(|line| line.contains("call @layer")).unwrap();
    assert!(call.ends_with(" loc(\"layers/0\"(\"models/src/toy.rs\":21:0))"), "{call}");
}

/// Checks that each function has its statements, and that the location of each statement leads to
/// the node of the statement.
#[test]
fn statements_are_found_by_function_and_location() {
    let trace = layers();
    let module = lowered(&trace);
    let of = |function: &str| module.statements().filter(|statement| statement.function == function).count();
    let located = module.text.lines().filter(|line| line.contains(" loc(")).count();
    assert_eq!(["inner", "layer", "main"].map(of).iter().sum::<usize>(), located);
    let nodes = trace.functions.iter().flat_map(|function| function.ids().map(|id| function.node(id)));
    let places: BTreeSet<String> = nodes.map(|node| location(&node.provenance)).collect();
    assert!(module.statements().all(|statement| places.contains(statement.location)));
    let product = module.statements().find(|statement| statement.text.contains("dot_general")).unwrap();
    assert_eq!(product.location, "loc(\"layers.*/mlp\"(\"models/src/toy.rs\":2:0))");
    assert!(product.text.starts_with('%'), "{product:?}");
}

#[test]
fn s19_every_operation_lowers() {
    let module = lowered(&everything());
    let bodies = module.text.matches("    return ").count();
    assert_eq!(bodies, portable().flat_map(|(_, e)| e).filter(|e| e.result.is_ok()).count());
    assert_eq!(module.signatures.len(), bodies);
}

#[test]
fn s19_what_cannot_be_lowered_is_an_error() {
    let error = lower(&of_op("linear", &["f32[2,3]", "f32[4,3]"]), &Target::host()).unwrap_err();
    let expected = "the node %2 of `main` is the composite operation `linear`; expand the trace with `expand` before you lower it";
    assert_eq!(error.to_string(), expected);

    // A trace that was not verified.
    let mut broken = of_op("linear", &["f32[2,3]", "f32[4,3]"]);
    broken.functions[0].node_mut(trace::NodeId::new(0)).types[0].shape[1] = 5;
    let error = tracewright_lower::expand(&broken).unwrap_err();
    assert!(matches!(error, LowerError::Infer { node: 2, .. }), "{error}");

    let twice = LAYERS.replace("\"shared\" () : f32[3]", "\"layers.1.norm\" () : f32[5]");
    let error = lower(&twice.parse().unwrap(), &Target::host()).unwrap_err().to_string();
    assert!(error.contains("parameter `layers.1.norm` is declared as"), "{error}");
}

#[test]
fn m6_histogram() {
    let histogram = lowered(&layers()).histogram();
    let expected = [
        ("add", 3),
        ("broadcast_in_dim", 4),
        ("constant", 7),
        ("divide", 2),
        ("dot_general", 1),
        ("multiply", 6),
        ("reduce", 2),
        ("reshape", 2),
        ("rsqrt", 2),
    ];
    assert_eq!(histogram, BTreeMap::from(expected.map(|(op, count)| (op.to_owned(), count))));
    let all = lowered(&of_op("gather", &["f32[7,4]", "i32[2]"])).histogram();
    assert_eq!(all, BTreeMap::from([("gather".to_owned(), 1)]));
}

#[test]
fn large_constants_are_globals_and_shared() {
    let table = "constant value=f32[200,2] rope_table cos scaling=1.0 inv_freq=[1.0,0.5]";
    let trace = entry(&[], |b, _| [table, table].iter().map(|text| b.op(op(text), &[])).collect());
    let module = lowered(&trace);
    assert_eq!(module.text.matches("util.global private @constant0 = dense<\"0x0000803f").count(), 1);
    assert_eq!(module.text.matches("util.global private").count(), 1);
    assert_eq!(module.text.matches("util.global.load immutable @constant0 : tensor<200x2xf32>").count(), 2);
    let splat = lowered(&of_op("constant value=f32[4000] splat 1.0", &[]));
    assert!(!splat.text.contains("util.global"));
}

#[test]
fn what_no_result_needs_is_left_out() {
    let trace = entry(&["f32[2]", "f32[3]"], |b, x| {
        b.op(op("unary kind=tanh"), &[x[1]])?;
        Ok(vec![b.op(op("unary kind=negate"), &[x[0]])?])
    });
    let module = lowered(&trace);
    assert!(!module.text.contains("tanh"));
    assert!(module.text.contains("%arg1: tensor<3xf32>"), "inputs stay: they are the signature");
}

#[test]
fn equal_programs_have_equal_texts_wherever_they_stand() {
    let moved = LAYERS.replace("toy.rs", "other.rs").replace("\":1", "\":11").parse().unwrap();
    let (first, second) = (lowered(&layers()), lowered(&moved));
    assert_ne!(first.text, second.text);
    assert_eq!(first.text_without_locs, second.text_without_locs);
}
