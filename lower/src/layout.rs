//! How weights are stored: in the layout that the target's kernels read, or quantized in plain order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use kernels::Kernels;
use ops::format::{ActivationBits, PANEL};
use ops::{TensorType, WeightFormat, WeightUse};
use targets::Target;
use trace::{Function, NodeId, NodeKind, Parameter, Trace, key_pattern};

use crate::experts::Experts;

/// The format of the weights of products. All others (norms, biases, what is no product's, products of fewer outputs than a
/// panel has rows) are stored as the network computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// As the network computes.
    #[default]
    Computed,
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
/// let weights = Weights { quantize: Some(WeightFormat::Q4).into(), kernels: false, ..Weights::default() };
/// assert!(weights.quantize.rounds() && !Weights::default().quantize.rounds());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The format of the weights of products.
    pub quantize: Quantization,
    /// Whether kernels of ours compute products, where the target has them. Without them all is StableHLO, and every
    /// weight is stored in the order of the checkpoint.
    pub kernels: bool,
    /// The integers that activations become where weights are integers.
    pub activations: ActivationBits,
}

impl Default for Weights {
    /// Kernels, and weights as the network computes.
    fn default() -> Self {
        Self { quantize: Quantization::Computed, kernels: true, activations: ActivationBits::default() }
    }
}

impl Weights {
    /// The kernels that a module for a target may call.
    pub(crate) fn kernels(&self, target: &Target) -> Kernels {
        if self.kernels { Kernels::of(target) } else { Kernels::none() }
    }
}

/// How a weight is stored that is only multiplied with or looked up by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightLayout {
    Packed(WeightFormat),
    /// In parts, each in the order of the checkpoint.
    Grouped(WeightFormat),
}

impl WeightLayout {
    pub(crate) fn format(self) -> WeightFormat {
        let (Self::Packed(format) | Self::Grouped(format)) = self;
        format
    }
}

/// The layout of each weight that a function of the trace declares, by its key there, or why it is stored as the network
/// computes with it.
pub(crate) type Layouts = BTreeMap<String, Result<WeightLayout, DenseReason>>;

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

/// Chooses the layout of every weight. One stored copy serves all that read it.
pub(crate) fn assign_layouts(trace: &Trace, quantize: &Quantization, kernels: &Kernels) -> Layouts {
    let read_otherwise = used_otherwise(trace);
    let layout = |parameter: &Parameter| {
        let (outputs, inputs) = match parameter.ty.shape[..] {
            [outputs, inputs] => (outputs, inputs),
            // Each matrix of a stack has panels of its own.
            [stacked, outputs, inputs] if outputs.is_multiple_of(PANEL) => (stacked * outputs, inputs),
            _ => return Err(DenseReason::NoMatrix),
        };
        let kept = WeightFormat::dense(parameter.ty.element).ok_or(DenseReason::NoMatrix)?;
        if read_otherwise.contains(parameter.key.as_str()) {
            return Err(DenseReason::ReadOtherwise);
        }
        // Fewer outputs than a panel has rows choose between few things, as a router does: they are small, and one that is
        // rounded to another choice moves everything behind it.
        let wanted = quantize.format(parameter).filter(|_| outputs >= PANEL);
        let format = wanted.unwrap_or(kept);
        let matrix = parameter.ty.rank() == 2 && outputs > 0 && inputs > 0;
        match kernels.serve(format, outputs, inputs) {
            true => Ok(WeightLayout::Packed(format)),
            false if matrix && format.element().is_none() => Ok(WeightLayout::Grouped(format)),
            false if kernels.is_empty() => Err(DenseReason::NoKernels),
            false => Err(DenseReason::Shape),
        }
    };
    let parameters = trace.functions.iter().flat_map(Function::parameters);
    parameters.map(|parameter| (parameter.key.clone(), layout(parameter))).collect()
}

/// The keys of what is not only multiplied with or looked up by rows: as the functions that use it declare them, since
/// those of a layer are of one kind.
fn used_otherwise(trace: &Trace) -> BTreeSet<&str> {
    let mut other = BTreeSet::new();
    for function in &trace.functions {
        for id in function.ids() {
            for (position, operand) in function.operands(id).into_iter().enumerate() {
                if let NodeKind::Parameter(parameter) = &function.node(operand).kind
                    && !may_be_stored(function, id, position)
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

/// Whether an operand in this place may be a weight in a layout.
fn may_be_stored(function: &Function, id: NodeId, position: usize) -> bool {
    let NodeKind::Op(op) = &function.node(id).kind else { return false };
    let experts = |id: NodeId| match &function.node(id).kind {
        NodeKind::Op(op) => Experts::of(function, op, &function.operands(id)).is_some(),
        _ => false,
    };
    match op.weight_use() {
        None => false,
        Some(WeightUse::Matmul) => position == 1,
        Some(WeightUse::Stack) => position == 1 && experts(id),
        Some(WeightUse::Rows) if function.node(function.operands(id)[0]).ty().rank() == 2 => position == 0,
        // Of a stack: if what is chosen is only multiplied with.
        Some(WeightUse::Rows) => {
            position == 0
                && function.ids().filter(|&user| function.operands(user).contains(&id)).all(experts)
                && function.outputs.iter().all(|output| output.node != id)
        }
    }
}
