//! A [`Tuning`] contains the settings that were fastest in measurements on a machine.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

/// The settings of a program that were faster than the defaults in measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The tilings of kernels, by the name of the fused operation. The name includes all parameters
    /// that affect the speed of the kernel.
    pub kernels: BTreeMap<String, Tiling>,
    /// The number of tokens per prefill call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<NonZeroUsize>,
    /// Additional flags for the compiler `iree-compile`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<CompilerFlag>,
}

/// A tiling: how a kernel divides its computation into smaller blocks. Tracewright reduces sizes
/// that are too large for the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// The number of parts into which the kernel divides its work for the worker threads.
    pub parts: NonZeroUsize,
    /// The number of activation rows or queries whose sums stay in registers.
    pub rows: NonZeroUsize,
    /// The number of panels of the weight that the kernel of a matmul reads together. For
    /// attention, this number is always 1.
    pub panels: NonZeroUsize,
    /// The kernel prefetches the weight at this distance in bytes; 0 leaves prefetching to the processor.
    pub ahead: usize,
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parts, rows, panels, ahead } = self;
        write!(f, "parts {parts}, rows {rows}, panels {panels}, ahead {ahead}")
    }
}

/// A flag of `iree-compile` that affects the speed. Such a flag can change results only through the
/// order of sums.
///
/// The list of flags is closed, so that a tuning file from another person cannot pass other flags
/// to the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CompilerFlag {
    /// The flag lets LLVM vectorize loops.
    LoopVectorization,
    /// The flag lets LLVM vectorize neighbouring statements.
    SlpVectorization,
    /// The flag lets LLVM unroll loops.
    LoopUnrolling,
    /// The flag lets the compiler fuse more operations into one dispatch.
    AggressiveFusion,
}

impl CompilerFlag {
    pub const ALL: [Self; 4] =
        [Self::LoopVectorization, Self::SlpVectorization, Self::LoopUnrolling, Self::AggressiveFusion];

    /// Returns the flag as you write it on the command line of `iree-compile`.
    pub fn flag(self) -> &'static str {
        match self {
            Self::LoopVectorization => "--iree-llvmcpu-loop-vectorization",
            Self::SlpVectorization => "--iree-llvmcpu-slp-vectorization",
            Self::LoopUnrolling => "--iree-llvmcpu-loop-unrolling",
            Self::AggressiveFusion => "--iree-dispatch-creation-enable-aggressive-fusion",
        }
    }
}
