//! Where a tensor comes from: which tensors may be repeated along axes they lack, and what messages say of axes.
//!
//! Weights, constants, integers and truth values are: they say something of every place. An activation that lacks an
//! axis has lost it, and only what is made of its own reductions may meet it again, as in `x - x.mean(D)`. Where
//! anything else meets more axes than it has, the loss may be a mistake, so the network must say `.broadcast(…)`.

use std::collections::BTreeSet;

use ops::Op;
use trace::{Function, NodeId, NodeKind, Provenance};

use crate::Axis;

/// Whether `small` may be repeated to the axes of `large` without a word.
pub(crate) fn may_be_repeated(function: &Function, small: NodeId, large: NodeId) -> bool {
    let ty = function.node(small).ty();
    if ty.rank() == 0 || !ty.element.is_float() {
        return true;
    }
    let activations = activations(function, &[small, large]);
    let of_small = sources(function, &activations, small);
    of_small.is_subset(&sources(function, &activations, large))
}

/// The node that makes `from` lack `axis`: the last one on the way that lacks it and reads something that has it.
pub(crate) fn lost_at(function: &Function, from: NodeId, axis: Axis) -> Option<&Provenance> {
    let has = |id: NodeId| function.node(id).axes.iter().any(|name| *name == axis.0);
    let mut open = BTreeSet::from([from]);
    while let Some(id) = open.pop_last() {
        let operands = function.operands(id);
        if operands.iter().any(|&operand| has(operand)) {
            return Some(&function.node(id).provenance);
        }
        open.extend(operands);
    }
    None
}

/// The name that `axis` of `from` had before `rename` gave it that one, and where that was.
pub(crate) fn renamed_at(function: &Function, from: NodeId, axis: Axis) -> Option<(&str, &Provenance)> {
    let position = |id: NodeId| function.node(id).axes.iter().position(|name| *name == axis.0);
    let mut node = from;
    loop {
        let operands = function.operands(node);
        match operands.iter().find(|&&operand| position(operand).is_some()) {
            Some(&operand) => node = operand,
            None => {
                let operand = function.node(*operands.first()?);
                let is_rename = matches!(function.node(node).kind, NodeKind::Op(Op::Reshape(_)))
                    && *operand.ty() == *function.node(node).ty();
                let before = operand.axes.get(position(node)?).filter(|_| is_rename)?;
                return Some((before, &function.node(node).provenance));
            }
        }
    }
}

/// What depends on an argument that has axes, among the nodes that `of` are computed from and these themselves. A row
/// of a table of constants does not: it is a constant, wherever its index comes from.
fn activations(function: &Function, of: &[NodeId]) -> BTreeSet<NodeId> {
    let (mut ancestors, mut open) = (BTreeSet::new(), of.to_vec());
    while let Some(id) = open.pop() {
        if ancestors.insert(id) {
            open.extend(function.operands(id));
        }
    }
    let mut found = BTreeSet::new();
    // In ascending order operands come before what reads them.
    for id in ancestors {
        let (node, operands) = (function.node(id), function.operands(id));
        let depends = operands.iter().any(|operand| found.contains(operand));
        let is_activation = match &node.kind {
            NodeKind::Input { .. } => node.ty().rank() > 0,
            NodeKind::Op(Op::Gather(_)) => depends && !is_constant(function, operands[0]),
            _ => depends,
        };
        if is_activation {
            found.insert(id);
        }
    }
    found
}

fn is_constant(function: &Function, id: NodeId) -> bool {
    match &function.node(id).kind {
        NodeKind::Op(_) => function.operands(id).iter().all(|&operand| is_constant(function, operand)),
        _ => false,
    }
}

/// The activations that `node` is made of by functions of single elements and by reductions.
fn sources(function: &Function, activations: &BTreeSet<NodeId>, node: NodeId) -> BTreeSet<NodeId> {
    let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut open = vec![node];
    while let Some(id) = open.pop() {
        if !activations.contains(&id) || !seen.insert(id) {
            continue;
        }
        match &function.node(id).kind {
            NodeKind::Op(
                Op::Unary(_)
                | Op::Binary(_)
                | Op::Compare(_)
                | Op::Select(_)
                | Op::Convert(_)
                | Op::ReducePrecision(_)
                | Op::Erf(_)
                | Op::Permute(_)
                | Op::BroadcastInDim(_)
                | Op::Reduce(_),
            ) => open.extend(function.operands(id)),
            _ => {
                found.insert(id);
            }
        }
    }
    found
}
