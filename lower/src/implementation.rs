//! Who computes each node: one table of a simplified trace, by which its weights are stored and its composites expanded.
//!
//! The expanded trace carries the answers: a composite that is left belongs to a kernel, an idiom to the compiler, and all
//! else is StableHLO.

use std::collections::BTreeMap;

use kernels::FusedOp;
use ops::format::ActivationBits;
use ops::{Op, TensorType, WeightFormat, WeightUse};
use targets::Target;
use trace::{Function, NodeId, NodeKind, Parameter, Trace};

use crate::experts::Experts;
use crate::layout::{DenseReason, Layouts, WeightLayout, Weights, assign_layouts};
use crate::{LowerError, idiom};

pub(crate) enum Implementation {
    /// A kernel of ours, over a weight in panels if it reads one.
    Kernel(Option<StoredWeight>),
    /// The compiler, in words that only it knows: this operation replaces the node's.
    Idiom(Op),
    /// StableHLO, over a quantized weight in the order of the checkpoint.
    Grouped(StoredWeight),
    /// StableHLO: the node's converter, or the node's statement.
    StableHlo,
}

/// A weight in its layout, and the operation that reads it.
pub(crate) struct StoredWeight {
    pub(crate) layout: WeightLayout,
    pub(crate) reader: Reader,
}

/// How an operation reads a stored weight.
pub(crate) enum Reader {
    /// It multiplies with this matrix.
    Matmul(Parameter),
    /// It picks rows of this matrix.
    Rows(Parameter),
    /// It multiplies with matrices of a stack.
    Experts(Experts),
}

/// Who computes each node of a trace on a target.
pub struct Implementations<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) activations: ActivationBits,
    layouts: Layouts,
    /// Of each function, by node.
    nodes: Vec<Vec<Implementation>>,
}

impl<'t> Implementations<'t> {
    /// Decides it for a simplified trace.
    ///
    /// # Errors
    /// If the trace keeps keys and values in 8 bits, which kernels read, and there are none.
    pub fn of(trace: &'t Trace, weights: &Weights, target: &Target) -> Result<Self, LowerError> {
        let kernels = weights.kernels(target);
        // As primitives through iree-compile 3.13 the numbers are those of kernels, but where a number lies between two integers.
        if kernels.is_empty() && has(trace, |op| matches!(op, Op::Dequantize(_))) {
            return Err(LowerError::IntegersWithoutKernels);
        }
        let layouts = assign_layouts(trace, &weights.quantize, &kernels);
        let has_rings = has(trace, |op| matches!(op, Op::Append(append) if append.ring));
        let program = idiom::Program { target, has_rings };
        let node = |function: &Function, id: NodeId| {
            let NodeKind::Op(op) = &function.node(id).kind else { return Implementation::StableHlo };
            let operands = function.operands(id);
            if let Some(stored) = StoredWeight::of(&layouts, function, op, &operands) {
                return match stored.layout {
                    WeightLayout::Packed(_) => Implementation::Kernel(Some(stored)),
                    WeightLayout::Grouped(_) => Implementation::Grouped(stored),
                };
            }
            let types: Vec<&TensorType> =
                operands.iter().map(|&operand| function.node(operand).ty()).collect();
            if kernels.can_do(&FusedOp::alone(op, types.clone())) {
                return Implementation::Kernel(None);
            }
            idiom::of(op, &types, &program).map_or(Implementation::StableHlo, Implementation::Idiom)
        };
        let nodes = trace.functions.iter();
        let nodes = nodes.map(|function| function.ids().map(|id| node(function, id)).collect()).collect();
        Ok(Self { trace, activations: weights.activations, layouts, nodes })
    }

    /// Who computes a node of the function of this index.
    pub(crate) fn at(&self, (function, id): (usize, NodeId)) -> &Implementation {
        &self.nodes[function][id.index()]
    }

    /// Whether a weight is stored otherwise than the checkpoint has it.
    pub(crate) fn stores(&self) -> bool {
        self.layouts.values().any(Result::is_ok)
    }

    /// The format of each weight that a function of the trace declares, by its key there, or why it is stored as the network
    /// computes with it.
    pub fn formats(&self) -> BTreeMap<String, Result<WeightFormat, DenseReason>> {
        let formats = self.layouts.iter();
        formats.map(|(key, layout)| (key.clone(), layout.map(WeightLayout::format))).collect()
    }
}

impl StoredWeight {
    /// What an operation is, if it reads a weight that has a layout.
    fn of(layouts: &Layouts, function: &Function, op: &Op, operands: &[NodeId]) -> Option<Self> {
        let layout = |parameter: &Parameter| layouts.get(&parameter.key)?.ok();
        let matrix = |operand: usize| match &function.node(operands[operand]).kind {
            NodeKind::Parameter(parameter) if parameter.ty.rank() == 2 => Some(parameter),
            _ => None,
        };
        let (layout, reader) = match op.weight_use()? {
            WeightUse::Matmul => (layout(matrix(1)?)?, Reader::Matmul(matrix(1)?.clone())),
            WeightUse::Rows => (layout(matrix(0)?)?, Reader::Rows(matrix(0)?.clone())),
            WeightUse::Stack => {
                let experts = Experts::of(function, op, operands)?;
                (layout(&experts.weight)?, Reader::Experts(experts))
            }
        };
        Some(Self { layout, reader })
    }
}

/// Whether a trace has such an operation.
fn has(trace: &Trace, is: impl Fn(&Op) -> bool) -> bool {
    let ops = |function: &Function| {
        function.ids().any(|id| matches!(&function.node(id).kind, NodeKind::Op(op) if is(op)))
    };
    trace.functions.iter().any(ops)
}
