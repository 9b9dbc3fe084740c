//! Decides whether the number of tokens per call can change a bit of the results.

use kernels::Kernels;
use ops::Op;
use targets::Target;
use trace::{Function, NodeKind, Trace};

/// Whether the bits of the results don't depend on the number of tokens per call, for an expanded trace. They
/// can depend on it if the compiler chooses the order of a matmul's additions, or with AMX.
pub fn is_invariant(expanded: &Trace, target: &Target) -> bool {
    let multiplies = |function: &Function| {
        function.ids().any(|id| matches!(function.node(id).kind, NodeKind::Op(Op::DotGeneral(_))))
    };
    !Kernels::of(target).have_tiles() && !expanded.functions.iter().any(multiplies)
}
