//! New rows in the slots of a cache: they are written where they belong, and nothing else of it is touched.

use ops::ops::Append;
use ops::{ElementType, TensorType};

use crate::code::{Element, Type};
use crate::kernel::{self, Kernel};
use crate::lane;

/// Whether there is a kernel for operands of these types.
pub(crate) fn serves(types: &[&TensorType]) -> bool {
    let bytes = !matches!(types[0].element, ElementType::I1 | ElementType::I4);
    bytes && types[..2].iter().all(|ty| ty.count() > 0)
}

/// The slots of `op`'s new rows, for operands of these types. The cache is the operand and the result.
pub(crate) fn kernel(op: &Append, types: &[&TensorType]) -> (String, impl FnOnce() -> Kernel + use<>) {
    let (cache, new, start) = (types[0], types[1], types[2]);
    let element = lane(cache.element);
    let (slots, tokens, ring) = (cache.shape[op.axis], new.shape[op.axis], op.ring);
    let before: usize = cache.shape[..op.axis].iter().product();
    let after: usize = cache.shape[op.axis + 1..].iter().product();
    let starts = start.count();
    let name = format!(
        "append_{element}_{starts}x{before}x{slots}x{tokens}x{after}{}",
        if ring { "_ring" } else { "" }
    );
    let workgroups = (before * tokens).min(8);
    let kernel = move || {
        kernel::new(4, workgroups, |code| {
            let cache = code.binding(0, element, before * slots * after);
            let new = code.binding(1, element, before * tokens * after);
            let [start, count] = [2, 3].map(|index| code.binding(index, Element::I32, starts));
            let zero = code.constant(Type::Scalar(Element::I32), 0.0);
            code.repeat(kernel::share(code, before * tokens, workgroups), 1, |row| {
                let (head, token) = (row.divide(code.index(tokens)), row.remainder(code.index(tokens)));
                let sequence = head.divide(code.index(before / starts));
                let [start, count] =
                    [start, count].map(|numbers| numbers.load(sequence, zero.ty()).max(zero).place());
                let slot = start + token;
                let (slot, slot_is_there) = match ring {
                    true => (slot.remainder(code.index(slots)), token + 1),
                    // Behind the last slot there is no room for this token or a later one.
                    false => (slot, code.index(slots) - start.min(code.index(slots))),
                };
                // Once, or not at all.
                let last = count.min(slot_is_there);
                code.repeat(token.min(last)..(token + 1).min(last), 1, |_| {
                    let (from, to) = (row * after, (head * slots + slot) * after);
                    code.chunks(after, |at, left| {
                        cache.store_lanes(to + at, new.load_lanes(from + at, left), left);
                    });
                });
            });
        })
    };
    (name, kernel)
}
