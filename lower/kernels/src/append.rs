//! Stores new key or value vectors in slots of a KV cache, without access to all other slots.

use ops::ElementType;
use ops::ops::Append;

use crate::code::{Element, Type};
use crate::fused_op::{FusedOp, Tokens};
use crate::kernel::{self, Kernel};
use crate::lane;
use crate::prologue::Prologue;

/// Appends new key or value vectors to a KV cache, after an optional norm and rotary embedding.
#[derive(Clone, Copy)]
pub(crate) struct Appending {
    element: Element,
    /// The cache is `[before, slots, after]`.
    before: usize,
    slots: usize,
    after: usize,
    tokens: usize,
    /// The number of sequences that have their own start position and token count.
    starts: usize,
    ring: bool,
    /// The number of caches (one per head) that belong to one sequence.
    heads: usize,
    /// `None` if the head axis comes before the token axis.
    by_token: Option<Tokens>,
    prologue: Prologue,
}

impl Appending {
    pub(crate) fn of(op: &Append, work: &FusedOp<'_>) -> Option<Self> {
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
            by_token: work.layout.tokens,
            prologue: Prologue::of(work.prologue)?,
        };
        let Self { prologue, tokens, after, .. } = appending;
        let served = !matches!(cache.element, ElementType::I1 | ElementType::I4)
            && cache.count() > 0
            && new.count() > 0
            // With a single token, head order and token order are the same.
            && (prologue.is_nothing() || work.layout.tokens.is_some() || tokens == 1)
            && (work.layout.tokens.is_none() || axis > 0 && axis + 2 == cache.rank())
            && prologue.takes(after);
        served.then_some(appending)
    }

    /// The kernel writes the result into its first operand, the cache.
    pub(crate) fn kernel(self) -> (String, impl FnOnce() -> Kernel + use<>) {
        let Self { element, before, slots, after, tokens, starts, ring, .. } = self;
        let Self { heads, by_token, prologue, .. } = self;
        let name = format!(
            "append_{element}_{starts}x{before}x{slots}x{tokens}x{after}{}{}{}",
            if ring { "_ring" } else { "" },
            by_token.map(Tokens::name).unwrap_or_default(),
            prologue.name(),
        );
        let workgroups = (before * tokens).min(8);
        let kernel = move || {
            kernel::new(4 + prologue.bindings(), workgroups, |code| {
                let cache = code.binding(0, element, before * slots * after);
                let there = by_token.map_or(before * after, |by_token| before / heads * by_token.stride);
                let new = code.binding(1, element, there * tokens);
                let [start, count] = [2, 3].map(|index| code.binding(index, Element::I32, starts));
                let prepared = prologue.start(code, 4, after);
                let zero = code.constant(Type::Scalar(Element::I32), 0.0);
                code.repeat(kernel::share(code, before * tokens, workgroups), 1, |row| {
                    let (head, token) = (row.divide(code.index(tokens)), row.remainder(code.index(tokens)));
                    let sequence = head.divide(code.index(before / starts));
                    let [start, count] =
                        [start, count].map(|numbers| numbers.load(sequence, zero.ty()).max(zero).place());
                    let slot = start + token;
                    let (slot, slot_is_there) = if ring {
                        (slot.remainder(code.index(slots)), token + 1)
                    } else {
                        // If this token is after the last slot, the kernel does not write this token or later tokens.
                        (slot, code.index(slots) - start.min(code.index(slots)))
                    };
                    // This loop runs once or never.
                    let last = count.min(slot_is_there);
                    code.repeat(token.min(last)..(token + 1).min(last), 1, |_| {
                        let to = (cache, (head * slots + slot) * after);
                        // The number of the row in the prologue's order, and the position of the row in memory.
                        let (row, place) = match by_token {
                            Some(by_token) => {
                                let (sequence, head) =
                                    (head.divide(code.index(heads)), head.remainder(code.index(heads)));
                                let token = sequence * tokens + token;
                                (token * heads + head, by_token.of(token) + head * after)
                            }
                            None => (row, row * after),
                        };
                        prepared.row(code, row, (new, place), to);
                    });
                });
            })
        };
        (name, kernel)
    }
}
