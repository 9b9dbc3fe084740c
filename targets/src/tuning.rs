//! [`Tuning`]: settings that measured fastest on a machine.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

/// Settings of a program that measured faster than the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The tilings of kernels, by a name of the work that includes everything on which its speed depends.
    pub kernels: BTreeMap<String, Tiling>,
    /// Tokens per prefill call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<NonZeroUsize>,
    /// Additional flags of the compiler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<CompilerFlag>,
}

/// How a kernel divides its work. Sizes that do not fit the work are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// Parts that workers share.
    pub parts: NonZeroUsize,
    /// Rows whose sums stay in registers.
    pub rows: NonZeroUsize,
    /// Panels of a matmul's weight that are side by side and read together. For attention it is 1.
    pub panels: NonZeroUsize,
    /// The distance of prefetches of the weight in bytes; 0 leaves prefetching to the processor.
    pub ahead: usize,
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parts, rows, panels, ahead } = self;
        write!(f, "parts {parts}, rows {rows}, panels {panels}, ahead {ahead}")
    }
}

/// A flag of `iree-compile` that affects speed, and no result beyond the order of sums.
///
/// The list is closed, so that a tuning from somebody else cannot pass other flags to the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CompilerFlag {
    /// LLVM vectorizes loops.
    LoopVectorization,
    /// LLVM vectorizes neighbouring statements.
    SlpVectorization,
    /// LLVM unrolls loops.
    LoopUnrolling,
    /// More operations are fused into one dispatch.
    AggressiveFusion,
}

impl CompilerFlag {
    pub const ALL: [Self; 4] =
        [Self::LoopVectorization, Self::SlpVectorization, Self::LoopUnrolling, Self::AggressiveFusion];

    /// The flag on the command line.
    pub fn flag(self) -> &'static str {
        match self {
            Self::LoopVectorization => "--iree-llvmcpu-loop-vectorization",
            Self::SlpVectorization => "--iree-llvmcpu-slp-vectorization",
            Self::LoopUnrolling => "--iree-llvmcpu-loop-unrolling",
            Self::AggressiveFusion => "--iree-dispatch-creation-enable-aggressive-fusion",
        }
    }
}
