//! Decides how the archive stores each weight: in the layout of the target's kernels, quantized in the
//! checkpoint's order, or unquantized.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kernels::Kernels;
use ops::format::{ActivationBits, PANEL};
use ops::{WeightFormat, WeightUse};
use targets::Target;
use trace::{Function, NodeId, NodeKind, Parameter, Quantization, Trace, key_pattern};

use crate::experts::Experts;
use crate::mixed::{Matrices, matrices, mixed};

/// The reason why a tensor-name pattern in a map of storage formats does not match a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("the pattern `{pattern}` matches no weight matrix of the network{}", nearest.as_ref().map_or(String::new(), |known| format!("; did you mean `{known}`?")))]
    Unknown { pattern: String, nearest: Option<String> },
    #[error("the weight `{pattern}` has fewer than two axes, expected a matrix; leave this weight out")]
    NoMatrix { pattern: String },
}

impl PatternError {
    fn of(pattern: &str, trace: &Trace, known: &Matrices) -> Self {
        let pattern = pattern.to_owned();
        let keys = trace.functions.iter().flat_map(Function::parameters).flat_map(Parameter::sources);
        if keys.map(|(key, _)| key_pattern(key)).any(|key| key == pattern) {
            return Self::NoMatrix { pattern };
        }
        let similar = known.keys().map(|key| (strsim::jaro(key, &pattern), key));
        let nearest = similar.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(similarity, _)| *similarity > 0.8);
        Self::Unknown { nearest: nearest.map(|(_, key)| key.clone()), pattern }
    }
}

/// If the storage formats depend on the network, the function returns a storage format for each
/// matrix of the recorded network. If the storage formats do not depend on the network, the
/// function returns the choice of storage formats without changes.
pub fn resolved(quantize: &Quantization, trace: &Trace) -> Result<Quantization, PatternError> {
    let (base, changes) = match quantize {
        Quantization::Computed | Quantization::All(_) | Quantization::ByKey(_) => {
            return Ok(quantize.clone());
        }
        Quantization::Mixed(format) => return Ok(Quantization::by_key(mixed(trace, *format))),
        Quantization::Mapped { base, formats } => (resolved(base, trace)?, formats),
    };
    let known = matrices(trace);
    let mut formats = match base {
        Quantization::All(format) => known.keys().map(|pattern| (pattern.clone(), format)).collect(),
        Quantization::ByKey(formats) => BTreeMap::clone(&formats),
        _ => BTreeMap::new(),
    };
    for (pattern, format) in &**changes {
        if !known.contains_key(pattern) {
            return Err(PatternError::of(pattern, trace, &known));
        }
        formats.retain(|key, _| key_pattern(key) != *pattern);
        if let Some(format) = format {
            formats.insert(pattern.clone(), *format);
        }
    }
    Ok(Quantization::by_key(formats))
}

/// How the archive stores weights, and whether Tracewright's kernels compute the matmuls.
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
    /// The storage format of the weights that matmuls read.
    pub quantize: Quantization,
    /// Whether Tracewright's kernels compute matmuls, on targets that have kernels. Without kernels, the
    /// module contains only StableHLO, and the archive stores weights in the order of the checkpoint.
    pub kernels: bool,
    /// The number of bits of the integers to which the program rounds activations, before a matmul
    /// with a quantized weight.
    pub activations: ActivationBits,
}

impl Default for Weights {
    /// By default, kernels compute matmuls, and the archive stores weights in the element type of the network.
    fn default() -> Self {
        Self { quantize: Quantization::Computed, kernels: true, activations: ActivationBits::default() }
    }
}

impl Weights {
    /// Returns a copy of the options with the storage [formats for a network](resolved).
    pub fn resolved(self, trace: &Trace) -> Result<Self, PatternError> {
        Ok(Self { quantize: resolved(&self.quantize, trace)?, ..self })
    }

    /// Whether a module for this target calls Tracewright's kernels.
    pub fn have_kernels(&self, target: &Target) -> bool {
        !self.kernels(target).is_empty()
    }

    /// The kernels that a module for this target can call.
    pub(crate) fn kernels(&self, target: &Target) -> Kernels {
        if self.kernels { Kernels::of(target) } else { Kernels::none() }
    }
}

/// The memory layout of a weight that the network reads only in matmuls or row lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightLayout {
    Packed(WeightFormat),
    /// Several tensors of the archive contain the weight, each in the order of the checkpoint.
    Grouped(WeightFormat),
}

impl WeightLayout {
    pub(crate) fn format(self) -> WeightFormat {
        let (Self::Packed(format) | Self::Grouped(format)) = self;
        format
    }
}

/// The layout of each weight, by the weight's key in the function that declares it. If the archive
/// stores the weight unquantized, the value in the map is an error with the reason.
pub(crate) type Layouts = BTreeMap<String, Result<WeightLayout, DenseReason>>;

/// The reason why the archive stores a weight in the element type of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DenseReason {
    /// The target has no kernels.
    NoKernels,
    /// The weight is neither a matrix of floats nor a stack of matrices of floats. For example, the
    /// weight belongs to a norm, or the weight is a bias.
    NoMatrix,
    /// The weight is an operand of an operation that is neither a matmul nor a row lookup.
    ReadOtherwise,
    /// No kernel supports the shape of the weight.
    Shape,
}

impl fmt::Display for DenseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKernels => "there are no kernels",
            Self::NoMatrix => "no matrix",
            Self::ReadOtherwise => "not only matmuls and row lookups read them",
            Self::Shape => "kernels do not support their shape",
        })
    }
}

/// Chooses the layout of every weight. The archive stores each weight only once, in one layout for
/// all operations that read the weight.
pub(crate) fn assign_layouts(trace: &Trace, quantize: &Quantization, kernels: &Kernels) -> Layouts {
    let read_otherwise = used_otherwise(trace);
    let layout = |parameter: &Parameter| {
        let (outputs, inputs) = match parameter.ty.shape[..] {
            [outputs, inputs] => (outputs, inputs),
            // Each matrix of a stack has its own panels.
            [stacked, outputs, inputs] if outputs.is_multiple_of(PANEL) => (stacked * outputs, inputs),
            _ => return Err(DenseReason::NoMatrix),
        };
        let kept = WeightFormat::dense(parameter.ty.element).ok_or(DenseReason::NoMatrix)?;
        if read_otherwise.contains(parameter.key.as_str()) {
            return Err(DenseReason::ReadOtherwise);
        }
        // A matrix with fewer than 16 outputs, such as a router, selects among few options. Such a
        // matrix is small, and a rounding error that changes its selection changes all later
        // values. It stays unquantized.
        let wanted = quantize.format(parameter).filter(|_| outputs >= PANEL);
        let format = wanted.unwrap_or(kept);
        let matrix = parameter.ty.rank() == 2 && outputs > 0 && inputs > 0;
        match kernels.serve(format, outputs, inputs) {
            true => Ok(WeightLayout::Packed(format)),
            false if matrix && format.groups().is_some() => Ok(WeightLayout::Grouped(format)),
            false if kernels.is_empty() => Err(DenseReason::NoKernels),
            false => Err(DenseReason::Shape),
        }
    };
    let parameters = trace.functions.iter().flat_map(Function::parameters);
    parameters.map(|parameter| (parameter.key.clone(), layout(parameter))).collect()
}

/// Returns the keys of those weights that are operands of operations other than matmuls and row
/// lookups. Each key is the weight's key in the function that declares the weight, because all
/// layers that call this function share one layout.
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

/// Whether the operand at the given position of an operation may be a weight in a special memory layout.
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
        // A stack of matrices can have a layout only if every reader of the selected matrices is a matmul.
        Some(WeightUse::Rows) => {
            position == 0
                && function.ids().filter(|&user| function.operands(user).contains(&id)).all(experts)
                && function.outputs.iter().all(|output| output.node != id)
        }
    }
}
