//! The tuner searches for the settings with which a network and its kernels are fastest on a machine.

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
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The test program for a fused operation cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The evaluator cannot run the fused operation of a kernel.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The compiler fails although all settings have default values, or the caller stopped the compiler.
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A file or folder cannot be read, written or created.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel with default settings computes wrong numbers, which is a bug in Tracewright.
    #[error(
        "the kernel `{work}` computes other values than the evaluator: {how}; this is a bug of the kernel, \
        please report this bug"
    )]
    Wrong { work: String, how: String },
    /// The whole network cannot be built or measured.
    #[error(transparent)]
    Bench(Box<BenchError>),
    #[error("the tuning was stopped on request")]
    Stopped,
}

impl From<BenchError> for TuneError {
    fn from(error: BenchError) -> Self {
        Self::Bench(error.into())
    }
}
