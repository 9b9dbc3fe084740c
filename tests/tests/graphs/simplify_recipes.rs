//! Recipes of traces that no shipped model has: their names are unique, each is stored once, and the evaluator and
//! IREE compute the same numbers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use support::{built, stored};
use trace::Trace;
use tracewright::bake::unread;
use tracewright::errors::WithCauses;
use tracewright::primitives;
use tracewright::simplify::{Check, Options, Rules, explain};
use tracewright::trace::Ignorable;
use tracewright_tests::calls::{WeightValues, evaluate, random, ty};

/// A function from its header, its nodes in order, and its results.
fn function(header: &str, nodes: &[&str], results: &[usize]) -> String {
    let mut text = format!("{header} {{\n");
    for (i, node) in nodes.iter().enumerate() {
        text.push_str(&format!("  %{i} = {node} from \"a\" at \"a.rs\":1\n"));
    }
    for (i, result) in results.iter().enumerate() {
        text.push_str(&format!("  return %{result} \"r{i}\"\n"));
    }
    text + "}\n"
}

/// A trace and what it is simplified to: it evaluates to the same, its text reads back, and no tensor is stored twice
/// that was stored once.
fn simplified(text: &str) -> (Trace, Trace) {
    let trace: Trace = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    trace.verify().unwrap();
    let (after, _) = primitives(&trace, &Options::default()).unwrap();
    after.verify().unwrap();
    assert_eq!(after.to_string().parse::<Trace>().unwrap(), after);
    let ((before, bytes), (places, more)) = (stored(&trace), stored(&after));
    assert!(places.iter().all(|(key, times)| times <= &before[key]), "{after}");
    assert!(more as f64 <= 1.01 * bytes as f64, "{bytes} became {more}\n{after}");
    let weights = weights(&trace, &after);
    for entry in &trace.entries {
        let function = trace.function(*entry);
        let arguments: Vec<_> = function
            .inputs()
            .iter()
            .enumerate()
            .map(|(i, (_, ty))| random((*ty).clone(), i as u64))
            .collect();
        let [expected, found] = [&trace, &after].map(|t| evaluate(t, &function.name, &arguments, &weights));
        assert_eq!(expected, found, "{after}");
    }
    (trace, after)
}

/// Random tensors of a checkpoint, and what `after` makes of them.
fn weights(trace: &Trace, after: &Trace) -> WeightValues {
    let mut weights = WeightValues::new();
    for parameter in trace.parameters().unwrap() {
        for (key, ty) in parameter.sources() {
            let seed = weights.len() as u64 + 50;
            weights.entry(key.to_owned()).or_insert_with(|| random(ty.clone(), seed));
        }
    }
    for parameter in [trace.parameters().unwrap(), after.parameters().unwrap()].concat() {
        let value = parameter.value(&|key| weights.get(key).cloned()).unwrap();
        weights.insert(parameter.key, value);
    }
    weights
}

fn keys(trace: &Trace) -> Vec<String> {
    trace.parameters().unwrap().into_iter().map(|p| p.key).collect()
}

/// Every operation of recipes, with the weight as first operand and as second, in IREE too.
#[test]
fn recipes_have_names_that_iree_reads() {
    let nodes = [
        "input 0 \"x\" () : f32[2,8]",
        "parameter \"norm.a\" () : f32[8]",
        "parameter \"norm.b\" () : f32[8]",
        "parameter \"norm.c\" () : f32[8]",
        "constant value=f32[8] splat 1.0 () : f32[8]",
        "binary kind=add (%4, %1) : f32[8]",
        "binary kind=multiply (%2, %4) : f32[8]",
        "constant value=f32[8] splat 3.0 () : f32[8]",
        "binary kind=multiply (%7, %2) : f32[8]",
        "binary kind=add (%8, %3) : f32[8]",
        "binary kind=add (%5, %9) : f32[8]",
        "broadcast_in_dim shape=[2,8] axes=[1] (%10) : f32[2,8]",
        "binary kind=multiply (%0, %11) : f32[2,8]",
        "parameter \"w\" () : f32[8,8]",
        "permute order=[1,0] (%13) : f32[8,8]",
        "input 1 \"at\" () : i32[]",
        "dynamic_slice axis=0 length=2 (%14, %15) : f32[2,8]",
    ];
    let text = function("entry @f", &nodes, &[12, 16]);
    let (trace, after) = simplified(&text);
    let keys = keys(&after);
    assert_eq!(keys, ["norm.a~(1.0)add~add(b~(3.0)multiply~addc)", "w~permute.order=[1,0]"], "{after}");
    let weights = weights(&trace, &after);
    let arguments = [random(trace.functions[0].inputs()[0].1.clone(), 1), random(ty("i32[]"), 2)];
    let expected = evaluate(&trace, "f", &arguments, &weights);
    assert_eq!(built(&after).load(&weights).call("f", &arguments), expected);
}

/// Two sums that read the same from left to right are two recipes with two names.
#[test]
fn brackets_tell_recipes_apart() {
    let nodes = [
        "parameter \"a\" () : f32[8]",
        "parameter \"b\" () : f32[8]",
        "parameter \"c\" () : f32[8]",
        "binary kind=multiply (%0, %1) : f32[8]",
        "binary kind=add (%3, %2) : f32[8]",
        "binary kind=add (%1, %2) : f32[8]",
        "binary kind=multiply (%0, %5) : f32[8]",
    ];
    // Each alone, so that each is stored; together they would store a, b and c twice.
    for (result, key) in [(4, "a~multiplyb~addc"), (6, "a~multiply(b~addc)")] {
        let (_, after) = simplified(&function("entry @f", &nodes, &[result]));
        assert_eq!(keys(&after), [key]);
    }
    let (_, after) = simplified(&function("entry @f", &nodes, &[4, 6]));
    assert_eq!(keys(&after), ["a", "b", "c"]);
}

/// A weight that is read elsewhere, twice by one recipe, or by every layer, is not stored again.
#[test]
fn what_is_read_elsewhere_is_not_merged() {
    // One weight and two biases: `w+w`.
    let one = [
        "input 0 \"x\" () : f32[2,8]",
        "parameter \"w\" () : f32[4,8]",
        "parameter \"b\" () : f32[4]",
        "parameter \"c\" () : f32[4]",
        "linear (%0, %1, %2) : f32[2,4]",
        "linear (%0, %1, %3) : f32[2,4]",
    ];
    let (_, after) = simplified(&function("entry @f", &one, &[4, 5]));
    assert!(keys(&after).contains(&"w".to_owned()), "{after}");

    // A layer that is called twice, and an entry that reads a weight of the first.
    let layer = |second: &str| {
        let nodes = [
            "input 0 \"x\" () : f32[2,8]".to_owned(),
            "parameter \"blocks.*.q\" () : f32[8,8]".to_owned(),
            format!("parameter \"{second}\" () : f32[8,8]"),
            "linear (%0, %1) : f32[2,8]".to_owned(),
            "linear (%0, %2) : f32[2,8]".to_owned(),
            "binary kind=add (%3, %4) : f32[2,8]".to_owned(),
        ];
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        function("function @layer prefix=\"blocks.*\"", &nodes, &[5])
    };
    let calls = [
        "input 0 \"x\" () : f32[2,8]",
        "call @layer prefix=\"blocks.0\" (%0) : [f32[2,8]]",
        "result 0 (%1) : f32[2,8]",
        "call @layer prefix=\"blocks.1\" (%2) : [f32[2,8]]",
        "result 0 (%3) : f32[2,8]",
        "parameter \"blocks.0.q\" () : f32[8,8]",
        "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32 (%4, %5) : f32[2,8]",
    ];
    let entry = |last: usize| function("entry @f", &calls[..=last], &[last]);
    let (_, after) = simplified(&(layer("blocks.*.k") + &entry(4)));
    assert_eq!(keys(&after), ["blocks.0.q+k", "blocks.1.q+k"]);
    let (_, after) = simplified(&(layer("blocks.*.k") + &entry(6)));
    assert_eq!(keys(&after), ["blocks.0.k", "blocks.0.q", "blocks.1.k", "blocks.1.q"]);
    // A weight that all layers share would be stored in each.
    let (_, after) = simplified(&(layer("shared") + &entry(4)));
    assert_eq!(keys(&after), ["blocks.0.q", "blocks.1.q", "shared"]);
}

/// A recipe that the trace had before is kept, and what is added beside it ends.
#[test]
fn recorded_recipes_are_kept_whatever_they_cost() {
    let node = "parameter \"w~f32\" = convert to=f32 (\"w\" : bf16[8]) () : f32[8]";
    let trace: Trace = function("entry @f", &[node], &[0]).parse().unwrap();
    trace.verify().unwrap();
    assert_eq!(primitives(&trace, &Options::default()).unwrap().0, trace);

    let nodes = [node, "parameter \"v\" () : bf16[8]", "convert to=f32 (%1) : f32[8]"];
    let trace: Trace = function("entry @f", &nodes, &[0, 2]).parse().unwrap();
    trace.verify().unwrap();
    assert_eq!(keys(&primitives(&trace, &Options::default()).unwrap().0), ["v", "w~f32"]);
}

/// A name that a tensor of the checkpoint has is not given to another, and costs the others nothing.
#[test]
fn a_name_that_is_taken_is_not_given() {
    let nodes = [
        "input 0 \"x\" () : f32[2,8]",
        "parameter \"a\" () : f32[4,8]",
        "parameter \"b\" () : f32[4,8]",
        "parameter \"a+b\" () : f32[2,4]",
        "linear (%0, %1) : f32[2,4]",
        "linear (%0, %2) : f32[2,4]",
        "binary kind=add (%4, %3) : f32[2,4]",
        "parameter \"y\" () : f32[4,4]",
        "parameter \"z\" () : f32[4,4]",
        "linear (%6, %7) : f32[2,4]",
        "linear (%6, %8) : f32[2,4]",
    ];
    let (_, after) = simplified(&function("entry @f", &nodes, &[5, 9, 10]));
    assert_eq!(keys(&after), ["a", "a+b", "b", "y+z"]);
}

/// A recipe is a tree: what doubles with each node of the graph is not written out.
#[test]
fn recipes_stay_small() {
    let mut nodes = vec!["parameter \"w\" () : f32[4]".to_owned()];
    nodes.extend((0..40).map(|i| format!("binary kind=add (%{i}, %{i}) : f32[4]")));
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let (_, after) = simplified(&function("entry @f", &nodes, &[40]));
    assert_eq!(keys(&after), ["w"]);
}

/// A weight that no result depends on leaves the archive, and may stay in the checkpoint.
#[test]
fn a_weight_without_effect_may_stay_in_the_checkpoint() {
    let nodes = [
        "input 0 \"x\" () : f32[4]",
        "parameter \"sink\" () : f32[4]",
        "constant value=i1[4] splat 1.0 () : i1[4]",
        "select (%2, %0, %1) : f32[4]",
        "parameter \"w\" () : f32[4]",
        "binary kind=add (%3, %4) : f32[4]",
    ];
    let (trace, after) = simplified(&function("entry @f", &nodes, &[5]));
    assert_eq!(keys(&after), ["w"]);
    let unread = unread(&trace.parameters().unwrap(), &after.parameters().unwrap());
    assert_eq!(unread, [Ignorable::Unread("sink".into())]);
}

/// Classes that contain terms of themselves are explained too, and what is off explains what was recorded.
#[test]
fn explanations_end() {
    let nodes = [
        "input 0 \"x\" () : f32[4,6]",
        "permute order=[0,1] (%0) : f32[4,6]",
        "input 1 \"y\" () : f32[4,3]",
        "concatenate axis=1 (%1, %2) : f32[4,9]",
        "narrow axis=1 start=2 length=3 (%3) : f32[4,3]",
        "unary kind=negate (%4) : f32[4,3]",
    ];
    let trace: Trace = function("entry @f", &nodes, &[5]).parse().unwrap();
    let options = Options::default();
    let (after, _) = tracewright::simplify::simplify(&trace, &options);
    for node in 0..after.functions[0].len() {
        let explanation = explain(&trace, &options, "f", node).unwrap();
        assert!(explanation.steps.iter().all(|step| step.check == Check::Equal), "{explanation}");
    }
    let off = Options { rules: Rules::Off, ..options };
    let explanation = explain(&trace, &off, "f", 4).unwrap();
    assert_eq!((explanation.recorded.as_str(), explanation.steps.len()), ("%4", 0));
    assert!(explain(&trace, &off, "f", 6).is_err());
}

/// Recipes are of few operations, wherever they come from.
#[test]
fn a_recipe_of_other_operations_is_refused() {
    let node = "parameter \"w~\" = narrow axis=0 start=0 length=2 (\"w\" : f32[8]) () : f32[2]";
    let refused = |trace: Trace| WithCauses(&trace.verify().unwrap_err()).to_string();
    let trace = function("entry @f", &[node], &[0]).parse::<Trace>();
    let error = trace.map_or_else(|error| error.to_string(), refused);
    assert!(error.contains("`recipe`: an operation is narrow, expected constant, permute"), "{error}");
    let node = "parameter \"w~\" = convert to=f16 (\"w\" : f32[8]) () : f32[8]";
    let trace = function("entry @f", &[node], &[0]).parse::<Trace>();
    let error = trace.map_or_else(|error| error.to_string(), refused);
    assert!(error.contains("type"), "{error}");
}
