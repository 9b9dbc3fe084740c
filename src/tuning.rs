//! Applies the tuner's measurements to a plan.

#[cfg(feature = "iree")]
use std::path::Path;

#[cfg(feature = "iree")]
use runtime::Compiler;
use targets::Tuning;

#[cfg(feature = "iree")]
use crate::build::LoadError;
use crate::{Plan, PlanError};

pub use ::tuning::*;

/// The measurements for this target and this compiler; empty if the tuner has not run.
///
/// # Errors
/// If the compiler's version cannot be determined, or a file cannot be read.
#[cfg(feature = "iree")]
pub fn measured(cache: &Path, target: &targets::Target, compiler: &Compiler) -> Result<TuningDb, LoadError> {
    // The compiler takes a while to report its version.
    if !TuningCache::exists(cache) {
        return Ok(TuningDb::default());
    }
    let target = compiler.resolve(target)?;
    Ok(TuningCache::new(cache, &target, &compiler.version()?).read()?)
}

/// The fastest measured tuning for the network of a plan. `None` is for a network that is not a language
/// model.
///
/// # Errors
/// If a value in the configuration is invalid.
pub fn fastest(measured: &TuningDb, plan: Option<&Plan>) -> Result<Tuning, PlanError> {
    // To name a network, it is recorded.
    if measured.kernels.is_empty() && measured.networks.is_empty() {
        return Ok(Tuning::default());
    }
    Ok(measured.tuning(plan.map(network_name).transpose()?.as_deref()))
}

/// The name of a plan's network in the measurements. It depends on the computation of a step and on the
/// storage of weights, but not on the context or the chunk.
///
/// # Errors
/// If a value in the configuration is invalid.
pub fn network_name(plan: &Plan) -> Result<String, PlanError> {
    /// A context that every network supports, in tokens.
    const SHORTEST: usize = 1;
    let trace = plan.record(&plan.steps_of(1, SHORTEST))?.trace.with_entries(&["decode"]);
    let mut hasher = blake3::Hasher::new();
    for part in [trace.to_string(), format!("{:?} {}", plan.weights, plan.rules)] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    Ok(format!("network_{}", &hasher.finalize().to_hex()[..32]))
}
