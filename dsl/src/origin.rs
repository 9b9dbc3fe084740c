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
    /// The arguments that are no activations where the function is called.
    pub(crate) fixed: &'a BTreeSet<NodeId>,
}

impl<'a> Origin<'a> {
    /// Whether `small` may be repeated to the axes of `large` without a word.
    pub(crate) fn may_be_repeated(self, small: NodeId, large: NodeId) -> bool {
        let ty = self.function.node(small).ty();
        if ty.rank() == 0 || !ty.element.is_float() {
            return true;
        }
        let activations = self.activations(&[small, large]);
        let of_small = self.sources(&activations, small);
        of_small.is_subset(&self.sources(&activations, large))
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

    /// The activations among the nodes that `of` are computed from and these themselves: what depends on an argument
    /// that has axes. A row of a table of constants does not: it is a constant, wherever its index comes from.
    pub(crate) fn activations(self, of: &[NodeId]) -> BTreeSet<NodeId> {
        let (mut ancestors, mut open) = (BTreeSet::new(), of.to_vec());
        while let Some(id) = open.pop() {
            if ancestors.insert(id) {
                open.extend(self.function.operands(id));
            }
        }
        let mut found = BTreeSet::new();
        // In ascending order operands come before what reads them.
        for id in ancestors {
            let (node, operands) = (self.function.node(id), self.function.operands(id));
            let depends = operands.iter().any(|operand| found.contains(operand));
            let is_activation = match &node.kind {
                NodeKind::Input { .. } => node.ty().rank() > 0 && !self.fixed.contains(&id),
                NodeKind::Op(Op::Gather(_)) => depends && !self.is_constant(operands[0]),
                _ => depends,
            };
            if is_activation {
                found.insert(id);
            }
        }
        found
    }

    fn is_constant(self, id: NodeId) -> bool {
        match &self.function.node(id).kind {
            NodeKind::Op(_) => self.function.operands(id).iter().all(|&operand| self.is_constant(operand)),
            _ => false,
        }
    }

    /// The activations that `node` is made of by functions of single elements and by reductions.
    fn sources(self, activations: &BTreeSet<NodeId>, node: NodeId) -> BTreeSet<NodeId> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut open = vec![node];
        while let Some(id) = open.pop() {
            if !activations.contains(&id) || !seen.insert(id) {
                continue;
            }
            match &self.function.node(id).kind {
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
                ) => open.extend(self.function.operands(id)),
                _ => {
                    found.insert(id);
                }
            }
        }
        found
    }
}
