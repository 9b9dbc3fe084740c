//! Decides whether the number of tokens per call can change a bit of the results.

use ops::Op;
use targets::{Numerics, Target};
use trace::{Function, NodeKind, Trace};

/// Whether the bits of the results don't depend on the number of tokens per call, for an expanded trace. They
/// can depend on it if the compiler chooses the order of a matmul's additions, or with AMX.
pub fn is_invariant(expanded: &Trace, target: &Target) -> bool {
    let has_tiles = target.features.iter().flatten().any(|feature| feature.starts_with("amx"));
    let multiplies = |function: &Function| {
        function.ids().any(|id| matches!(function.node(id).kind, NodeKind::Op(Op::DotGeneral(_))))
    };
    (target.numerics != Numerics::Fast || !has_tiles) && !expanded.functions.iter().any(multiplies)
}
