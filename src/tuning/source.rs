//! Applies the tuner's measurements to the plan of a network.

#[cfg(feature = "iree")]
use std::path::Path;
use std::path::PathBuf;

#[cfg(feature = "iree")]
use runtime::Compiler;
use targets::Tuning;

#[cfg(feature = "iree")]
use super::TuningCache;
use super::TuningDb;
#[cfg(feature = "iree")]
use crate::build::LoadError;
use crate::{Plan, PlanError};

/// The source of the kernels' tile sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum TuningSource {
    /// By `tracewright tune` on this machine, with the same compiler; kernels without one use defaults.
    Measured,
    /// All kernels use the same given settings.
    Given(Tuning),
}

/// The settings of kernels, such as tile sizes, for a target.
pub enum Tunings {
    /// All networks and kernels use the same settings.
    Given(Tuning),
    /// Each network and kernel uses the fastest settings that the tuner measured.
    Measured(TuningDb),
}

#[cfg(feature = "iree")]
impl TuningSource {
    /// Reads the kernels' settings for a target and a compiler. The tuner stores measurements in
    /// the cache folder.
    ///
    /// # Errors
    /// Returns an error if the compiler's version cannot be determined, or a file cannot be read.
    pub fn read(
        &self,
        target: &targets::Target,
        (compiler, cache): (&Compiler, &Path),
    ) -> Result<Tunings, LoadError> {
        Ok(match self {
            Self::Given(tuning) => Tunings::Given(tuning.clone()),
            // If there are no measurements, the function does not ask the compiler for its version,
            // because the answer takes a while.
            Self::Measured if !TuningCache::exists(cache) => Tunings::Measured(TuningDb::default()),
            Self::Measured => {
                let target = compiler.resolve(target)?;
                Tunings::Measured(TuningCache::new(cache, &target, &compiler.version()?).read()?)
            }
        })
    }
}

impl Tunings {
    /// Returns the kernel settings for a plan's network.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid.
    pub fn of(&self, plan: &Plan) -> Result<Tuning, PlanError> {
        match self {
            Self::Given(tuning) => Ok(tuning.clone()),
            // If there are no measurements, the name of the network is not needed, so the network
            // is not recorded.
            Self::Measured(db) if db.kernels.is_empty() && db.networks.is_empty() => Ok(Tuning::default()),
            Self::Measured(db) if plan.model.sentence().is_some() => Ok(db.tuning(None)),
            Self::Measured(db) => Ok(db.tuning(Some(&network_name(plan)?))),
        }
    }

    /// Returns the paths of damaged files with the tuner's measurements, which Tracewright ignores.
    pub fn damaged(&self) -> &[PathBuf] {
        match self {
            Self::Given(_) => &[],
            Self::Measured(db) => &db.damaged,
        }
    }
}

/// The name of a plan's measurements. It depends on operations of a decode call and on formats, but not on
/// context and chunk.
///
/// # Errors
/// Returns an error if a value in the configuration is invalid.
pub fn network_name(plan: &Plan) -> Result<String, PlanError> {
    /// A context length that every network supports, in tokens.
    const SHORTEST: usize = 1;
    let trace = plan.record(&plan.steps_of(1, SHORTEST))?.trace.with_entries(&["decode"]);
    let mut hasher = blake3::Hasher::new();
    for part in [trace.to_string(), format!("{:?} {}", plan.weights, plan.rules)] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    Ok(format!("network_{}", &hasher.finalize().to_hex()[..32]))
}
