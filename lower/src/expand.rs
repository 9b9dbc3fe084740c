//! Every composite becomes primitives.

use ops::{InferError, Op};
use trace::{Builder, Function, NodeId, NodeKind, Output, Trace};

use crate::{LowerError, erf, linear, rms_norm, rope, sdpa};

/// The same program in primitives. Nodes that no result needs are left out.
///
/// # Errors
/// If a node's operands do not fit its operation: the trace was not verified.
pub fn expand(trace: &Trace) -> Result<Trace, LowerError> {
    let functions = trace.functions.iter().map(expand_function).collect::<Result<_, _>>()?;
    Ok(Trace { functions, entries: trace.entries.clone() })
}

fn expand_function(function: &Function) -> Result<Function, LowerError> {
    let mut expanded = Function::new(function.name.clone(), function.prefix.clone());
    let live = function.live();
    let mut ids: Vec<NodeId> = Vec::with_capacity(function.len());
    for id in function.ids() {
        let node = function.node(id);
        if !live[id.index()] && !matches!(node.kind, NodeKind::Input { .. }) {
            ids.push(NodeId::end());
            continue;
        }
        let operands: Vec<NodeId> = function.operands(id).iter().map(|o| ids[o.index()]).collect();
        let mut builder = Builder { function: &mut expanded, provenance: node.provenance.clone() };
        let converted = match &node.kind {
            NodeKind::Op(op) => convert(&mut builder, op, &operands).map_err(|source| LowerError::Infer {
                function: function.name.clone(),
                node: id.index(),
                source: Box::new(source),
            })?,
            kind => builder.push(kind.clone(), node.types.clone(), &operands),
        };
        if expanded.node(converted).axes.is_empty() {
            expanded.node_mut(converted).axes = node.axes.clone();
        }
        ids.push(converted);
    }
    let outputs = function.outputs.iter();
    expanded.outputs = outputs.map(|o| Output { node: ids[o.node.index()], ..o.clone() }).collect();
    Ok(expanded)
}

/// One operation in primitives. Every composite has a converter: the match is over all of the list.
fn convert(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    match op {
        Op::Erf(op) => erf::convert(b, op, operands),
        Op::Linear(op) => linear::convert(b, op, operands),
        Op::RmsNorm(op) => rms_norm::convert(b, op, operands),
        Op::Rope(op) => rope::convert(b, op, operands),
        Op::Sdpa(op) => sdpa::convert(b, op, operands),
        Op::Constant(_)
        | Op::Iota(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select(_)
        | Op::Convert(_)
        | Op::ReducePrecision(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Narrow(_)
        | Op::BroadcastInDim(_)
        | Op::Concatenate(_)
        | Op::Gather(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice(_)
        | Op::DotGeneral(_)
        | Op::Reduce(_) => b.op(op.clone(), operands),
    }
}
