//! Builds traces with one operation or one function, and the modules for these traces.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![allow(dead_code, reason = "each test file uses its part")]

use ops::{Attribute as _, InferError, Op, Reader, TensorType};
use targets::Target;
use trace::{Builder, Function, FunctionId, NodeId, NodeKind, Output, Provenance, Trace};
use tracewright_lower::{Module, expand, lower};

pub fn op(text: &str) -> Op {
    Op::parse(&mut Reader::new(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A trace with the entry point `@main`. The closure `body` returns the results of the entry point.
pub fn entry(
    inputs: &[&str],
    body: impl FnOnce(&mut Builder<'_>, &[NodeId]) -> Result<Vec<NodeId>, InferError>,
) -> Trace {
    let mut function = Function::new("main", "");
    let provenance = Provenance::new("model.layers.*.self_attn", "models/src/toy.rs", 7);
    let mut b = Builder { function: &mut function, provenance };
    let mut ids = Vec::new();
    for (index, text) in inputs.iter().enumerate() {
        let ty = TensorType::parse(&mut Reader::new(text)).unwrap();
        ids.push(b.push(NodeKind::input(index, format!("x{index}")), vec![ty], &[]));
    }
    let results = body(&mut b, &ids).unwrap();
    function.outputs = results.into_iter().map(|node| Output::new("y", node)).collect();
    let trace = Trace { functions: vec![function], entries: vec![FunctionId(0)] };
    trace.verify().unwrap();
    trace
}

/// A trace with a single operation.
pub fn of_op(text: &str, operands: &[&str]) -> Trace {
    entry(operands, |b, ids| Ok(vec![b.op(op(text), ids)?]))
}

pub fn lowered(trace: &Trace) -> Module {
    let expanded = expand(trace).unwrap();
    expanded.verify().unwrap();
    lower(&expanded, &Target::host()).unwrap()
}

/// The functions of the module without its frame, locations and indentation.
pub fn body(trace: &Trace) -> String {
    let module = lowered(trace);
    let lines = module.text_without_locs.lines().skip(1);
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    lines[..lines.len() - 1].join("\n") + "\n"
}
