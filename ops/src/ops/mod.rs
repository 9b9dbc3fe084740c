//! The operations, a file each.

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
mod unary;

pub use append::Append;
pub use binary::{Binary, BinaryKind};
pub use bounded_sdpa::BoundedSdpa;
pub use broadcast_in_dim::BroadcastInDim;
pub use compare::{Compare, Direction};
pub use concatenate::Concatenate;
pub use constant::Constant;
pub use convert::Convert;
pub use dequantize::Dequantize;
pub use dot_general::DotGeneral;
pub use dynamic_slice::DynamicSlice;
pub use dynamic_update_slice::DynamicUpdateSlice;
pub use erf::Erf;
pub use gather::Gather;
pub use grouped_linear::GroupedLinear;
pub use grouped_rows::GroupedRows;
pub use iota::Iota;
pub use linear::Linear;
pub use narrow::Narrow;
pub use optimization_barrier::OptimizationBarrier;
pub use pack::Pack;
pub use packed_experts::PackedExperts;
pub use packed_linear::PackedLinear;
pub use packed_rows::PackedRows;
pub use permute::Permute;
pub use quantize::Quantize;
pub use reduce::{Reduce, ReduceKind};
pub use reduce_precision::ReducePrecision;
pub use reshape::Reshape;
pub use rms_norm::{RmsNorm, WeightStyle};
pub use rope::{Rope, RopeLayout};
pub use sdpa::{MaskTerm, Sdpa};
pub use select::Select;
pub use sliced_append::SlicedAppend;
pub use unary::{Unary, UnaryKind};

/// What an operation's file needs.
pub(crate) mod prelude {
    pub(crate) use crate::facts::same;
    pub(crate) use crate::operation::{agree, arity, attribute, axis, bad, element, good, mlir_list};
    pub(crate) use crate::{
        Attributes as _, Bound, CostOperand, ElementType, Example, InferError, IterationSpace, OpClass,
        OpWork, Operand, Operation, Spelling, Statements, TensorType, Value, exact_sum, operation,
    };
}
