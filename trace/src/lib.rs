//! A [`Trace`] represents a program as a DAG of operations. You can print, parse, verify and
//! evaluate a trace.
//!
//! A [`Trace`] is a list of [`Function`]s. If a network repeats a layer, the layer is one function
//! of the trace. Each repetition is a *call* of the function, with a separate prefix for the keys
//! of parameters. Therefore the text of the trace has the same length for every number of layers.
//! The entry points are the functions that the host can call.

mod axis;
mod evaluate;
mod function;
pub mod functions;
mod ignorable;
mod inline;
mod parameter;
mod parse;
mod print;
mod quantization;
mod signature;
mod state;
mod trace;
mod variants;
mod verify;

pub use axis::{AxisName, axis_factors, joined_axis};
pub use evaluate::{EvaluateError, Evaluation, evaluate};
pub use function::{Builder, Function, FunctionId, Node, NodeId, NodeKind, Output, Provenance};
pub use ignorable::Ignorable;
pub use parameter::{Parameter, Recipe, key_pattern, resolve_key};
pub use quantization::{Quantization, UnknownQuantization, format_of};
pub use signature::{Argument, Role, Signature};
pub use state::*;
pub use trace::{Counts, ParameterConflict, Read, Reads, Trace};
pub use verify::VerifyError;
