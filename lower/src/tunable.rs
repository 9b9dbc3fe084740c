//! Which works of a program kernels do that may be cut in several ways, and how often.

use std::collections::BTreeMap;

use kernels::{Epilogue, FusedOp, Kernels, Tilings};
use ops::ops::{PackedExperts, PackedLinear, RmsNorm, Sdpa};
use ops::{Op, TensorType};
use targets::Target;
use trace::{FunctionId, NodeKind, Trace};

use crate::LowerError;
use crate::fusion::Fusions;
use crate::legalize::{Legalization, legalize};

/// A work that one kernel does, by what its speed depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tunable {
    Matmul(FusedMatmul),
    /// A product with a matrix for each row.
    Experts(FusedExperts),
    Attention(FusedAttention),
}

/// A product that one kernel computes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FusedMatmul {
    pub op: PackedLinear,
    /// What is multiplied, `[rows, inputs]`.
    pub x: TensorType,
    /// The norm that it goes through first.
    pub norm: Option<RmsNorm>,
    /// Whether the halves of the result meet: gate and up.
    pub halves: bool,
}

/// A product with a matrix for each row that one kernel computes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FusedExperts {
    pub op: PackedExperts,
    pub x: TensorType,
    /// Which matrix each row has, unless they have them in turn.
    pub indices: Option<TensorType>,
}

/// Attention that one kernel computes, whatever its queries go through before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FusedAttention {
    pub op: Sdpa,
    /// The types of its operands: q, k, v, the offset.
    pub types: Vec<TensorType>,
    /// Whether keys and values are integers, with a scale for each key.
    pub quantized: bool,
}

impl Tunable {
    fn of(work: &FusedOp<'_>) -> Option<Self> {
        Some(match work.op {
            Op::PackedLinear(op) => {
                let x = work.types[0];
                let inputs = x.shape[x.rank() - 1];
                Self::Matmul(FusedMatmul {
                    op: op.clone(),
                    x: TensorType::new(x.element, [x.count() / inputs, inputs]),
                    norm: work.norm.map(|(norm, _)| norm.clone()),
                    halves: work.tail.halves,
                })
            }
            Op::PackedExperts(op) => Self::Experts(FusedExperts {
                op: op.clone(),
                x: work.types[0].clone(),
                indices: work.types.get(2).map(|&ty| ty.clone()),
            }),
            Op::Sdpa(op) => Self::Attention(FusedAttention {
                op: op.clone(),
                types: work.types.iter().map(|&ty| ty.clone()).collect(),
                quantized: work.quantized,
            }),
            _ => return None,
        })
    }

    /// The ways in which a target's kernel may cut it.
    pub fn tilings(&self, target: &Target) -> Option<Tilings> {
        let kernels = Kernels::of(target);
        match self {
            Self::Matmul(FusedMatmul { op, x, norm, halves }) => {
                let weight = op.format.packed(op.outputs, x.shape[1]);
                let op = Op::from(op.clone());
                let work = FusedOp {
                    norm: norm.as_ref().map(|norm| (norm, x)),
                    tail: Epilogue { halves: *halves, ..Epilogue::default() },
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
                let work = FusedOp { quantized: *quantized, ..FusedOp::alone(&op, types.iter().collect()) };
                kernels.tilings(&work)
            }
        }
    }
}

/// Of each entry point of an expanded trace: the works that kernels of the target do and may cut in several ways, and how
/// often a call does.
///
/// # Errors
/// If the trace is not one that lowers.
pub fn tunable(
    trace: &Trace,
    target: &Target,
) -> Result<BTreeMap<String, BTreeMap<Tunable, usize>>, LowerError> {
    let trace = legalize(trace, &Legalization::needed(target))?;
    let kernels = Kernels::of(target);
    // A function calls only earlier ones.
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
