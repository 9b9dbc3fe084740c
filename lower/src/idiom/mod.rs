//! An idiom is an operation in one of IREE's own MLIR dialects. An idiom can replace an operation
//! whose tensor extents the host knows only at run time.

mod bounded_sdpa;
mod sliced_append;

use ops::{Idiom, Op, Operand, Statements, TensorType};
use targets::{Dialect, Target};

/// A function that returns the idiom for an operation with operands of the given types.
type Replace = fn(&Op, &[&TensorType], &Program<'_>) -> Option<Op>;

const IDIOMS: &[Replace] = &[bounded_sdpa::of, sliced_append::of];

/// The properties of a program that decide whether `iree-compile` can compile a certain idiom.
pub(crate) struct Program<'t> {
    pub(crate) target: &'t Target,
    /// Whether the program appends keys or values to ring buffers.
    pub(crate) has_rings: bool,
}

/// Returns the idiom that replaces an operation; `None` if the target's compiler has no idiom for
/// the operation.
pub(crate) fn of(op: &Op, operands: &[&TensorType], program: &Program<'_>) -> Option<Op> {
    let iree = program.target.backend.dialect() == Dialect::IreeGlobals;
    let some = operands.iter().all(|ty| ty.count() > 0);
    IDIOMS.iter().filter(|_| iree && some).find_map(|replace| replace(op, operands, program))
}

/// Emits the idiom, and returns the right-hand side of its last statement.
pub(crate) fn spell(
    statements: &mut dyn Statements,
    idiom: Idiom<'_>,
    operands: &[Operand<'_>],
    ty: &TensorType,
) -> String {
    match idiom {
        Idiom::BoundedSdpa(op) => bounded_sdpa::spell(statements, op, operands, ty),
        Idiom::SlicedAppend(op) => sliced_append::spell(statements, op, operands),
    }
}
