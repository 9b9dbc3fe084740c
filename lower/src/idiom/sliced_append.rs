//! Emits the IREE code of `sliced_append`: an append that updates only a slice of a KV cache.
//! Without `sliced_append`, IREE copies every KV cache that the program also reads. StableHLO has
//! no slice operation for a length that the host knows only at run time. The idiom is not available
//! for ring buffers, because an append to a ring buffer needs two slices. Ring buffers are short,
//! so an append stores all slots of a ring buffer instead of a slice.

use ops::ops::{Append, SlicedAppend};
use ops::{Op, Operand, Statements, TensorType};

use super::Program;

/// The idiom replaces an append to the cache of a single sequence, if the position of the append is
/// an integer on the host.
pub(super) fn of(op: &Op, operands: &[&TensorType], _: &Program<'_>) -> Option<Op> {
    let Op::Append(op) = op else { return None };
    let one = !op.ring && !Append::by_row(operands[2]);
    one.then(|| SlicedAppend { axis: op.axis }.into())
}

/// Emits the idiom, and returns the right-hand side of its last statement. The idiom stores the
/// vectors of the real tokens in the cache, but no vector after the last slot.
pub(super) fn spell(s: &mut dyn Statements, op: &SlicedAppend, operands: &[Operand<'_>]) -> String {
    let [cache, new, start, count] = operands else { unreachable!("inferred") };
    let (slots, tokens) = (cache.ty.shape[op.axis], new.ty.shape[op.axis]);
    let index = |s: &mut dyn Statements, n: usize| s.statement(format!("arith.constant {n} : index"));
    let binary = |s: &mut dyn Statements, kind: &str, a: &str, b: &str| {
        s.statement(format!("arith.{kind} {a}, {b} : index"))
    };
    let (zero, slots, tokens) = (index(s, 0), index(s, slots), index(s, tokens));
    // Converts an integer on the host to an index from 0 to `most`.
    let number = |s: &mut dyn Statements, of: &Operand<'_>, most: &str| {
        let number = s.statement(format!("tensor.extract {}[] : tensor<i32>", of.name));
        let number = s.statement(format!("arith.index_cast {number} : i32 to index"));
        let number = binary(s, "maxsi", &number, &zero);
        binary(s, "minui", &number, most)
    };
    let (start, count) = (number(s, start, &slots), number(s, count, &tokens));
    let left = binary(s, "subi", &slots, &start);
    let length = binary(s, "minui", &count, &left);

    // Lists one item for the slot axis and one item for each other axis.
    let list = |of_axis: &str, of_other: &dyn Fn(usize) -> String| {
        let axes = cache.ty.shape.iter().enumerate();
        let list = axes.map(|(axis, &n)| if axis == op.axis { of_axis.to_owned() } else { of_other(n) });
        list.collect::<Vec<_>>()
    };
    let extents = list(&length, &|n| n.to_string()).join(", ");
    let strides = list("1", &|_| "1".into()).join(", ");
    let part = |first: &str| format!("[{}] [{extents}] [{strides}]", list(first, &|_| "0".into()).join(", "));
    let rows_ty = format!("tensor<{}x{}>", list("?", &|n| n.to_string()).join("x"), cache.ty.element.name());
    let (cache_ty, new_ty) = (cache.ty.mlir(), new.ty.mlir());
    let rows =
        s.statement(format!("tensor.extract_slice {}{} : {new_ty} to {rows_ty}", new.name, part(&zero)));
    format!("tensor.insert_slice {rows} into {}{} : {rows_ty} into {cache_ty}", cache.name, part(&start))
}
