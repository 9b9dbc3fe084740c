//! Helpers for several test files: traces built by hand, programs compiled from them, made-up numbers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use ops::TensorType;
use trace::{Builder, Node, NodeId, NodeKind, Parameter, Provenance, Trace};
pub use tracewright_tests::in_iree::*;

/// How often each tensor of the checkpoint is stored, and how many bytes the archive has.
pub fn stored(trace: &Trace) -> (BTreeMap<String, usize>, usize) {
    let (mut stored, mut bytes) = (BTreeMap::<String, usize>::new(), 0);
    for parameter in trace.parameters().unwrap() {
        bytes += parameter.ty.bytes();
        for (key, _) in parameter.sources() {
            *stored.entry(key.to_owned()).or_default() += 1;
        }
    }
    (stored, bytes)
}

pub fn parameter(b: &mut Builder<'_>, key: &str, ty: TensorType) -> NodeId {
    b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
}

/// A node that is an operation, with a type that nobody checked.
pub fn node(kind: NodeKind, ty: TensorType) -> Node {
    Node { kind, types: vec![ty], axes: Vec::new(), provenance: Provenance::new("here", "here.rs", 1) }
}

/// Every loop that carries sums, or adds to those in tiles, ends a step before its end.
pub fn one_round_less(text: String) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut edited = String::new();
    for (number, line) in lines.iter().enumerate() {
        let own =
            lines[number + 1..].iter().take_while(|line| !line.contains("scf.for") && line.trim() != "}");
        let sums = line.contains("iter_args") || own.into_iter().any(|line| line.contains("\"tdp"));
        match line.split_once(" to ").filter(|_| line.contains("scf.for") && sums) {
            Some((before, rest)) => {
                let mut words = rest.split(' ');
                let (end, step) = (words.next().unwrap(), words.nth(1).unwrap());
                let name = format!("%less{number}");
                edited += &format!("{name} = arith.subi {end}, {step} : index\n");
                edited += &format!("{before} to {name}{}\n", &rest[end.len()..]);
            }
            None => edited += &format!("{line}\n"),
        }
    }
    edited
}
