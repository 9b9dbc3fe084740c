//! Attention masks, which select the keys that a query may see.

use std::ops::{BitAnd, BitAndAssign};

use ops::ops::{MaskTerm, Sdpa};

use crate::argument::trace_arg;
use crate::element::{Float, I32};
use crate::{Axis, Tensor};

/// The axis of the slots in a ring buffer of keys and values; see [`trace::RingState`].
pub const RING: Axis = Axis(trace::RingState::AXIS);

/// The keys that a query may see. A mask is a list of conditions, and a query sees a key only if
/// all conditions are true. The operator `&` combines two masks.
#[derive(Clone, Debug)]
pub struct Mask<T: Float> {
    pub(super) terms: Vec<MaskTerm>,
    /// The tensors `lengths` of the conditions `Padding` and `Prefix`, in the order of `terms`.
    pub(super) lengths: Vec<Tensor<I32>>,
    /// The tensors `scores` of the conditions `Additive`, in the order of `terms`.
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

    /// Creates a mask that hides all keys at later positions than the query.
    pub fn causal() -> Self {
        Self::term(MaskTerm::Causal)
    }

    /// Creates a mask that hides all keys `width` or more positions before the query. Combine this mask with
    /// [`Mask::causal`].
    pub fn window(width: usize) -> Self {
        Self::term(MaskTerm::Window(width))
    }

    /// Splits the positions into chunks of `length` positions, and hides all keys outside the
    /// query's chunk (as in Llama 4).
    pub fn chunk(length: usize) -> Self {
        Self::term(MaskTerm::Chunk(length))
    }

    /// Creates a mask that hides the first `lengths` keys. `lengths` has the shape `[]`, or `[B]`
    /// with a number for each sequence.
    pub fn padding(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Padding) }
    }

    /// Creates a mask that hides all keys after the first `counts` of `length` keys, such as the
    /// padding behind a text. `counts` has the shape `[]`, or `[B]` with a number for each sequence.
    /// Each number must be at least 1.
    #[track_caller]
    pub fn counted(keys: Axis, length: usize, counts: Tensor<I32>) -> Self {
        let key = Tensor::<I32>::iota(keys, length);
        let real = key.broadcast(counts).less(counts.broadcast(key));
        Self::additive(real.select(0.0, Sdpa::HIDDEN))
    }

    /// Creates a causal mask in which the first `lengths` positions also see each other. `lengths`
    /// has the shape `[]`, or `[B]` with a number for each sequence.
    pub fn prefix(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Prefix) }
    }

    /// Adds `scores` to the attention scores. `scores` can have any of the attention scores' axes:
    /// batch, heads, queries and keys.
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
