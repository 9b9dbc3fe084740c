//! What was measured to be fastest on a machine.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

/// How a program is made, where another way than usual was measured to be faster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// How kernels cut their work, by the name of a work, which says all that its speed depends on.
    pub kernels: BTreeMap<String, Tiling>,
    /// Tokens that one prefill takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<NonZeroUsize>,
    /// What the compiler is told besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<CompilerFlag>,
}

/// How a kernel's work is cut. What does not fit a work is cut to what does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// Parts, which workers share.
    pub parts: NonZeroUsize,
    /// Rows whose sums stay in registers.
    pub rows: NonZeroUsize,
    /// Panels of a product's weight that lie side by side and are read at once; of attention 1.
    pub panels: NonZeroUsize,
    /// How far ahead memory is asked for the weight's lines, in bytes; 0 leaves that to the processor.
    pub ahead: usize,
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parts, rows, panels, ahead } = self;
        write!(f, "parts {parts}, rows {rows}, panels {panels}, ahead {ahead}")
    }
}

/// A flag of `iree-compile` that changes no result beyond the order of sums, and may change how fast it comes.
///
/// A closed list: who gives somebody a tuning gives no other words to the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CompilerFlag {
    /// LLVM makes vectors of loops.
    LoopVectorization,
    /// LLVM makes vectors of statements side by side.
    SlpVectorization,
    /// LLVM repeats the bodies of loops.
    LoopUnrolling,
    /// More operations in one dispatch.
    AggressiveFusion,
}

impl CompilerFlag {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::LoopVectorization, Self::SlpVectorization, Self::LoopUnrolling, Self::AggressiveFusion];

    /// As the compiler takes it.
    pub fn flag(self) -> &'static str {
        match self {
            Self::LoopVectorization => "--iree-llvmcpu-loop-vectorization",
            Self::SlpVectorization => "--iree-llvmcpu-slp-vectorization",
            Self::LoopUnrolling => "--iree-llvmcpu-loop-unrolling",
            Self::AggressiveFusion => "--iree-dispatch-creation-enable-aggressive-fusion",
        }
    }
}
