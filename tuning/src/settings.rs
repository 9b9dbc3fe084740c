//! How a network is made, as far as it is measured.

use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use targets::CompilerFlag;

/// How a network is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildSettings {
    /// Tokens that one prefill takes.
    pub chunk: NonZeroUsize,
    /// What the compiler is told besides.
    pub flags: Vec<CompilerFlag>,
}

impl fmt::Display for BuildSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.chunk)?;
        self.flags.iter().try_for_each(|flag| write!(f, ", {}", flag.flag()))
    }
}
