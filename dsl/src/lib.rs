//! The Rust DSL in which you declare a network. The DSL consists of the macro [`model!`], the type
//! [`Tensor`], and the functions of neural networks in [`nn`].
//!
//! Tracewright runs the body of a function such as `forward` once, with tensor handles instead of numbers.
//! Each operation adds a node to a [`trace::Trace`]. Tracewright reads no weights during the recording.
//!
#![doc = include_str!("functions.md")]
#![warn(missing_docs)]

mod argument;
mod axis;
mod block;
mod causal;
mod check;
mod dims;
mod element;
mod elementwise;
mod entry_point;
mod error;
mod experts_mode;
mod leaves;
pub mod nn;
mod origin;
mod record;
mod scope;
mod tensor;
mod tracer;

pub use argument::TraceArg;
pub use axis::{Axis, Dim};
pub use causal::CausalLm;
pub use element::{AnyFloat, Bf16, Bool, Element, F16, F32, Float, I8, I32, in_element};
pub use elementwise::TensorOrNumber;
pub use entry_point::{EntryInput, EntryPoint, LogitsMode, experts_mode};
pub use error::{BuildError, NamedType, TraceError, TraceErrorKind};
pub use experts_mode::ExpertsMode;
pub use leaves::{Call, Embedding, LayerNorm, Linear, RmsNorm, Weight};
pub use macros::{TraceArg, model};
pub use nn::states::*;
pub use nn::{Attend, Cache, LayerState, Mask, Position, State, attend, dot, softmax};
pub use ops::ops::{MaskTerm, RopeLayout, WeightStyle};
pub use record::{DeclaredShards, EntryArgument, EntryFunction, EntryRecorder, Recording, Traced};
pub use scope::{Block, Project, Scope};
pub use tensor::Tensor;
pub use tracer::trace;

/// Functions and types that only the generated code of [`model!`] uses.
#[doc(hidden)]
pub mod __private {
    pub use crate::block::block;
    pub use crate::causal::by_layer;
    pub use crate::check::{DeclaredAxes, SignatureCheck};
    pub use crate::dims::{CheckedExtents, Dims};
    pub use crate::tracer::Raw;
}
