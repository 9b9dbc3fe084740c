//! Where a tensor comes from: which tensors may be repeated along axes they lack, and what messages say of axes.
//!
//! Weights, constants, integers and truth values are: they say something of every place. An activation that lacks an
//! axis has lost it, and only what is made of its own reductions may meet it again, as in `x - x.mean(D)`. Where
//! anything else meets more axes than it has, the loss may be a mistake, so the network must say `.broadcast(…)`.

use std::collections::BTreeSet;

use ops::Op;
use trace::{Function, NodeId, NodeKind, Provenance};

use crate::Axis;

/// The nodes of a function that is being recorded.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) function: &'a Function,
    pub(crate) activations: &'a ActivationNodes,
}

/// Of each node of a function, whether it is an activation: whether it depends on an argument that has axes. A row of
/// a table of constants does not: it is a constant, wherever its index comes from.
#[derive(Default)]
pub(crate) struct ActivationNodes(Vec<bool>);

impl ActivationNodes {
    /// Takes note of the nodes that `function` got since the last time. To look at all ancestors whenever it is asked
    /// would take a time that grows with the square of the layers.
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

    /// An argument is no activation where its function is called.
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
    /// Whether `small` may be repeated to the axes of `large` without a word.
    pub(crate) fn may_be_repeated(self, small: NodeId, large: NodeId) -> bool {
        let ty = self.function.node(small).ty();
        if ty.rank() == 0 || !ty.element.is_float() {
            return true;
        }
        self.sources(small).is_subset(&self.sources(large))
    }

    /// The node that makes `from` lack `axis`: the last one on the way that lacks it and reads something that has it.
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

    /// The name that `axis` of `from` had before `rename` gave it that one, and where that was.
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

    /// The activations that `node` is made of by functions of single elements and by reductions.
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
