//! Finds the kernels of a program that support several tilings, and counts the calls of each kernel.

use std::collections::BTreeMap;

use kernels::{Epilogue, FusedLayout, FusedOp, FusedPrologue, Kernels, Tilings};
use ops::ops::{MaskTerm, PackedExperts, PackedLinear, RmsNorm, Sdpa};
use ops::{Op, TensorType};
use targets::Target;
use trace::{FunctionId, NodeKind, Trace};

use crate::LowerError;
use crate::fusion::Fusions;
use crate::legalize::{Legalization, legalize};

/// An operation that one kernel computes, with all parameters that affect the speed of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tunable {
    Matmul(FusedMatmul),
    /// A matmul that multiplies each row of activations by a separate matrix of a stack.
    Experts(FusedExperts),
    Attention(FusedAttention),
}

/// A matmul that one kernel computes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FusedMatmul {
    pub op: PackedLinear,
    /// The tensor type of the matmul's activations, `[rows, inputs]`.
    pub x: TensorType,
    /// The norm of the activations, if the same kernel computes the norm and the matmul.
    pub norm: Option<RmsNorm>,
    /// Whether the epilogue combines two halves of the result, such as the gate and the up projection.
    pub halves: bool,
}

/// A matmul that multiplies each row of activations by a separate matrix of a stack. One kernel
/// computes the matmul.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FusedExperts {
    pub op: PackedExperts,
    pub x: TensorType,
    /// The type of the indices that select the matrix for each row. If the type of the indices is
    /// `None`, the rows use the matrices of the stack in order.
    pub indices: Option<TensorType>,
}

/// One kernel computes attention; the kernel can also compute the prologue of the attention.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FusedAttention {
    pub op: Sdpa,
    /// The types of q, k, v and the offset, in this order.
    pub types: Vec<TensorType>,
    /// Whether attention reads keys and values that are integers with a scale per key.
    pub quantized: bool,
}

impl Tunable {
    fn of(work: &FusedOp<'_>) -> Option<Self> {
        Some(match work.main {
            Op::PackedLinear(op) => {
                let x = work.types[0];
                let inputs = x.shape[x.rank() - 1];
                Self::Matmul(FusedMatmul {
                    op: op.clone(),
                    x: TensorType::new(x.element, [x.count() / inputs, inputs]),
                    norm: work.prologue.norm.map(|(norm, _)| norm.clone()),
                    halves: work.epilogue.halves,
                })
            }
            Op::PackedExperts(op) => Self::Experts(FusedExperts {
                op: op.clone(),
                x: work.types[0].clone(),
                indices: work.types.get(2).map(|&ty| ty.clone()),
            }),
            Op::Sdpa(op) => {
                // Sinks do not affect the speed, so the benchmark has none.
                let mask = op.mask.iter().copied().filter(|term| *term != MaskTerm::Sinks).collect();
                let terms = op.mask.iter().filter(|term| term.has_operand());
                let sinks = terms.into_iter().position(|term| *term == MaskTerm::Sinks);
                let sinks = sinks.map(|term| 3 + usize::from(op.offset) + term);
                let types = work.types.iter().enumerate().filter(|(at, _)| Some(*at) != sinks);
                Self::Attention(FusedAttention {
                    op: Sdpa { mask, ..op.clone() },
                    types: types.map(|(_, &ty)| ty.clone()).collect(),
                    quantized: work.layout.quantized,
                })
            }
            _ => return None,
        })
    }

    /// Returns the tilings of the kernel that computes the operation on the target.
    pub fn tilings(&self, target: &Target) -> Option<Tilings> {
        let kernels = Kernels::of(target);
        match self {
            Self::Matmul(FusedMatmul { op, x, norm, halves }) => {
                let weight = op.format.packed(op.outputs, x.shape[1]);
                let op = Op::from(op.clone());
                let work = FusedOp {
                    prologue: FusedPrologue { norm: norm.as_ref().map(|norm| (norm, x)), rope: None },
                    epilogue: Epilogue { halves: *halves, ..Epilogue::default() },
                    ..FusedOp::alone(&op, vec![x, &weight])
                };
                kernels.tilings(&work)
            }
            Self::Experts(FusedExperts { op, x, indices }) => {
                let inputs = x.shape[x.rank() - 1];
                let weight = op.format.packed(op.experts * op.outputs, inputs);
                let types = [x, &weight].into_iter().chain(indices).collect();
                kernels.tilings(&FusedOp::alone(&Op::from(op.clone()), types))
            }
            Self::Attention(FusedAttention { op, types, quantized }) => {
                let op = Op::from(op.clone());
                let layout = FusedLayout { quantized: *quantized, ..FusedLayout::default() };
                kernels.tilings(&FusedOp { layout, ..FusedOp::alone(&op, types.iter().collect()) })
            }
        }
    }
}

/// Returns, for each entry point of an expanded trace, the operations whose kernels support several
/// tilings. The function also returns how often one call of the entry point runs each operation.
pub fn tunable(
    trace: &Trace,
    target: &Target,
) -> Result<BTreeMap<String, BTreeMap<Tunable, usize>>, LowerError> {
    let trace = legalize(trace, &Legalization::needed(target))?;
    let kernels = Kernels::of(target);
    // A function calls only functions before it in the trace.
    let mut found: Vec<BTreeMap<Tunable, usize>> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        let fusions = Fusions::of(function, &kernels);
        let mut works = BTreeMap::new();
        for id in function.ids() {
            if let Some(work) = fusions.at(id).and_then(|fusion| Tunable::of(&fusion.work)) {
                *works.entry(work).or_default() += 1;
            }
            if let NodeKind::Call { function: callee, .. } = &function.node(id).kind {
                for (work, count) in &found[callee.0 as usize] {
                    *works.entry(work.clone()).or_default() += count;
                }
            }
        }
        found.push(works);
    }
    let entry = |id: &FunctionId| (trace.function(*id).name.clone(), found[id.0 as usize].clone());
    Ok(trace.entries.iter().map(entry).collect())
}
