//! Attention masks: the keys that a query may see.

use std::ops::{BitAnd, BitAndAssign};

use ops::ops::MaskTerm;

use crate::argument::trace_arg;
use crate::element::{Float, I32};
use crate::{Axis, Tensor};

/// The axis of slots in a ring buffer: see [`trace::RingState`].
pub const RING: Axis = Axis(trace::RingState::AXIS);

/// The keys that a query may see, as a list of conditions that must all be true. `&` combines two masks.
#[derive(Clone, Debug)]
pub struct Mask<T: Float> {
    pub(super) terms: Vec<MaskTerm>,
    /// The operands of terms with lengths, in the order of the terms.
    pub(super) lengths: Vec<Tensor<I32>>,
    /// The operands of additive terms, in the order of the terms.
    pub(super) added: Vec<Tensor<T>>,
}

impl<T: Float> Mask<T> {
    /// A mask that allows all keys.
    pub fn all() -> Self {
        Self { terms: Vec::new(), lengths: Vec::new(), added: Vec::new() }
    }

    fn term(term: MaskTerm) -> Self {
        Self { terms: vec![term], ..Self::all() }
    }

    /// Creates a mask that hides all keys after the query.
    pub fn causal() -> Self {
        Self::term(MaskTerm::Causal)
    }

    /// Creates a mask that hides all keys `width` or more positions before the query. Combine this mask with
    /// [`Mask::causal`].
    pub fn window(width: usize) -> Self {
        Self::term(MaskTerm::Window(width))
    }

    /// Splits the positions into chunks of `length`, and allows only keys in the query's own chunk (as in
    /// Llama 4).
    pub fn chunk(length: usize) -> Self {
        Self::term(MaskTerm::Chunk(length))
    }

    /// Creates a mask that hides the first `lengths` keys. `lengths` is `[]`, or `[B]` if each sequence has
    /// its own number.
    pub fn padding(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Padding) }
    }

    /// Creates a causal mask in which the first `lengths` positions also see each other. `lengths` is `[]`,
    /// or `[B]`.
    pub fn prefix(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Prefix) }
    }

    /// Adds `scores` to the attention scores. The axes of `scores` are some of batch, heads, queries and
    /// keys.
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
