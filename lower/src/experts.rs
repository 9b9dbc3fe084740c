//! Matmuls with a stack of matrices, for mixture-of-experts layers. The matmul multiplies each
//! input row by the matrix of the expert for this row.

use ops::format::ActivationBits;
use ops::ops::{Gather, Pack, PackedExperts, PackedLinear, Permute, Reshape};
use ops::{ElementType, InferError, Op, WeightFormat};
use trace::{Builder, Function, NodeId, NodeKind, Parameter};

use crate::derive::{from_recipe, step};

/// A matmul with the matrices of a stack `[experts, outputs, inputs]`.
pub(crate) struct Experts {
    pub(crate) weight: Parameter,
    which: Which,
    element: ElementType,
}

/// How the matmul selects a matrix of the stack for each row of x.
enum Which {
    /// The matmul multiplies each row of x by all matrices.
    All,
    /// The tensor x has one row for each expert, `[…, experts, inputs]`, and the matmul multiplies
    /// each row by the matrix of the expert for this row.
    Own,
    /// A tensor of indices selects the matrix for each row of x.
    Chosen,
}

impl Experts {
    /// Returns the matmul with a stack of matrices that an operation computes; `None` if the stack
    /// is not a weight.
    pub(crate) fn of(function: &Function, op: &Op, operands: &[NodeId]) -> Option<Self> {
        let (Op::DotGeneral(dot), [x, matrices]) = (op, operands) else { return None };
        let (x, axes) = (function.node(*x).ty().rank(), function.node(*matrices).ty().rank());
        let parameter = |id: NodeId| match &function.node(id).kind {
            NodeKind::Parameter(parameter) if parameter.ty.rank() == 3 => Some(parameter.clone()),
            _ => None,
        };
        if x == 0 || dot.left_contract != [x - 1] || dot.right_contract != [axes - 1] {
            return None;
        }
        let batch: Vec<usize> = (0..dot.left_batch.len()).collect();
        let (weight, which) = match &function.node(*matrices).kind {
            NodeKind::Op(Op::Gather(Gather {})) => {
                let stack = *function.operands(*matrices).first()?;
                let chosen = axes - 2;
                let places = [chosen, chosen.wrapping_sub(1)].contains(&batch.len());
                let same =
                    places && dot.left_batch == batch && dot.right_batch == batch && x == batch.len() + 1;
                (parameter(stack)?, same.then_some(Which::Chosen)?)
            }
            _ if batch.is_empty() => (parameter(*matrices)?, Which::All),
            _ if dot.left_batch == [x.wrapping_sub(2)] && dot.right_batch == [0] => {
                (parameter(*matrices)?, Which::Own)
            }
            _ => return None,
        };
        Some(Self { weight, which, element: dot.element })
    }

    /// Creates a copy of the matmul that reads the stack of matrices from panels. The copy does not
    /// change the element type of the result.
    pub(crate) fn product(
        &self,
        b: &mut Builder<'_>,
        (format, activations): (WeightFormat, ActivationBits),
        operands: &[NodeId],
    ) -> Result<NodeId, InferError> {
        let &[x, matrices] = operands else { unreachable!("a product") };
        let element = self.element;
        let [experts, outputs, inputs] = self.weight.ty.shape[..] else { unreachable!("a stack") };
        // The stack becomes one tall matrix.
        let shape = vec![experts * outputs, inputs];
        let packed = from_recipe(b, self.weight.key.clone(), &self.weight, |stack| {
            step(Pack { format }, step(Reshape { shape }, stack))
        })?;
        let op = PackedExperts { format, experts, outputs, element, activations };
        match self.which {
            Which::All => {
                let all = PackedLinear { format, outputs: experts * outputs, element, activations };
                let product = b.op(all, &[x, packed])?;
                let mut shape = b.ty(product).shape.clone();
                shape.pop();
                shape.extend([experts, outputs]);
                b.op(Reshape { shape }, &[product])
            }
            Which::Own => {
                let product = b.op(op, &[x, packed])?;
                // In the result of a batched matmul, the batch axis comes first.
                let rank = b.ty(product).rank();
                let order = [rank - 2].into_iter().chain(0..rank - 2).chain([rank - 1]).collect();
                b.op(Permute { order }, &[product])
            }
            Which::Chosen => b.op(op, &[x, packed, b.function.operands(matrices)[1]]),
        }
    }
}
