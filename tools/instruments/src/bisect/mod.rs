//! Finds the first node whose values in two variants of a network differ by more than the allowed difference.
//! `bisect` compares the values of nodes in a recorded trace. To get the value of a node, `bisect` exposes
//! the node as an additional result of the function that contains the node. An exposed result contains the
//! value of the same node in every [`Form`], even if the simplifier changes the function. First, `bisect`
//! compares the nodes of the entry point, in which each layer is one node. Then `bisect` selects the first
//! layer whose values differ, and runs the selected layer in the two variants with the same arguments.
//! Finally, `bisect` compares the nodes inside the selected layer. The allowed difference of a whole layer
//! can hide an error inside the layer. Therefore, even if no layer differs, `bisect` compares the nodes
//! inside the first layer of each kind. The compiler cannot fuse an exposed value with its consumer, so a
//! difference can disappear while all values are exposed. If a difference disappears, `bisect` exposes the
//! values one at a time. The allowed difference of a node is a sum: the error bound of the node's operation,
//! plus the effect of operands that already differ between the two variants. The evaluator computes the
//! effect of operands that already differ.

mod activations;
mod baseline;
mod difference;
mod form;
mod language;
pub(crate) mod region;
mod report;
mod xla_form;

use std::collections::HashMap;

use errors::FileError;
use lower::LowerError;
use ops::Value;
use serde::Serialize;
use trace::{EvaluateError, Evaluation, Function, NodeId, NodeKind, Output, Provenance, Signature, Trace};

pub use activations::Activations;
pub use baseline::{Baseline, BisectEngine, CompiledNetwork};
pub use difference::{Difference, Tolerance};
pub use form::{CheckpointValues, CompiledForm, EvaluatedForm, Form};
pub use language::TokenCall;
pub use report::BisectReport;
pub use xla_form::XlaForm;

use difference::{allowances, distance, unrounded};
use region::{Probed, Region};
use tracewright::CallError;
use tracewright::build::LoadError;

/// The reason why two variants cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum BisectError {
    #[error(transparent)]
    Lower(#[from] LowerError),
    #[error(transparent)]
    Load(#[from] LoadError),
    /// XLA cannot build or run the program for an entry point or a layer of the network.
    #[error(transparent)]
    Model(#[from] tracewright::ModelError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    #[error(transparent)]
    File(#[from] FileError),
    /// IREE cannot create the device that runs the network.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// The caller's callback, which observes the comparison, stopped the comparison.
    #[error("the comparison was stopped on request")]
    Stopped,
}

pub struct Bisection<'a> {
    pub subject: &'a dyn Form,
    /// The variant of the network whose values `bisect` assumes to be correct.
    pub reference: &'a dyn Form,
    pub values: &'a CheckpointValues<'a>,
    /// Determines the differences that may occur between two correct variants of the network.
    pub tolerance: Tolerance,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedNode {
    /// The field path of the node, such as `model.layers.0.self_attn`.
    pub path: String,
    pub file: String,
    pub line: u32,
    /// With attributes; for a result of a layer, also its index.
    pub op: String,
    #[serde(rename = "type")]
    pub ty: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedNode {
    pub place: NamedNode,
    /// `None` if not compared, for example for an input.
    pub difference: Option<Difference>,
}

/// The first node at which two variants diverge.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub node: ComparedNode,
    pub operands: Vec<ComparedNode>,
    /// Whether the values differ only if the compiler can fuse the operation with neighbouring operations.
    pub only_together: bool,
    /// Nodes compared after the first that differs, and those beyond the allowed difference.
    pub after: [usize; 2],
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bisected {
    pub compared: usize,
    /// The first node beyond the allowed difference.
    pub finding: Option<Finding>,
    /// For each result of the entry point.
    pub results: Vec<(String, Difference)>,
    pub reference: Vec<Value>,
}

impl Bisection<'_> {
    /// Runs an entry point in both variants, and compares the nodes.
    pub fn compare(
        &self,
        trace: &Trace,
        entry: &str,
        arguments: Vec<Value>,
    ) -> Result<Bisected, BisectError> {
        let region = Region::of_entry(trace, entry, arguments);
        let run = |form: &dyn Form| form.run(region.plain(), &region.arguments).map(only);
        let (subject, reference) = (run(self.subject)?, run(self.reference)?);
        let mut compared = 0;
        let finding = self.first(&region, Some(&subject), &mut compared)?;
        let outputs = region.function().outputs.iter().zip(subject.iter().zip(&reference));
        let results = outputs.map(|(output, (subject, reference))| {
            let allowed = allowances(self.tolerance.layer(reference.ty.element), reference);
            (output.name.clone(), Difference::of(subject, reference, allowed))
        });
        Ok(Bisected { compared, finding, results: results.collect(), reference })
    }

    /// The first node beyond the allowed difference. `plain` are the tested variant's results without exposed
    /// values, if known.
    fn first(
        &self,
        region: &Region,
        plain: Option<&[Value]>,
        compared: &mut usize,
    ) -> Result<Option<Finding>, BisectError> {
        let nodes = region.nodes();
        let together = self.look(region, &nodes, &region.together(&nodes), false)?;
        *compared += nodes.len();
        if let Some(finding) = self.deepest(&together, false, compared)? {
            return Ok(Some(finding));
        }
        for call in region.first_calls() {
            if let Some(finding) = self.within(&together, call, compared)? {
                return Ok(Some(finding));
            }
        }
        let ran;
        let plain = match plain {
            Some(plain) => plain,
            None => {
                ran = only(self.subject.run(region.plain(), &region.arguments)?);
                &ran
            }
        };
        let moved = |(output, plain): (&Output, &Value)| {
            let Some(looked_at) = together.values[0].get(&output.node) else { return false };
            let allowed = allowances(self.tolerance.layer(plain.ty.element), looked_at);
            Difference::of(plain, looked_at, allowed).beyond > 0
        };
        if !region.function().outputs.iter().zip(plain).any(moved) {
            return Ok(None);
        }
        let apart = self.look(region, &nodes, &region.apart(&nodes), true)?;
        self.deepest(&apart, true, compared)
    }

    /// The first exposed node that differs; in a layer's result, the search goes on inside.
    fn deepest(
        &self,
        seen: &Seen<'_>,
        only_together: bool,
        compared: &mut usize,
    ) -> Result<Option<Finding>, BisectError> {
        let Some(first) = seen.differences.iter().position(|(_, difference)| difference.beyond > 0) else {
            return Ok(None);
        };
        let (id, function) = (seen.differences[first].0, seen.region.function());
        let mut read = function.operands(id);
        if let NodeKind::Result { .. } = function.node(id).kind {
            let call = read[0];
            read = function.operands(call);
            if let Some(finding) = self.within(seen, call, compared)? {
                return Ok(Some(finding));
            }
        }
        let node = |id: NodeId| {
            let difference = seen.differences.iter().find(|(known, _)| *known == id);
            ComparedNode {
                place: place(function, id),
                difference: difference.map(|(_, found)| found.clone()),
            }
        };
        let after = &seen.differences[first + 1..];
        Ok(Some(Finding {
            node: node(id),
            operands: read.into_iter().map(node).collect(),
            only_together,
            after: [after.len(), after.iter().filter(|(_, difference)| difference.beyond > 0).count()],
        }))
    }

    /// In a called function, with the tested variant's arguments.
    fn within(
        &self,
        seen: &Seen<'_>,
        call: NodeId,
        compared: &mut usize,
    ) -> Result<Option<Finding>, BisectError> {
        let read = seen.region.function().operands(call);
        let arguments = read.iter().map(|&id| seen.value(self, id, SUBJECT)).collect::<Result<_, _>>()?;
        self.first(&seen.region.of_call(call, arguments), None, compared)
    }

    /// In the order of computation. With `apart`, each exposed node has a function in `probed`.
    fn look<'r>(
        &self,
        region: &'r Region,
        nodes: &[NodeId],
        probed: &Probed,
        apart: bool,
    ) -> Result<Seen<'r>, BisectError> {
        let run = |form: &dyn Form| -> Result<HashMap<NodeId, Value>, BisectError> {
            let results = form.run(&probed.trace, &region.arguments)?;
            let places = nodes.iter().zip(&probed.places);
            Ok(places.map(|(&node, &(entry, place))| (node, results[entry][place].clone())).collect())
        };
        let values = [run(self.subject)?, run(self.reference)?];
        let mut seen = Seen { region, values, apart, differences: Vec::with_capacity(nodes.len()) };
        let mut equal = true;
        for &id in nodes {
            let difference = seen.difference(self, id, equal)?;
            equal &= difference.beyond == 0;
            seen.differences.push((id, difference));
        }
        Ok(seen)
    }
}

pub(crate) fn signature(trace: &Trace, entry: &str) -> Result<Signature, BisectError> {
    let missing = || EvaluateError::NoEntry {
        name: entry.into(),
        entries: trace.entries.iter().map(|&id| trace.function(id).name.clone()).collect(),
    };
    Ok(trace.entry(entry).ok_or_else(missing)?.signature())
}

fn only(mut results: Vec<Vec<Value>>) -> Vec<Value> {
    results.swap_remove(0)
}

/// In [`Seen::values`].
const SUBJECT: usize = 0;
const REFERENCE: usize = 1;

struct Seen<'r> {
    region: &'r Region,
    values: [HashMap<NodeId, Value>; 2],
    apart: bool,
    differences: Vec<(NodeId, Difference)>,
}

impl Seen<'_> {
    /// If all earlier nodes are equal, slightly different operands are allowed for; after a difference, they
    /// could explain everything.
    fn difference(
        &self,
        bisection: &Bisection<'_>,
        id: NodeId,
        equal: bool,
    ) -> Result<Difference, BisectError> {
        let [subject, reference] = [&self.values[SUBJECT][&id], &self.values[REFERENCE][&id]];
        let bound = bisection.tolerance.bound(self.region.function().node(id));
        let of_both = allowances(bound, subject).into_iter().zip(allowances(bound, reference));
        // The evaluator is exact, but if both variants are compiled programs, both can be inexact.
        let exact = bisection.reference.is_exact();
        let mut allowed: Vec<f64> =
            of_both.map(|(own, other)| if exact { own.max(other) } else { own + other }).collect();
        if self.apart {
            let layer = allowances(bisection.tolerance.layer(reference.ty.element), reference);
            allowed.iter_mut().zip(layer).for_each(|(allowed, layer)| *allowed = layer.max(*allowed));
        }
        let difference = Difference::of(subject, reference, allowed.clone());
        if difference.beyond == 0 || !equal {
            return Ok(difference);
        }
        for (allowed, inherited) in allowed.iter_mut().zip(self.inherited(bisection, id)?) {
            *allowed += inherited;
        }
        Ok(Difference::of(subject, reference, allowed))
    }

    /// How much operands change a value: those that differ, and roundings to `f16` or `bf16` that a compiler
    /// may omit, by one random sample.
    fn inherited(&self, bisection: &Bisection<'_>, id: NodeId) -> Result<Vec<f64>, BisectError> {
        let function = self.region.function();
        let node = function.node(id);
        let read = match node.kind {
            NodeKind::Result { .. } => function.operands(function.operands(id)[0]),
            _ => function.operands(id),
        };
        let values = |whose| -> Result<Vec<Value>, BisectError> {
            read.iter().map(|&operand| self.value(bisection, operand, whose)).collect()
        };
        let (subject, reference) = (values(SUBJECT)?, values(REFERENCE)?);
        let narrow: Vec<Value> = reference.iter().map(unrounded).collect();
        let expected = self.evaluated(bisection, id, reference.clone())?;
        let mut moved = vec![0.0; expected.data.len()];
        for (operands, factor) in [(subject, 1.0), (narrow, bisection.tolerance.sample())] {
            if operands != reference {
                let found = self.evaluated(bisection, id, operands)?;
                let pairs = found.data.iter().zip(&expected.data);
                moved.iter_mut().zip(pairs).for_each(|(by, (a, b))| *by += factor * distance(*a, *b));
            }
        }
        Ok(moved)
    }

    /// Returns the value that the evaluator computes for a node from the given operands.
    fn evaluated(
        &self,
        bisection: &Bisection<'_>,
        id: NodeId,
        operands: Vec<Value>,
    ) -> Result<Value, BisectError> {
        let function = self.region.function();
        let node = function.node(id);
        match &node.kind {
            NodeKind::Op(op) => Ok(op.eval(&operands.iter().collect::<Vec<_>>(), node.ty())),
            NodeKind::Result { index } => {
                let inner = self.region.of_call(function.operands(id)[0], operands);
                let parameters = |key: &str| bisection.values.get(key);
                let evaluation = Evaluation { parameters: &parameters, watch: None };
                let name = &inner.function().name;
                Ok(trace::evaluate(inner.plain(), name, inner.arguments.clone(), evaluation)?
                    .swap_remove(*index))
            }
            _ => unreachable!("only results of operations and calls are compared"),
        }
    }

    fn value(&self, bisection: &Bisection<'_>, id: NodeId, whose: usize) -> Result<Value, BisectError> {
        if let Some(value) = self.values[whose].get(&id) {
            return Ok(value.clone());
        }
        let function = self.region.function();
        match &function.node(id).kind {
            NodeKind::Input { index, .. } => Ok(self.region.arguments[*index].clone()),
            NodeKind::Parameter(parameter) => {
                let value = parameter.value(&|key| bisection.values.get(key));
                value.map_err(|(key, ty)| EvaluateError::Parameter { key, ty }.into())
            }
            // The node's value was not exposed: the node is a constant with one value, or has a type that
            // programs cannot return.
            _ => {
                let operands = function.operands(id).into_iter();
                let operands =
                    operands.map(|id| self.value(bisection, id, whose)).collect::<Result<_, _>>()?;
                self.evaluated(bisection, id, operands)
            }
        }
    }
}

/// The maximum length of an operation's text in a report, in characters.
const SHOWN: usize = 120;

fn place(function: &Function, id: NodeId) -> NamedNode {
    let node = function.node(id);
    let mut op = String::new();
    match &node.kind {
        NodeKind::Input { name, .. } => op = format!("input `{name}`"),
        NodeKind::Parameter(parameter) => op = format!("parameter `{}`", parameter.key),
        NodeKind::Op(known) => known.print(&mut op),
        NodeKind::Call { .. } => op.push_str("call"),
        NodeKind::Result { index } => op = format!("result {index} of a layer"),
    }
    let op = errors::shortened(op, SHOWN);
    let Provenance { path, file, line } = &node.provenance;
    NamedNode { path: path.to_string(), file: file.to_string(), line: *line, op, ty: node.ty().to_string() }
}
