//! Declares the settings of a network that the tuner can change.

use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use targets::CompilerFlag;

/// The settings that the tuner can change in the build of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildSettings {
    pub chunk: NonZeroUsize,
    /// Additional command-line flags for the compiler of the network.
    pub flags: Vec<CompilerFlag>,
}

impl fmt::Display for BuildSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.chunk)?;
        self.flags.iter().try_for_each(|flag| write!(f, ", {}", flag.flag()))
    }
}
