//! Converters (composite to primitives), legalizations and the module text.
//!
//! [`expand`] replaces every composite op by primitives: its result is still a [`trace::Trace`], which can be
//! dumped, evaluated and compared. [`lower`] writes it as StableHLO; what a target's compiler gets wrong, it says
//! otherwise before ([`legalize`]).

mod collectives;
mod convert;
mod derive;
mod expand;
mod experts;
mod fusion;
mod idiom;
mod implementation;
mod layout;
pub mod legalize;
mod module;
mod rewrite;
mod shard;
mod stored;
mod tunable;
mod xla;

use ops::ElementType;
use targets::{Target, Unsupported};
use trace::Provenance;

pub use collectives::{Collective, CollectiveKind, Collectives};
pub use expand::expand;
pub use implementation::Implementations;
pub use layout::{DenseReason, Quantization, Weights};
pub use module::{Module, Statement, location, lower, namespace, write};
pub use shard::{EntryShards, ShardError, ShardNote, Sharding, Shards, divisible_axes};
pub use tunable::{FusedAttention, FusedExperts, FusedMatmul, Tunable, tunable};
pub use xla::xla;

/// Why a trace cannot be lowered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// A converter or an operation refuses its operands.
    #[error("`{function}` %{node} does not lower")]
    Infer {
        function: String,
        node: usize,
        /// Where the node comes from.
        provenance: Provenance,
        source: Box<ops::InferError>,
    },
    /// A composite op, which has no spelling.
    #[error("`{function}` %{node}: `{op}` is a composite; `expand` the trace before it is lowered")]
    Composite {
        function: String,
        node: usize,
        /// Where the node comes from.
        provenance: Provenance,
        op: &'static str,
    },
    /// An operation that only kernels compute, and none does.
    #[error("`{function}` %{node}: no kernel computes `{op}` for this target")]
    Kernel {
        function: String,
        node: usize,
        /// Where the node comes from.
        provenance: Provenance,
        op: &'static str,
    },
    /// Keys and values in 8 bits, without kernels.
    #[error(
        "the KV cache is stored in 8 bits, which only kernels read, and the target has none or they are \
         off; store it as computed"
    )]
    IntegersWithoutKernels,
    /// A type of numbers that programs for a device have no tensors of.
    #[error("`{function}` %{node} is of type {element}, {}", lacking(target, *lack))]
    Element {
        function: String,
        node: usize,
        /// Where the node comes from.
        provenance: Provenance,
        element: ElementType,
        /// What it is lowered for.
        target: Box<Target>,
        lack: Unsupported,
    },
    /// A name that is no entry point's.
    #[error("there is no entry point `{0}`")]
    NoEntry(String),
    /// A parameter with two types.
    #[error(transparent)]
    Parameter(#[from] trace::ParameterConflict),
}

fn lacking(target: &Target, lack: Unsupported) -> String {
    match lack {
        Unsupported::Device => format!(
            "which the target {target} does not declare; compute or store in another type, or name a target \
             that has it"
        ),
        Unsupported::Arithmetic => format!(
            "and operations on it compute wrong values on {} devices with IREE 3.13; store weights in another format",
            target.device
        ),
        Unsupported::Compiler => {
            format!(
                "which IREE 3.13 does not compile for {} devices; compute or store in another type",
                target.device
            )
        }
    }
}
