//! Which keys a query may see.

use std::ops::{BitAnd, BitAndAssign};

use ops::ops::MaskTerm;

use crate::argument::trace_arg;
use crate::element::{Float, I32};
use crate::{Axis, Tensor};

/// The axis of a cache that counts the slots of a ring: see [`trace::RingState`].
pub const RING: Axis = Axis(trace::RingState::AXIS);

/// Which keys a query may see: conditions that must all hold, so that `&` is the intersection.
#[derive(Clone, Debug)]
pub struct Mask<T: Float> {
    pub(super) terms: Vec<MaskTerm>,
    /// One for each term that has an operand, in their order.
    pub(super) lengths: Vec<Tensor<I32>>,
    /// Those of additive terms.
    pub(super) added: Vec<Tensor<T>>,
}

impl<T: Float> Mask<T> {
    /// All keys.
    pub fn all() -> Self {
        Self { terms: Vec::new(), lengths: Vec::new(), added: Vec::new() }
    }

    fn term(term: MaskTerm) -> Self {
        Self { terms: vec![term], ..Self::all() }
    }

    /// No key after the query.
    pub fn causal() -> Self {
        Self::term(MaskTerm::Causal)
    }

    /// With [`Mask::causal`]: the query's own position and the `width` − 1 before it.
    pub fn window(width: usize) -> Self {
        Self::term(MaskTerm::Window(width))
    }

    /// The positions are cut into chunks of `length`: only keys of the query's own (Llama 4).
    pub fn chunk(length: usize) -> Self {
        Self::term(MaskTerm::Chunk(length))
    }

    /// Not the first `lengths` keys: `[]`, or `[B]` for each sequence its own.
    pub fn padding(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Padding) }
    }

    /// No key after the query, but that the first `lengths` positions see each other: `[]` or `[B]`.
    pub fn prefix(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Prefix) }
    }

    /// `scores` is added to the scores: its axes are some of batch, heads, queries and keys.
    pub fn additive(scores: Tensor<T>) -> Self {
        Self { added: vec![scores], ..Self::term(MaskTerm::Additive) }
    }
}

impl<T: Float> BitAnd for Mask<T> {
    type Output = Self;

    fn bitand(mut self, other: Self) -> Self {
        self &= other;
        self
    }
}

impl<T: Float> BitAndAssign for Mask<T> {
    fn bitand_assign(&mut self, other: Self) {
        self.terms.extend(other.terms);
        self.lengths.extend(other.lengths);
        self.added.extend(other.added);
    }
}

trace_arg!(Mask<T> { terms, lengths, added });
