//! [`Trace`]: a program as a DAG of operations. You can print, parse, verify and evaluate it.
//!
//! A [`Trace`] is a list of [`Function`]s. A repeated layer is one function, with a *call* per layer that sets a
//! prefix for its parameters. Thus the text does not grow with depth. Functions that can be called from outside are
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
