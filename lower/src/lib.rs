//! Lowers a trace to StableHLO: converters, legalizations and the module text.
//!
//! [`expand`] replaces every composite by primitives. Its result is still a [`trace::Trace`], which you can dump,
//! evaluate and compare. [`lower`] writes that trace as StableHLO. Before this it rewrites operations that the
//! target's compiler gets wrong ([`legalize`]).

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
mod mixed;
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
pub use layout::{DenseReason, PatternError, Quantization, UnknownQuantization, Weights};
pub use module::{Module, Statement, location, lower, namespace, write};
pub use shard::{EntryShards, ShardError, ShardNote, Sharding, Shards, divisible_axes};
pub use tunable::{FusedAttention, FusedExperts, FusedMatmul, Tunable, tunable};
pub use xla::xla;

/// Why a trace cannot be lowered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// A converter or an operation rejects its operands.
    #[error("`{function}` %{node} does not lower")]
    Infer {
        function: String,
        node: usize,
        /// The origin of the node.
        provenance: Provenance,
        source: Box<ops::InferError>,
    },
    /// A composite is left, which has no StableHLO statement.
    #[error("`{function}` %{node}: `{op}` is a composite; `expand` the trace before it is lowered")]
    Composite {
        function: String,
        node: usize,
        /// The origin of the node.
        provenance: Provenance,
        op: &'static str,
    },
    /// An operation is left that only kernels compute, and no kernel supports it.
    #[error("`{function}` %{node}: no kernel computes `{op}` for this target")]
    Kernel {
        function: String,
        node: usize,
        /// The origin of the node.
        provenance: Provenance,
        op: &'static str,
    },
    /// Keys and values are cached in 8 bits, but the target has no kernels.
    #[error(
        "the KV cache is stored in 8 bits, which only kernels read, and the target has none or they are \
         off; store it as computed"
    )]
    IntegersWithoutKernels,
    /// The target's device has no tensors of an element type.
    #[error("`{function}` %{node} is of type {element}, {}", lacking(target, *lack))]
    Element {
        function: String,
        node: usize,
        /// The origin of the node.
        provenance: Provenance,
        element: ElementType,
        target: Box<Target>,
        lack: Unsupported,
    },
    /// No entry point has this name.
    #[error("there is no entry point `{0}`")]
    NoEntry(String),
    /// A parameter is declared with two types.
    #[error(transparent)]
    Parameter(#[from] trace::ParameterConflict),
    /// A format for what is no matrix of the network.
    #[error(transparent)]
    Pattern(#[from] PatternError),
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
