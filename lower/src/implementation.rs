//! Decides how the program computes each node of a simplified trace: with a kernel, with an idiom or as
//! StableHLO. The decisions of this module determine the layouts of weights, and how the program expands
//! composite operations. In the expanded trace, kernels compute the remaining composite operations, and
//! idioms of IREE replace certain operations. All other operations become StableHLO.

use std::collections::BTreeMap;

use kernels::FusedOp;
use ops::{Op, TensorType, WeightFormat, WeightUse};
use targets::{Numerics, Target};
use trace::{Function, NodeId, NodeKind, Parameter, Trace};

use crate::cuda::{CudaCalls, has_cuda_kernels};
use crate::experts::Experts;
use crate::layout::{DenseReason, Layouts, WeightLayout, Weights, assign_layouts, resolved};
use crate::quantized::QuantizedMatmul;
use crate::{LowerError, idiom};

pub(crate) enum Implementation {
    /// One of Tracewright's kernels computes the node. If the kernel reads a weight, the archive
    /// stores the weight in panels.
    Kernel(Option<StoredWeight>),
    /// An idiom (an operation in IREE's own dialects) replaces the operation of the node.
    Idiom(Op),
    /// StableHLO code computes the node, and reads a quantized weight in the order of the checkpoint.
    Grouped(StoredWeight),
    /// StableHLO code computes the node: the code from the converter of the operation, or the
    /// statement that StableHLO has for the operation.
    StableHlo,
}

/// A weight in a special memory layout, and the operation that reads the weight.
pub(crate) struct StoredWeight {
    pub(crate) layout: WeightLayout,
    pub(crate) reader: WeightReader,
}

/// How an operation reads a weight in a special memory layout.
pub(crate) enum WeightReader {
    /// The operation is a matmul with the weight as its matrix.
    Matmul(Parameter),
    /// The operation looks up rows of the weight matrix.
    Rows(Parameter),
    /// The operation is a matmul with a stack of matrices.
    Experts(Experts),
}

/// How the program computes each node of a trace on a certain target.
pub struct Implementations<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) quantized: QuantizedMatmul,
    layouts: Layouts,
    /// For each function of the trace, the implementation of each node.
    nodes: Vec<Vec<Implementation>>,
}

impl<'t> Implementations<'t> {
    /// Decides how the program computes each node of a simplified trace.
    ///
    /// # Errors Returns an error if the trace caches keys and values in 8 bits but the target has
    /// no kernels. Only kernels can read a KV cache of 8-bit integers.
    pub fn of(trace: &'t Trace, weights: &Weights, target: &Target) -> Result<Self, LowerError> {
        let kernels = weights.kernels(target);
        // With iree-compile 3.13, primitive operations and kernels compute the same values, except
        // for numbers halfway between two integers.
        if kernels.is_empty() && has(trace, |op| matches!(op, Op::Dequantize(_))) {
            return Err(LowerError::IntegersWithoutKernels);
        }
        if kernels.is_empty() && target.numerics != Numerics::Fast {
            return Err(LowerError::NumericsWithoutKernels(target.numerics));
        }
        let layouts = assign_layouts(trace, &resolved(&weights.quantize, trace)?, &kernels);
        let has_rings = has(trace, |op| matches!(op, Op::Append(append) if append.ring));
        let program = idiom::Program { target, has_rings };
        let calls_cuda = weights.kernels && has_cuda_kernels(target);
        let node = |function: &Function, cuda: Option<&CudaCalls>, id: NodeId| {
            let NodeKind::Op(op) = &function.node(id).kind else { return Implementation::StableHlo };
            if cuda.is_some_and(|calls| calls.computes(id)) {
                return Implementation::Kernel(None);
            }
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
        let of_function = |function: &Function| {
            let cuda = calls_cuda.then(|| CudaCalls::of(function, &layouts));
            function.ids().map(|id| node(function, cuda.as_ref(), id)).collect()
        };
        let nodes = nodes.map(of_function).collect();
        let quantized = QuantizedMatmul::of(weights.activations, target);
        Ok(Self { trace, quantized, layouts, nodes })
    }

    /// Returns the implementation of a node in the function with the index `function`.
    pub(crate) fn at(&self, (function, id): (usize, NodeId)) -> &Implementation {
        &self.nodes[function][id.index()]
    }

    /// Whether the archive stores any weight in another layout than the checkpoint.
    pub(crate) fn stores(&self) -> bool {
        self.layouts.values().any(Result::is_ok)
    }

    /// Returns the storage format of each weight, by the weight's key in the function that declares it. If
    /// the archive stores the weight unquantized, the value in the map is an error with the reason.
    pub fn formats(&self) -> BTreeMap<String, Result<WeightFormat, DenseReason>> {
        let formats = self.layouts.iter();
        formats.map(|(key, layout)| (key.clone(), layout.map(WeightLayout::format))).collect()
    }
}

impl StoredWeight {
    /// Returns the implementation of an operation that reads a weight in a special memory layout.
    fn of(layouts: &Layouts, function: &Function, op: &Op, operands: &[NodeId]) -> Option<Self> {
        let layout = |parameter: &Parameter| layouts.get(&parameter.key)?.ok();
        let matrix = |operand: usize| match &function.node(operands[operand]).kind {
            NodeKind::Parameter(parameter) if parameter.ty.rank() == 2 => Some(parameter),
            _ => None,
        };
        let (layout, reader) = match op.weight_use()? {
            WeightUse::Matmul => (layout(matrix(1)?)?, WeightReader::Matmul(matrix(1)?.clone())),
            WeightUse::Rows => (layout(matrix(0)?)?, WeightReader::Rows(matrix(0)?.clone())),
            WeightUse::Stack => {
                let experts = Experts::of(function, op, operands)?;
                (layout(&experts.weight)?, WeightReader::Experts(experts))
            }
        };
        Some(Self { layout, reader })
    }
}

/// Whether a trace contains any operation for which the closure `is` returns true.
fn has(trace: &Trace, is: impl Fn(&Op) -> bool) -> bool {
    let ops = |function: &Function| {
        function.ids().any(|id| matches!(&function.node(id).kind, NodeKind::Op(op) if is(op)))
    };
    trace.functions.iter().any(ops)
}
