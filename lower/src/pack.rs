//! How the weights of products are stored: in the layout that the target's kernels read.

use std::collections::BTreeSet;

use kernels::Kernels;
use ops::ops::{BinaryKind, BroadcastInDim, Gather, Linear, Pack, PackedLinear, PackedRows};
use ops::{ElementType, InferError, Op, WeightFormat};
use targets::Target;
use trace::{Builder, Function, NodeId, NodeKind, Parameter, Recipe, Trace};

use crate::LowerError;
use crate::rewrite::rewrite;

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

/// The same program with packed weights: where all that a weight is used for are products and lookups of rows, and
/// the target has kernels for them. One stored copy serves all.
///
/// # Errors
/// If weights are to be quantized where there are no kernels; if a node's operands do not fit its operation: the trace
/// was not verified.
pub fn pack(trace: &Trace, weights: Weights, target: &Target) -> Result<Trace, LowerError> {
    let kernels = weights.kernels(target);
    if let Some(format) = weights.quantize.filter(|_| kernels.is_empty()) {
        let (asked, target) = (weights.kernels, target.to_string());
        return Err(LowerError::Quantized { format: format.word(), asked, target });
    }
    if kernels.is_empty() {
        return Ok(trace.clone());
    }
    // By the keys of the functions that declare them: the functions of a layer are of one kind.
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
        let [outputs, inputs] = parameter.ty.shape[..] else { return None };
        let format = weights.quantize.or(WeightFormat::dense(parameter.ty.element))?;
        let serves = parameter.ty.element.is_float() && kernels.serve(format, outputs, inputs);
        (serves && !other.contains(parameter.key.as_str())).then_some(format)
    };
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
    // Without the weights as they were.
    rewrite(&packed, |b, op, operands| b.op(op.clone(), operands))
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
