//! Finds the nodes from which a tensor is computed. The nodes from which a tensor is computed
//! decide whether Tracewright may repeat the tensor along a missing axis. Error messages name the
//! line of code that removed an axis.
//!
//! Tracewright may repeat weights, constants, integers and booleans along any axis. An activation
//! that lacks an axis usually lost this axis in a reduction. Tracewright may repeat the result of a
//! reduction only next to the reduced value itself, as in `x - x.mean(D)`. Any other repetition of
//! an activation may be a mistake, so the network must call `.broadcast(…)`.

use std::collections::BTreeSet;

use ops::Op;
use trace::{Function, NodeId, NodeKind, Provenance};

use crate::Axis;

/// The nodes of a function whose recording is in progress.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) function: &'a Function,
    pub(crate) activations: &'a ActivationNodes,
}

/// Whether each node of a function is an activation. An activation is a node that depends on an
/// argument with axes. A selected row of a constant table is not an activation, even if the index
/// of the row is an activation.
#[derive(Default)]
pub(crate) struct ActivationNodes(Vec<bool>);

impl ActivationNodes {
    /// Classifies the nodes that Tracewright added to `function` since the last call of this
    /// method. Without a list of classified nodes, each query would search all ancestors of a node,
    /// and the total time would be quadratic in the number of layers.
    pub(crate) fn extend(&mut self, function: &Function) {
        for id in (self.0.len()..function.len()).map(NodeId::new) {
            let node = function.node(id);
            let depends = function.any_operand(id, |operand| self.contain(operand));
            let is_activation = match &node.kind {
                NodeKind::Input { .. } => node.ty().rank() > 0,
                NodeKind::Op(Op::Gather(_)) => depends && !is_constant(function, function.operands(id)[0]),
                _ => depends,
            };
            self.0.push(is_activation);
        }
    }

    /// Records that `argument` is no activation, because the caller passes a value that is no activation.
    pub(crate) fn remove(&mut self, argument: NodeId) {
        self.0[argument.index()] = false;
    }

    pub(crate) fn contain(&self, id: NodeId) -> bool {
        self.0[id.index()]
    }
}

fn is_constant(function: &Function, id: NodeId) -> bool {
    match &function.node(id).kind {
        NodeKind::Op(_) => function.operands(id).iter().all(|&operand| is_constant(function, operand)),
        _ => false,
    }
}

impl<'a> Origin<'a> {
    /// Whether Tracewright may implicitly repeat `small` along the missing axes of `large`.
    pub(crate) fn may_be_repeated(self, small: NodeId, large: NodeId) -> bool {
        let ty = self.function.node(small).ty();
        if ty.rank() == 0 || !ty.element.is_float() {
            return true;
        }
        self.sources(small).is_subset(&self.sources(large))
    }

    /// The line of code that removed `axis` from an ancestor of `from`. The returned line computes
    /// the last ancestor that lacks the axis but has an operand with the axis.
    pub(crate) fn lost_at(self, from: NodeId, axis: Axis) -> Option<&'a Provenance> {
        let mut open = BTreeSet::from([from]);
        while let Some(id) = open.pop_last() {
            let operands = self.function.operands(id);
            if operands.iter().any(|&operand| self.position(operand, axis).is_some()) {
                return Some(&self.function.node(id).provenance);
            }
            open.extend(operands);
        }
        None
    }

    /// Returns the earlier name of `axis` and the line of code that calls `rename`, if a call of
    /// `rename` gave `axis` its name. The search starts at the node `from`.
    pub(crate) fn renamed_at(self, from: NodeId, axis: Axis) -> Option<(&'a str, &'a Provenance)> {
        let mut id = from;
        loop {
            let operands = self.function.operands(id);
            if let Some(&operand) = operands.iter().find(|&&operand| self.position(operand, axis).is_some()) {
                id = operand;
                continue;
            }
            let (node, operand) = (self.function.node(id), self.function.node(*operands.first()?));
            let is_rename = matches!(node.kind, NodeKind::Op(Op::Reshape(_))) && node.ty() == operand.ty();
            let before = operand.axes.get(self.position(id, axis)?).filter(|_| is_rename)?;
            return Some((before, &node.provenance));
        }
    }

    fn position(self, id: NodeId, axis: Axis) -> Option<usize> {
        self.function.node(id).axes.iter().position(|name| *name == axis.0)
    }

    /// Returns the activations from which only elementwise functions and reductions compute `node`.
    fn sources(self, node: NodeId) -> BTreeSet<NodeId> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut open = vec![node];
        while let Some(id) = open.pop() {
            if !self.activations.contain(id) || !seen.insert(id) {
                continue;
            }
            match &self.function.node(id).kind {
                NodeKind::Op(op) if op.keeps_axes() => open.extend(self.function.operands(id)),
                _ => {
                    found.insert(id);
                }
            }
        }
        found
    }
}
