//! The tuner: how the kernels of a network are fastest on a machine, found by trying.

mod cache;
mod product;
mod search;
mod trial;

use std::path::PathBuf;

use errors::FileError;
use lower::LowerError;
use runtime::{CompileError, RuntimeError};
use trace::EvaluateError;

use crate::PlanError;

pub use cache::{Known, Record, Tried, TuningCache, read};
pub use search::{Tuned, WatchTrials, tune};
pub use trial::{FASTER, Trials, Verdict, Workbench};

/// Why tuning ended.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The plan cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A product does not lower.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The evaluator does not take it.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The compiler fails at what is usual, or was stopped.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// IREE refuses a program.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A file or folder cannot be read or made.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file says something else than how kernels cut their work.
    #[error("`{}` holds no tuning; expected JSON, as `tuning` in a manifest", .path.display())]
    NoTuning {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// What is computed unless tuned is wrong: a fault of ours.
    #[error(
        "`{product}` gives other numbers than the evaluator: {how}; this is a fault of its kernel, please report it"
    )]
    Wrong {
        /// The product.
        product: String,
        /// Where.
        how: String,
    },
    /// The watcher asked to stop.
    #[error("stopped on request")]
    Stopped,
}
