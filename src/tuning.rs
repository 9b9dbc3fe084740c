//! What the tuner measured, for a plan.

#[cfg(feature = "iree")]
use std::path::Path;

#[cfg(feature = "iree")]
use runtime::Compiler;
use targets::Tuning;

#[cfg(feature = "iree")]
use crate::build::LoadError;
use crate::{Plan, PlanError};

pub use ::tuning::*;

/// The measurements with the target's features and this compiler; none where nothing was measured.
///
/// # Errors
/// If the compiler does not answer, or a file is there and cannot be read.
#[cfg(feature = "iree")]
pub fn measured(cache: &Path, target: &targets::Target, compiler: &Compiler) -> Result<TuningDb, LoadError> {
    // The compiler takes a while to report its version.
    if !TuningCache::exists(cache) {
        return Ok(TuningDb::default());
    }
    let target = compiler.resolve(target)?;
    Ok(TuningCache::new(cache, &target, &compiler.version()?).read()?)
}

/// How the network of a plan should be built, or one that is no language model.
///
/// # Errors
/// If the configuration is wrong.
pub fn fastest(measured: &TuningDb, plan: Option<&Plan>) -> Result<Tuning, PlanError> {
    // To name a network, it is recorded.
    if measured.kernels.is_empty() && measured.networks.is_empty() {
        return Ok(Tuning::default());
    }
    Ok(measured.tuning(plan.map(network_name).transpose()?.as_deref()))
}

/// The name of a plan's network among the measurements. It depends on what a step computes and on how weights are stored, and
/// neither on the context nor on the chunk.
///
/// # Errors
/// What is wrong with the configuration.
pub fn network_name(plan: &Plan) -> Result<String, PlanError> {
    /// A context that every network can have.
    const SHORTEST: usize = 1;
    let trace = plan.record(&plan.steps_of(1, SHORTEST))?.trace.with_entries(&["decode"]);
    let mut hasher = blake3::Hasher::new();
    for part in [trace.to_string(), format!("{:?} {}", plan.weights, plan.rules)] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    Ok(format!("network_{}", &hasher.finalize().to_hex()[..32]))
}
