//! A trace with some of its operations replaced: how faults are planted where no product code can plant them.

use tracewright::ops::{InferError, Op};
use tracewright::trace::{Builder, Function, NodeId, NodeKind, Output, Trace};

/// The trace with each operation replaced by the nodes that `replace` builds. `replace` gets the operation
/// and its operands in the new function. It returns the node of the result, or `None` to keep the operation.
///
/// # Errors
/// If an operation does not accept its new operands.
pub fn rewrite(
    trace: &Trace,
    mut replace: impl FnMut(&mut Builder<'_>, &Op, &[NodeId]) -> Result<Option<NodeId>, InferError>,
) -> Result<Trace, InferError> {
    let mut functions = Vec::new();
    for old in &trace.functions {
        let mut function = Function::new(&old.name, &old.prefix);
        let mut ids: Vec<NodeId> = Vec::new();
        for id in old.ids() {
            let node = old.node(id);
            let operands: Vec<NodeId> = old.operands(id).into_iter().map(|o| ids[o.index()]).collect();
            let mut builder = Builder { function: &mut function, provenance: node.provenance.clone() };
            let replaced = match &node.kind {
                NodeKind::Op(op) => replace(&mut builder, op, &operands)?,
                _ => None,
            };
            ids.push(replaced.unwrap_or_else(|| function.push(node.clone(), &operands)));
        }
        let output = |o: &Output| Output { node: ids[o.node.index()], ..o.clone() };
        function.outputs = old.outputs.iter().map(output).collect();
        functions.push(function);
    }
    Ok(Trace { functions, entries: trace.entries.clone() })
}
