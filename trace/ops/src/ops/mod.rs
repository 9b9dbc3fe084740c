//! The closed list of all operations that a trace can contain. Each operation has its own source file.

mod append;
mod binary;
mod bounded_sdpa;
mod broadcast_in_dim;
mod compare;
mod concatenate;
mod constant;
mod convert;
mod dequantize;
mod dot_general;
mod dynamic_slice;
mod dynamic_update_slice;
mod erf;
mod gather;
mod grouped_linear;
mod grouped_rows;
mod iota;
mod linear;
mod linear_attention;
mod narrow;
mod optimization_barrier;
mod pack;
mod packed_experts;
mod packed_linear;
mod packed_rows;
mod permute;
mod quantize;
mod reduce;
mod reduce_precision;
mod reshape;
mod rms_norm;
mod rope;
mod sdpa;
mod select;
mod sliced_append;
mod softplus;
mod unary;

pub use binary::BinaryKind;
pub use compare::Direction;
pub use linear_attention::LinearAttentionSizes;
pub use reduce::ReduceKind;
pub use rms_norm::WeightStyle;
pub use rope::RopeLayout;
pub use sdpa::MaskTerm;
pub use unary::UnaryKind;

use crate::{
    Attributes, Bound, CostOperand, Documented, Example, InferError, IterationSpace, OpClass, OpWork,
    Operand, Operation, ParseError, Primitive, Reader, Statements, TensorType, Value, WeightUse,
};

// The macro `operations!` defines another macro, and needs `$` as an argument for this definition.
operations! { $
    // These composite operations have one float tensor as their operand and no attributes. Each
    // operation is also a method of the DSL.
    functions { erf::Erf, softplus::Softplus, }
    primitives {
        // Leaves.
        constant::Constant, iota::Iota,
        // Elementwise.
        unary::Unary, binary::Binary, compare::Compare, select::Select, convert::Convert,
        reduce_precision::ReducePrecision, optimization_barrier::OptimizationBarrier,
        // Data movement.
        reshape::Reshape, permute::Permute, narrow::Narrow, broadcast_in_dim::BroadcastInDim,
        concatenate::Concatenate, gather::Gather, dynamic_slice::DynamicSlice,
        dynamic_update_slice::DynamicUpdateSlice,
        // Contractions.
        dot_general::DotGeneral, reduce::Reduce,
    }
    composites {
        append::Append, dequantize::Dequantize,
        grouped_linear::GroupedLinear, grouped_rows::GroupedRows, linear::Linear,
        linear_attention::LinearAttention, rms_norm::RmsNorm, rope::Rope, sdpa::Sdpa,
    }
    idioms { bounded_sdpa::BoundedSdpa, sliced_append::SlicedAppend, }
    archive { pack::Pack, quantize::Quantize, }
    kernels { packed_experts::PackedExperts, packed_linear::PackedLinear, packed_rows::PackedRows, }
}

/// The imports that the source file of every operation needs.
pub(crate) mod prelude {
    pub(crate) use crate::facts::same;
    pub(crate) use crate::operation::{agree, arity, attribute, axis, bad, element, good, mlir_list};
    pub(crate) use crate::{
        Attributes as _, Bound, CostOperand, ElementType, Example, InferError, IterationSpace, OpClass,
        OpWork, Operand, Operation, Primitive, Statements, TensorType, Value, WeightUse, exact_sum,
        operation,
    };
}
