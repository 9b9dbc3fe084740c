//! Lowers a trace to StableHLO; this crate contains the converters, the legalizations and the code
//! that prints the module.
//!
//! [`expand`] replaces composite operations by primitive operations. The result of [`expand`] is
//! still a [`trace::Trace`], which you can dump, evaluate and compare. The function [`lower`]
//! converts the expanded trace to the text of a StableHLO module. Before [`lower`] prints a trace,
//! [`lower`] rewrites operations that the target's compiler computes wrongly ([`legalize`]).

mod collectives;
mod convert;
mod cuda;
mod derive;
mod expand;
mod experts;
mod fusion;
mod idiom;
mod implementation;
mod invariant;
mod layout;
pub mod legalize;
mod mixed;
mod module;
mod quantized;
mod rewrite;
mod shard;
mod stored;
mod tunable;
mod xla;

use ops::ElementType;
use targets::{Numerics, Target, Unsupported};
use trace::Provenance;

pub use collectives::{Collective, CollectiveKind, Collectives};
pub use expand::expand;
pub use implementation::Implementations;
pub use invariant::is_invariant;
pub use layout::{DenseReason, PatternError, Weights, resolved};
pub use module::{Module, Statement, location, lower, namespace, write};
pub use shard::{EntryShards, ShardError, ShardNote, Sharding, Shards, divisible_axes, leaves_experts_whole};
pub use tunable::{FusedAttention, FusedExperts, FusedMatmul, Tunable, tunable};
pub use xla::xla;

/// The reason why Tracewright cannot lower a trace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// A converter or an operation rejects the types of its operands.
    #[error("the node %{node} of `{function}` cannot be lowered")]
    Infer {
        function: String,
        node: usize,
        /// The place in the network that declares the node.
        provenance: Provenance,
        source: Box<ops::InferError>,
    },
    /// The trace contains a composite operation that was not expanded. StableHLO has no statement
    /// for the operation.
    #[error(
        "the node %{node} of `{function}` is the composite operation `{op}`; expand the trace with \
        `expand` before you lower it"
    )]
    Composite {
        function: String,
        node: usize,
        /// The place in the network that declares the node.
        provenance: Provenance,
        op: &'static str,
    },
    /// The trace contains an operation that only kernels can compute, but no kernel of the target
    /// supports the operation.
    #[error("the node %{node} of `{function}` is `{op}`, which no kernel computes for this target")]
    Kernel {
        function: String,
        node: usize,
        /// The place in the network that declares the node.
        provenance: Provenance,
        op: &'static str,
    },
    /// The trace caches keys and values in 8 bits, but the module has no kernels that could read
    /// these caches.
    #[error(
        "only kernels can read a KV cache in 8 bits, but the target has no kernels or the kernels are off; store \
        the KV cache in the network's element type"
    )]
    IntegersWithoutKernels,
    /// The target must compute the same bits in any call or on any processor, which only kernels do.
    #[error(
        "the numerics are {}, but the target has no kernels or the kernels are off, so that the compiler chooses \
        the order of sums", .0.word()
    )]
    NumericsWithoutKernels(Numerics),
    /// The target's device does not support tensors of an element type.
    #[error("the node %{node} of `{function}` has the type {element}, {}", lacking(target, *lack))]
    Element {
        function: String,
        node: usize,
        /// The place in the network that declares the node.
        provenance: Provenance,
        element: ElementType,
        target: Box<Target>,
        lack: Unsupported,
    },
    /// The trace has no entry point with this name.
    #[error("the network has no entry point `{0}`")]
    NoEntry(String),
    /// The trace declares a parameter with two different types.
    #[error(transparent)]
    Parameter(#[from] trace::ParameterConflict),
    /// A tensor-name pattern in the map of storage formats does not match any matrix of the network.
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

fn lacking(target: &Target, lack: Unsupported) -> String {
    match lack {
        Unsupported::Device => format!(
            "which the target {target} does not declare; compute or store in another type, or name a target \
             that supports this type"
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
