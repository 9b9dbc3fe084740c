//! The tuner: how a network and its kernels are fastest on a machine, found by trying.

mod attention;
mod experts;
mod matmul;
mod network;
mod report;
mod sample;
mod search;
mod trial;

use errors::FileError;
use lower::LowerError;
use runtime::{CompileError, RuntimeError};
use trace::EvaluateError;

use crate::bench::BenchError;
use tracewright::PlanError;

pub use network::{NetworkTrials, TunedNetwork, Weighted};
pub use report::TuneReport;
pub use search::{Trial, Tuned, WatchTrials, tune};
pub use trial::{Trials, Workbench};

#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The plan cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A work does not lower.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The evaluator does not take it.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The compiler fails at what is usual, or was stopped.
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A file or folder cannot be read or made.
    #[error(transparent)]
    File(#[from] FileError),
    /// What is computed unless tuned is wrong: a fault of ours.
    #[error(
        "`{work}` computes other values than the evaluator: {how}; this is a bug of its kernel, please report it"
    )]
    Wrong { work: String, how: String },
    /// A network cannot be measured.
    #[error(transparent)]
    Bench(Box<BenchError>),
    /// The watcher asked to stop.
    #[error("stopped on request")]
    Stopped,
}

impl From<BenchError> for TuneError {
    fn from(error: BenchError) -> Self {
        Self::Bench(error.into())
    }
}
