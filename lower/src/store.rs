//! How the weights of products are stored: in the layout that the target's kernels read, or quantized in plain order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use kernels::Kernels;
use ops::format::{GroupPart, PANEL};
use ops::ops::{
    BinaryKind, BroadcastInDim, Gather, GroupedLinear, GroupedRows, Linear, Pack, PackedLinear, PackedRows,
    Quantize,
};
use ops::{ElementType, InferError, Op, TensorType, WeightFormat};
use targets::Target;
use trace::{Builder, Function, NodeId, NodeKind, Parameter, Trace, key_pattern};

use crate::LowerError;
use crate::derive::{made, step};
use crate::experts::Experts;
use crate::rewrite::rewrite;

/// The format of the weights of products. All others (norms, biases, what is no product's, products of fewer outputs than a
/// panel has rows) are stored as the network computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// As the network computes.
    #[default]
    Computed,
    /// One for all.
    All(WeightFormat),
    /// By the patterns of their keys, as a checkpoint holds them; others as the network computes.
    ByKey(Arc<BTreeMap<String, WeightFormat>>),
}

impl Quantization {
    /// By the patterns of their keys; as the network computes if there are none.
    pub fn by_key(formats: BTreeMap<String, WeightFormat>) -> Self {
        if formats.is_empty() { Self::Computed } else { Self::ByKey(Arc::new(formats)) }
    }

    /// Whether some weights are rounded, or were when they came.
    pub fn rounds(&self) -> bool {
        *self != Self::Computed
    }

    /// The format of a parameter; `None` if it is stored as the network computes.
    fn format(&self, parameter: &Parameter) -> Option<WeightFormat> {
        match self {
            Self::Computed => None,
            Self::All(format) => Some(*format),
            Self::ByKey(formats) => {
                let of = |(key, _): (&str, &TensorType)| formats.get(&key_pattern(key)).copied();
                let formats = parameter.sources().into_iter().map(of).collect::<Option<Vec<_>>>()?;
                let (first, others) = formats.split_first()?;
                // Of several formats eight bits lose the least.
                let one = others.iter().all(|other| other == first);
                Some(if one { *first } else { WeightFormat::Q8 })
            }
        }
    }
}

impl From<Option<WeightFormat>> for Quantization {
    fn from(format: Option<WeightFormat>) -> Self {
        format.map_or(Self::Computed, Self::All)
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Computed => "none",
            Self::All(format) => format.word(),
            Self::ByKey(_) => "stored",
        })
    }
}

/// How weights are stored, and who multiplies with them.
///
/// ```
/// use ops::WeightFormat;
/// use tracewright_lower::Weights;
///
/// // 4.5 bits for each weight of a product, and StableHLO alone.
/// let weights = Weights { quantize: Some(WeightFormat::Q4).into(), kernels: false };
/// assert!(weights.quantize.rounds() && !Weights::default().quantize.rounds());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The format of the weights of products.
    pub quantize: Quantization,
    /// Whether kernels of ours compute products, where the target has them. Without them all is StableHLO, and every
    /// weight is stored in the order of the checkpoint.
    pub kernels: bool,
}

impl Default for Weights {
    /// Kernels, and weights as the network computes.
    fn default() -> Self {
        Self { quantize: Quantization::Computed, kernels: true }
    }
}

impl Weights {
    /// The kernels that a module for a target may call.
    pub(crate) fn kernels(&self, target: &Target) -> Kernels {
        if self.kernels { Kernels::of(target) } else { Kernels::none() }
    }
}

/// How a weight is stored that is only multiplied with or looked up by rows.
#[derive(Clone, Copy)]
enum Stored {
    /// In panels, for kernels.
    Packed(WeightFormat),
    /// In parts, each in the order of the checkpoint.
    Grouped(WeightFormat),
}

/// Why a weight is stored as the network computes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DenseReason {
    /// There are no kernels.
    NoKernels,
    /// It is no matrix of floats, and no stack of them: the weight of a norm, a bias.
    NoMatrix,
    /// Something else than products and lookups of rows reads it.
    ReadOtherwise,
    /// Kernels do not serve its shape.
    Shape,
}

impl fmt::Display for DenseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKernels => "there are no kernels",
            Self::NoMatrix => "no matrix",
            Self::ReadOtherwise => "read by more than products and lookups of rows",
            Self::Shape => "kernels do not serve its shape",
        })
    }
}

/// What decides how weights are stored.
struct Storage<'t> {
    kernels: Kernels,
    quantize: &'t Quantization,
    read_otherwise: BTreeSet<&'t str>,
}

impl<'t> Storage<'t> {
    fn of(trace: &'t Trace, weights: &'t Weights, target: &Target) -> Self {
        let (kernels, quantize) = (weights.kernels(target), &weights.quantize);
        Self { kernels, quantize, read_otherwise: used_otherwise(trace) }
    }

    fn stored(&self, parameter: &Parameter) -> Result<Stored, DenseReason> {
        let (outputs, inputs) = match parameter.ty.shape[..] {
            [outputs, inputs] => (outputs, inputs),
            // Each matrix of a stack has panels of its own.
            [stacked, outputs, inputs] if outputs.is_multiple_of(PANEL) => (stacked * outputs, inputs),
            _ => return Err(DenseReason::NoMatrix),
        };
        let kept = WeightFormat::dense(parameter.ty.element).ok_or(DenseReason::NoMatrix)?;
        if self.read_otherwise.contains(parameter.key.as_str()) {
            return Err(DenseReason::ReadOtherwise);
        }
        // Fewer outputs than a panel has rows choose between few things, as a router does: they are small, and one that is
        // rounded to another choice moves everything behind it.
        let wanted = self.quantize.format(parameter).filter(|_| outputs >= PANEL);
        let format = wanted.unwrap_or(kept);
        let matrix = parameter.ty.rank() == 2 && outputs > 0 && inputs > 0;
        match self.kernels.serve(format, outputs, inputs) {
            true => Ok(Stored::Packed(format)),
            false if matrix && format.element().is_none() => Ok(Stored::Grouped(format)),
            false if self.kernels.is_empty() => Err(DenseReason::NoKernels),
            false => Err(DenseReason::Shape),
        }
    }
}

/// The format of each weight that a function of the trace declares, by its key there, or why it is stored as the network
/// computes with it.
pub fn formats(
    trace: &Trace,
    weights: &Weights,
    target: &Target,
) -> BTreeMap<String, Result<WeightFormat, DenseReason>> {
    let storage = Storage::of(trace, weights, target);
    let format = |parameter: &Parameter| {
        let (Stored::Packed(format) | Stored::Grouped(format)) = storage.stored(parameter)?;
        Ok(format)
    };
    let parameters = trace.functions.iter().flat_map(Function::parameters);
    parameters.map(|parameter| (parameter.key.clone(), format(parameter))).collect()
}

/// The same program with weights as they are stored: where all that a weight is used for are products and lookups of
/// rows, it is packed if the target has kernels for them, and else quantized if that is wanted. One stored copy serves
/// all.
///
/// # Errors
/// If a node's operands do not fit its operation: the trace was not verified.
pub fn store(trace: &Trace, weights: &Weights, target: &Target) -> Result<Trace, LowerError> {
    let storage = Storage::of(trace, weights, target);
    if storage.kernels.is_empty() && !weights.quantize.rounds() {
        return Ok(trace.clone());
    }
    let weight = |function: &Function, id: NodeId| match &function.node(id).kind {
        NodeKind::Parameter(parameter) if parameter.ty.rank() == 2 => {
            storage.stored(parameter).ok().map(|stored| (stored, parameter.clone()))
        }
        _ => None,
    };
    let packed = rewrite(trace, |b, op, operands| match op {
        Op::Linear(Linear {}) => match weight(b.function, operands[1]) {
            Some((stored, parameter)) => linear(b, stored, &parameter, operands),
            None => b.op(op.clone(), operands),
        },
        Op::Gather(Gather {}) => match weight(b.function, operands[0]) {
            Some((stored, parameter)) => rows(b, stored, &parameter, operands[1]),
            None => b.op(op.clone(), operands),
        },
        Op::DotGeneral(dot) => {
            let experts = Experts::of(b.function, dot, operands);
            match experts.map(|experts| (storage.stored(&experts.weight), experts)) {
                Some((Ok(Stored::Packed(format)), experts)) => {
                    experts.product(b, format, dot.element, operands[0])
                }
                _ => b.op(op.clone(), operands),
            }
        }
        _ => b.op(op.clone(), operands),
    })?;
    // Without the weights as they were.
    rewrite(&packed, |b, op, operands| b.op(op.clone(), operands))
}

/// The keys of what is not only multiplied with or looked up by rows: as the functions that use it declare them, since
/// those of a layer are of one kind.
fn used_otherwise(trace: &Trace) -> BTreeSet<&str> {
    let mut other = BTreeSet::new();
    for function in &trace.functions {
        for id in function.ids() {
            for (position, operand) in function.operands(id).into_iter().enumerate() {
                if let NodeKind::Parameter(parameter) = &function.node(operand).kind
                    && !is_product(function, id, position)
                {
                    other.insert(parameter.key.as_str());
                }
            }
        }
        for output in &function.outputs {
            if let NodeKind::Parameter(parameter) = &function.node(output.node).kind {
                other.insert(&parameter.key);
            }
        }
    }
    other
}

/// Whether an operand in this place may be a weight that is stored otherwise.
fn is_product(function: &Function, id: NodeId, position: usize) -> bool {
    let experts = |id: NodeId| match &function.node(id).kind {
        NodeKind::Op(Op::DotGeneral(dot)) => Experts::of(function, dot, &function.operands(id)).is_some(),
        _ => false,
    };
    match &function.node(id).kind {
        NodeKind::Op(Op::Linear(_)) => position == 1,
        NodeKind::Op(Op::Gather(_)) if function.node(function.operands(id)[0]).ty().rank() == 2 => {
            position == 0
        }
        // Of a stack: if what is chosen is only multiplied with.
        NodeKind::Op(Op::Gather(_)) => {
            position == 0
                && function.ids().filter(|&user| function.operands(user).contains(&id)).all(experts)
                && function.outputs.iter().all(|output| output.node != id)
        }
        _ => position == 1 && experts(id),
    }
}

/// A parameter in panels.
fn packed(b: &mut Builder<'_>, format: WeightFormat, parameter: &Parameter) -> Result<NodeId, InferError> {
    made(b, parameter.key.clone(), parameter, |matrix| step(Pack { format }, matrix))
}

/// The parts of a parameter in groups. The integers keep its key.
fn grouped(
    b: &mut Builder<'_>,
    format: WeightFormat,
    parameter: &Parameter,
) -> Result<Vec<NodeId>, InferError> {
    let key = &parameter.key;
    let mut part = |&part: &GroupPart| {
        let key = if part == GroupPart::Integers { key.clone() } else { format!("{key}.{}", part.word()) };
        made(b, key, parameter, |matrix| step(Quantize { format, part }, matrix))
    };
    format.parts().iter().map(&mut part).collect()
}

/// A product and its bias, rounded once.
fn linear(
    b: &mut Builder<'_>,
    stored: Stored,
    parameter: &Parameter,
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let (x, outputs) = (operands[0], parameter.ty.shape[0]);
    let narrow = b.ty(x).element;
    let product = |b: &mut Builder<'_>, element| match stored {
        Stored::Packed(format) => {
            let packed = packed(b, format, parameter)?;
            b.op(PackedLinear { format, outputs, element }, &[x, packed])
        }
        Stored::Grouped(format) => {
            let operands = [vec![x], grouped(b, format, parameter)?].concat();
            b.op(GroupedLinear { format, element }, &operands)
        }
    };
    let Some(&bias) = operands.get(2) else { return product(b, narrow) };
    let sum = product(b, ElementType::F32)?;
    let bias = b.convert(bias, ElementType::F32)?;
    let shape = b.ty(sum).shape.clone();
    let last = shape.len() - 1;
    let bias = b.op(BroadcastInDim { shape, axes: vec![last] }, &[bias])?;
    let sum = b.binary(BinaryKind::Add, sum, bias)?;
    b.convert(sum, narrow)
}

/// Rows of a weight.
fn rows(
    b: &mut Builder<'_>,
    stored: Stored,
    parameter: &Parameter,
    indices: NodeId,
) -> Result<NodeId, InferError> {
    let [outputs, inputs] = parameter.ty.shape[..] else { unreachable!("a matrix is stored") };
    let element = parameter.ty.element;
    match stored {
        Stored::Packed(format) => {
            let packed = packed(b, format, parameter)?;
            b.op(PackedRows { format, outputs, inputs, element }, &[packed, indices])
        }
        Stored::Grouped(format) => {
            let operands = [grouped(b, format, parameter)?, vec![indices]].concat();
            b.op(GroupedRows { format, inputs, element }, &operands)
        }
    }
}
