//! How a human writes a network: [`model!`], [`Tensor`], the nn functions.
//!
//! A `forward` body runs once, on handles instead of numbers; what it does is recorded as a
//! [`trace::Trace`]. No weight is read.
//!
#![doc = include_str!("functions.md")]

mod axis;
mod block;
mod element;
mod elementwise;
mod entry;
mod error;
mod leaves;
pub mod nn;
mod origin;
mod tensor;
mod tracer;

pub use axis::{Axis, Dim};
pub use block::{Project, Scope, TraceArg};
pub use element::{Bf16, Bool, Element, F16, F32, Float, I8, I32};
pub use elementwise::Operand;
pub use entry::{CacheLayer, CausalLm, EntryPoint, Traced, Wanted, trace_entry_points};
pub use error::{BuildError, NamedType, TraceError, TraceErrorKind};
pub use leaves::{Call, Embedding, LayerNorm, Linear, RmsNorm, Weight};
pub use macros::{TraceArg, model};
pub use nn::{Attend, Kv, KvCache, Mask, Position, attend, dot, softmax};
pub use ops::ops::{MaskTerm, WeightStyle};
pub use tensor::Tensor;
pub use tracer::trace;

/// What the expansion of [`model!`] calls.
#[doc(hidden)]
pub mod __private {
    pub use crate::axis::{Dims, divide};
    pub use crate::block::{Signature, TraceKey, block};
    pub use crate::tensor::Raw;
}
