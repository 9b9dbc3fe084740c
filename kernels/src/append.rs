//! New rows in the slots of a cache: they are written where they belong, and nothing else of it is touched.

use ops::ops::Append;

use crate::code::{Element, Type};
use crate::kernel::{self, Kernel};
use crate::norm::Norm;
use crate::rope::Rotation;
use crate::work::{Tokens, Work};
use crate::{is_bytes, lane};

/// New rows, which may go through a norm and a rotation first.
#[derive(Clone, Copy)]
pub(crate) struct Appending {
    element: Element,
    /// Rows of slots, the slots of each, and the numbers of a slot.
    before: usize,
    slots: usize,
    after: usize,
    tokens: usize,
    /// Sequences that have a position and a number of tokens of their own.
    starts: usize,
    ring: bool,
    /// Rows of slots that one sequence has.
    heads: usize,
    /// Where the new rows are, if not in the order of the slots.
    by_token: Option<Tokens>,
    norm: Option<Norm>,
    rotation: Option<Rotation>,
}

impl Appending {
    /// What a work means whose operation is `op`; `None` if the kernel does not serve it.
    pub(crate) fn of(op: &Append, work: &Work<'_>) -> Option<Self> {
        let axis = op.axis;
        let (cache, new, start) = (work.types[0], work.types[1], work.types[2]);
        let appending = Self {
            element: lane(cache.element),
            before: cache.shape[..axis].iter().product(),
            slots: cache.shape[axis],
            after: cache.shape[axis + 1..].iter().product(),
            tokens: new.shape[axis],
            starts: start.count(),
            ring: op.ring,
            heads: cache.shape[..axis].iter().skip(1).product(),
            by_token: work.tokens,
            norm: work.norm.map(|(op, x)| Norm::of(op, x)),
            rotation: match work.rope {
                Some((op, types)) => Some(Rotation::of(op, types)?),
                None => None,
            },
        };
        let Self { norm, rotation, tokens, after, .. } = appending;
        let prepared = norm.is_some() || rotation.is_some();
        let whole = norm.is_none_or(|norm| norm.features == after)
            && rotation.is_none_or(|rotation| rotation.features == after);
        let served = is_bytes(cache.element)
            && cache.count() > 0
            && new.count() > 0
            // A single token's rows are those of its heads, whichever axis is first.
            && (!prepared || work.tokens.is_some() || tokens == 1)
            && (work.tokens.is_none() || axis > 0 && axis + 2 == cache.rank())
            && whole;
        served.then_some(appending)
    }

    /// Its name and its code. The cache is the first operand and the result.
    pub(crate) fn kernel(self) -> (String, impl FnOnce() -> Kernel + use<>) {
        let Self { element, before, slots, after, tokens, starts, ring, .. } = self;
        let Self { heads, by_token, norm, rotation, .. } = self;
        let normed = norm.map(|norm| format!("_normed_{}", norm.name())).unwrap_or_default();
        let rotated = rotation.map(|rotation| format!("_rope_{}", rotation.name())).unwrap_or_default();
        let name = format!(
            "append_{element}_{starts}x{before}x{slots}x{tokens}x{after}{}{}{normed}{rotated}",
            if ring { "_ring" } else { "" },
            by_token.map(Tokens::name).unwrap_or_default(),
        );
        let workgroups = (before * tokens).min(8);
        let tables = 4 + usize::from(norm.is_some());
        let bindings = tables + 2 * usize::from(rotation.is_some());
        let kernel = move || {
            kernel::new(bindings, workgroups, |code| {
                let cache = code.binding(0, element, before * slots * after);
                let there = by_token.map_or(before * after, |by_token| before / heads * by_token.stride);
                let new = code.binding(1, element, there * tokens);
                let [start, count] = [2, 3].map(|index| code.binding(index, Element::I32, starts));
                let norm = norm.map(|norm| (norm, norm.weight(code, 4)));
                let rotation = rotation.map(|rotation| (rotation, rotation.tables(code, tables)));
                let both = norm.is_some() && rotation.is_some();
                let normalised = both.then(|| (code.scratch(element, after), code.index(0)));
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
                        let to = (cache, (head * slots + slot) * after);
                        // The row in the order of what it goes through, and where it is.
                        let (row, place) = match by_token {
                            Some(by_token) => {
                                let (sequence, head) =
                                    (head.divide(code.index(heads)), head.remainder(code.index(heads)));
                                let token = sequence * tokens + token;
                                (token * heads + head, by_token.of(token) + head * after)
                            }
                            None => (row, row * after),
                        };
                        let mut row_is = (new, place);
                        if let Some((norm, weight)) = norm {
                            let between = normalised.unwrap_or(to);
                            norm.fill(code, row_is, weight, between);
                            row_is = between;
                        }
                        match rotation {
                            Some((rotation, tables)) => rotation.row(code, row, tables, row_is, to),
                            None if norm.is_some() => {}
                            None => code.chunks(after, |at, left| {
                                to.0.store_lanes(to.1 + at, row_is.0.load_lanes(row_is.1 + at, left), left);
                            }),
                        }
                    });
                });
            })
        };
        (name, kernel)
    }
}
