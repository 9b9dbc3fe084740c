//! Applies the tuner's measurements to a plan.

#[cfg(feature = "iree")]
use std::path::Path;
use std::path::PathBuf;

#[cfg(feature = "iree")]
use runtime::Compiler;
use targets::Tuning;

#[cfg(feature = "iree")]
use crate::build::LoadError;
use crate::{Plan, PlanError};

pub use ::tuning::*;

/// Where the way in which kernels are cut comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum TuningSource {
    /// What `tracewright tune` measured with this compiler on this machine; the usual way where nothing was measured.
    Measured,
    /// These settings, for all kernels.
    Given(Tuning),
}

/// How the programs for a target are cut.
pub enum Tunings {
    /// All in one way.
    Given(Tuning),
    /// Each as it was measured to be fastest.
    Measured(TuningDb),
}

#[cfg(feature = "iree")]
impl TuningSource {
    /// The tunings with the target's features and this compiler, whose cache has the measurements.
    ///
    /// # Errors
    /// If the compiler does not answer, or a file is there and cannot be read.
    pub fn read(
        &self,
        target: &targets::Target,
        (compiler, cache): (&Compiler, &Path),
    ) -> Result<Tunings, LoadError> {
        Ok(match self {
            Self::Given(tuning) => Tunings::Given(tuning.clone()),
            // The compiler takes a while to report its version.
            Self::Measured if !TuningCache::exists(cache) => Tunings::Measured(TuningDb::default()),
            Self::Measured => {
                let target = compiler.resolve(target)?;
                Tunings::Measured(TuningCache::new(cache, &target, &compiler.version()?).read()?)
            }
        })
    }
}

impl Tunings {
    /// The tuning of a plan's network, or of one that is no language model.
    ///
    /// # Errors
    /// If the configuration is wrong.
    pub fn of(&self, plan: Option<&Plan>) -> Result<Tuning, PlanError> {
        match self {
            Self::Given(tuning) => Ok(tuning.clone()),
            // To name a network, it is recorded.
            Self::Measured(db) if db.kernels.is_empty() && db.networks.is_empty() => Ok(Tuning::default()),
            Self::Measured(db) => Ok(db.tuning(plan.map(network_name).transpose()?.as_deref())),
        }
    }

    /// Records of the tuner that are damaged, and not used.
    pub fn damaged(&self) -> &[PathBuf] {
        match self {
            Self::Given(_) => &[],
            Self::Measured(db) => &db.damaged,
        }
    }
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
