//! Rewrites the operations of a trace, one after another.

use ops::{InferError, Op};
use trace::{Builder, Function, NodeId, NodeKind, Output, Trace};

use crate::LowerError;

/// Returns the program after the closure `operation` has rewritten each operation. For each
/// operation of the trace, the closure `operation` appends the nodes that replace the operation.
/// The function removes nodes that no result of the program needs.
pub(crate) fn rewrite(
    trace: &Trace,
    operation: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Result<NodeId, InferError>,
) -> Result<Trace, LowerError> {
    rewrite_nodes(trace, |b, _, op, operands| operation(b, op, operands))
}

/// Like [`rewrite`], but the closure `operation` also receives the index of the function and the
/// index of the node.
pub(crate) fn rewrite_nodes(
    trace: &Trace,
    operation: impl Fn(&mut Builder<'_>, (usize, NodeId), &Op, &[NodeId]) -> Result<NodeId, InferError>,
) -> Result<Trace, LowerError> {
    let functions = trace.functions.iter().enumerate();
    let function = |(index, function)| {
        rewrite_function(function, |b, id, op, operands| operation(b, (index, id), op, operands))
    };
    let functions = functions.map(function).collect::<Result<_, _>>()?;
    Ok(Trace { functions, entries: trace.entries.clone() })
}

fn rewrite_function(
    function: &Function,
    operation: impl Fn(&mut Builder<'_>, NodeId, &Op, &[NodeId]) -> Result<NodeId, InferError>,
) -> Result<Function, LowerError> {
    let mut rewritten = Function::new(function.name.clone(), function.prefix.clone());
    let live = function.live();
    let mut ids: Vec<NodeId> = Vec::with_capacity(function.len());
    for id in function.ids() {
        let node = function.node(id);
        if !live[id.index()] && !matches!(node.kind, NodeKind::Input { .. }) {
            ids.push(NodeId::end());
            continue;
        }
        let operands: Vec<NodeId> = function.operands(id).iter().map(|o| ids[o.index()]).collect();
        let mut builder = Builder { function: &mut rewritten, provenance: node.provenance.clone() };
        let written = match &node.kind {
            NodeKind::Op(op) => {
                operation(&mut builder, id, op, &operands).map_err(|source| LowerError::Infer {
                    function: function.name.clone(),
                    node: id.index(),
                    provenance: node.provenance.clone(),
                    source: Box::new(source),
                })?
            }
            kind => builder.push(kind.clone(), node.types.clone(), &operands),
        };
        if rewritten.node(written).axes.is_empty() {
            rewritten.node_mut(written).axes = node.axes.clone();
        }
        ids.push(written);
    }
    let outputs = function.outputs.iter();
    rewritten.outputs = outputs.map(|o| Output { node: ids[o.node.index()], ..o.clone() }).collect();
    Ok(rewritten)
}
