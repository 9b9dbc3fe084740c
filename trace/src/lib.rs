//! [`Trace`] is a program as a DAG of operations. You can print, parse, verify and evaluate it.
//!
//! A [`Trace`] is a list of [`Function`]s. A repeated layer is one function, and each layer is a *call* of
//! this function with its own prefix for the parameters. Therefore the text of the trace does not grow with
//! the depth of the network. Functions that can be called from outside are entry points.

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
