//! How the weights of products are stored: in the layout that the target's kernels read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kernels::Kernels;
use ops::ops::{Binary, BinaryKind, BroadcastInDim, Gather, Linear, Pack, PackedLinear, PackedRows};
use ops::{ElementType, InferError, Op, WeightFormat};
use targets::Target;
use trace::{Builder, Function, NodeId, NodeKind, Parameter, Recipe, Trace};

use crate::LowerError;
use crate::rewrite::{Site, rewrite, rewrite_sites};

/// How weights are stored, and who multiplies with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The format of the weights of products, as far as kernels serve it; as the network computes if there is none.
    /// All others (norms, biases, what is no product's) stay as the network computes.
    pub quantize: Option<WeightFormat>,
    /// Whether kernels of ours compute products, where the target has them. Without them all is StableHLO, and every
    /// weight is stored as the checkpoint has it.
    pub kernels: bool,
}

impl Default for Weights {
    /// Kernels, and weights as the network computes.
    fn default() -> Self {
        Self { quantize: None, kernels: true }
    }
}

impl Weights {
    /// The kernels that a module for a target may call.
    pub(crate) fn kernels(self, target: &Target) -> Kernels {
        if self.kernels { Kernels::of(target) } else { Kernels::none() }
    }
}

/// Why a weight is stored as the network computes with it, and not packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unpacked {
    /// There are no kernels.
    NoKernels,
    /// It is no matrix of floats: the weight of a norm, a bias.
    NoMatrix,
    /// Something else than products and lookups of rows reads it.
    ReadOtherwise,
    /// Kernels do not serve its shape.
    Shape,
}

impl fmt::Display for Unpacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKernels => "there are no kernels",
            Self::NoMatrix => "no matrix",
            Self::ReadOtherwise => "read by more than products and lookups of rows",
            Self::Shape => "kernels do not serve its shape",
        })
    }
}

/// The format of each weight that a function of the trace declares, by its key there, or why it has none: a weight is
/// packed where all that it is used for are products and lookups of rows, and the target has kernels for them.
///
/// # Errors
/// If weights are to be quantized where there are no kernels.
pub fn formats(
    trace: &Trace,
    weights: Weights,
    target: &Target,
) -> Result<BTreeMap<String, Result<WeightFormat, Unpacked>>, LowerError> {
    let kernels = weights.kernels(target);
    if let Some(format) = weights.quantize.filter(|_| kernels.is_empty()) {
        let (asked, target) = (weights.kernels, target.to_string());
        return Err(LowerError::Quantized { format: format.word(), asked, target });
    }
    let mut other: BTreeSet<&str> = BTreeSet::new();
    for function in &trace.functions {
        for id in function.ids() {
            for (position, operand) in function.operands(id).into_iter().enumerate() {
                if let NodeKind::Parameter(parameter) = &function.node(operand).kind
                    && !is_product(&function.node(id).kind, position)
                {
                    other.insert(&parameter.key);
                }
            }
        }
        for output in &function.outputs {
            if let NodeKind::Parameter(parameter) = &function.node(output.node).kind {
                other.insert(&parameter.key);
            }
        }
    }
    let format = |parameter: &Parameter| {
        let matrix = match parameter.ty.shape[..] {
            _ if kernels.is_empty() => return Err(Unpacked::NoKernels),
            [outputs, inputs] => {
                WeightFormat::dense(parameter.ty.element).map(|kept| (kept, outputs, inputs))
            }
            _ => None,
        };
        let (kept, outputs, inputs) = matrix.ok_or(Unpacked::NoMatrix)?;
        let format = weights.quantize.unwrap_or(kept);
        match kernels.serve(format, outputs, inputs) {
            _ if other.contains(parameter.key.as_str()) => Err(Unpacked::ReadOtherwise),
            true => Ok(format),
            false => Err(Unpacked::Shape),
        }
    };
    let parameters = trace.functions.iter().flat_map(Function::parameters);
    Ok(parameters.map(|parameter| (parameter.key.clone(), format(parameter))).collect())
}

/// The same program with the weights packed that have a [format](formats()). One stored copy serves all uses.
///
/// # Errors
/// If weights are to be quantized where there are no kernels; if a node's operands do not fit its operation: the trace
/// was not verified.
pub fn pack(trace: &Trace, weights: Weights, target: &Target) -> Result<Trace, LowerError> {
    let formats = formats(trace, weights, target)?;
    if weights.kernels(target).is_empty() {
        return Ok(trace.clone());
    }
    let format = |parameter: &Parameter| formats.get(&parameter.key)?.ok();
    let weight = |function: &Function, id: NodeId| match &function.node(id).kind {
        NodeKind::Parameter(parameter) => format(parameter).map(|format| (format, parameter.clone())),
        _ => None,
    };
    let packed = rewrite(trace, |b, op, operands| match op {
        Op::Linear(Linear {}) => match weight(b.function, operands[1]) {
            Some((format, parameter)) => linear(b, format, &parameter, operands),
            None => b.op(op.clone(), operands),
        },
        Op::Gather(Gather {}) => match weight(b.function, operands[0]) {
            Some((format, parameter)) => {
                let (outputs, inputs) = (parameter.ty.shape[0], parameter.ty.shape[1]);
                let element = parameter.ty.element;
                let packed = packed(b, format, &parameter)?;
                b.op(PackedRows { format, outputs, inputs, element }, &[packed, operands[1]])
            }
            None => b.op(op.clone(), operands),
        },
        _ => b.op(op.clone(), operands),
    })?;
    // Without the weights as they were; what is added to products goes into them.
    rewrite_sites(&packed, |b, site, op, operands| match added(b, site, op, operands) {
        Some((product, operands)) => b.op(product, &operands),
        None => b.op(op.clone(), operands),
    })
}

/// The product that a sum adds something to, and its operands then: if nothing else needs it.
fn added(
    b: &Builder<'_>,
    site: &Site<'_>,
    op: &Op,
    operands: &[NodeId],
) -> Option<(PackedLinear, Vec<NodeId>)> {
    let Op::Binary(Binary { kind: BinaryKind::Add }) = op else { return None };
    let before = site.function.operands(site.id);
    [(1, 0), (0, 1)].into_iter().find_map(|(product, other)| {
        let NodeKind::Op(Op::PackedLinear(op)) = &b.function.node(operands[product]).kind else {
            return None;
        };
        let mut new = b.function.operands(operands[product]);
        new.push(operands[other]);
        let fits = new.len() == 3 && b.ty(operands[other]) == b.ty(operands[product]);
        (fits && site.alone_uses(before[product])).then(|| (op.clone(), new))
    })
}

/// Whether an operand in this place may be a packed weight.
fn is_product(kind: &NodeKind, position: usize) -> bool {
    match kind {
        NodeKind::Op(Op::Linear(_)) => position == 1,
        NodeKind::Op(Op::Gather(_)) => position == 0,
        _ => false,
    }
}

/// A parameter, packed when the archive is written.
fn packed(b: &mut Builder<'_>, format: WeightFormat, parameter: &Parameter) -> Result<NodeId, InferError> {
    let source = match &parameter.recipe {
        Some(recipe) => Recipe::clone(recipe),
        None => Recipe::Source(parameter.key.clone(), parameter.ty.clone()),
    };
    let recipe = Recipe::Op(Pack { format }.into(), vec![source]);
    let parameter = Parameter::derived(parameter.key.clone(), recipe)?;
    let ty = parameter.ty.clone();
    Ok(b.push(NodeKind::Parameter(parameter), vec![ty], &[]))
}

/// A product and its bias, rounded once.
fn linear(
    b: &mut Builder<'_>,
    format: WeightFormat,
    parameter: &Parameter,
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let (x, outputs) = (operands[0], parameter.ty.shape[0]);
    let narrow = b.ty(x).element;
    let packed = packed(b, format, parameter)?;
    let Some(&bias) = operands.get(2) else {
        return b.op(PackedLinear { format, outputs, element: narrow }, &[x, packed]);
    };
    let sum = b.op(PackedLinear { format, outputs, element: ElementType::F32 }, &[x, packed])?;
    let bias = b.convert(bias, ElementType::F32)?;
    let shape = b.ty(sum).shape.clone();
    let last = shape.len() - 1;
    let bias = b.op(BroadcastInDim { shape, axes: vec![last] }, &[bias])?;
    let sum = b.binary(BinaryKind::Add, sum, bias)?;
    b.convert(sum, narrow)
}
