//! A program is a DAG of ops: record it, print it, parse it, verify it, evaluate it.
//!
//! A [`Trace`] is a list of [`Function`]s. Repeated layers are one function and a *call* each, with another
//! parameter prefix, so that a trace does not grow with depth. The functions that a caller may start are its
//! entry points.

mod axis;
mod evaluate;
mod function;
pub mod functions;
mod inline;
mod parameter;
mod parse;
mod print;
mod signature;
mod state;
mod trace;
mod verify;

pub use axis::{AxisName, axis_factors, joined_axis};
pub use evaluate::{EvaluateError, Evaluation, evaluate};
pub use function::{Builder, Function, FunctionId, Node, NodeId, NodeKind, Output, Provenance};
pub use parameter::{Parameter, Recipe, key_pattern, resolve_key};
pub use signature::{Argument, Role, Signature};
pub use state::*;
pub use trace::{Counts, ParameterConflict, Read, Reads, Trace};
pub use verify::VerifyError;
