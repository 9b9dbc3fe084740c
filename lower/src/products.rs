//! Which products a program computes by kernels, and how often.

use std::collections::BTreeMap;

use kernels::{Kernels, Tail, Tilings, Work};
use ops::ops::{PackedLinear, RmsNorm};
use ops::{Op, TensorType};
use targets::Target;
use trace::{FunctionId, NodeKind, Trace};

use crate::LowerError;
use crate::fusion::Fusions;
use crate::legalize::{Legalization, legalize};

/// A product that one kernel computes, by what its speed depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FusedProduct {
    /// The product.
    pub op: PackedLinear,
    /// What is multiplied, `[rows, inputs]`.
    pub x: TensorType,
    /// The norm that it goes through first.
    pub norm: Option<RmsNorm>,
    /// Whether the halves of the result meet: gate and up.
    pub halves: bool,
}

impl FusedProduct {
    fn of(work: &Work<'_>) -> Option<Self> {
        let Op::PackedLinear(op) = work.op else { return None };
        let x = work.types[0];
        let inputs = x.shape[x.rank() - 1];
        Some(Self {
            op: op.clone(),
            x: TensorType::new(x.element, [x.count() / inputs, inputs]),
            norm: work.norm.map(|(norm, _)| norm.clone()),
            halves: work.tail.halves,
        })
    }

    /// The ways in which a target's kernel may cut it.
    pub fn tilings(&self, target: &Target) -> Option<Tilings> {
        let op = Op::from(self.op.clone());
        let weight = self.op.format.packed(self.op.outputs, self.x.shape[1]);
        let work = Work {
            norm: self.norm.as_ref().map(|norm| (norm, &self.x)),
            tail: Tail { halves: self.halves, ..Tail::default() },
            ..Work::alone(&op, vec![&self.x, &weight])
        };
        Kernels::of(target).tilings(&work)
    }
}

/// Of each entry point of an expanded trace: the products that kernels of the target compute, and how often a call does.
///
/// # Errors
/// If the trace is not one that lowers.
pub fn products(
    trace: &Trace,
    target: &Target,
) -> Result<BTreeMap<String, BTreeMap<FusedProduct, usize>>, LowerError> {
    let trace = legalize(trace, &Legalization::needed(target))?;
    let kernels = Kernels::of(target);
    // A function calls only earlier ones.
    let mut found: Vec<BTreeMap<FusedProduct, usize>> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        let fusions = Fusions::of(function, &kernels);
        let mut products = BTreeMap::new();
        for id in function.ids() {
            if let Some(product) = fusions.at(id).and_then(|fusion| FusedProduct::of(&fusion.work)) {
                *products.entry(product).or_default() += 1;
            }
            if let NodeKind::Call { function: callee, .. } = &function.node(id).kind {
                for (product, count) in &found[callee.0 as usize] {
                    *products.entry(product.clone()).or_default() += count;
                }
            }
        }
        found.push(products);
    }
    let entry = |id: &FunctionId| (trace.function(*id).name.clone(), found[id.0 as usize].clone());
    Ok(trace.entries.iter().map(entry).collect())
}
