//! Attention masks, which select the keys that a query may see.

use std::ops::{BitAnd, BitAndAssign};

use ops::ops::{MaskTerm, Sdpa};

use crate::argument::trace_arg;
use crate::element::{Float, I32};
use crate::{Axis, Tensor};

/// The axis of the slots in a ring buffer of keys and values; see [`trace::RingState`].
pub const RING: Axis = Axis(trace::RingState::AXIS);

/// Conditions that must all be true for a query to see a key. `&` combines masks.
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

    /// Hides keys `width` or more before the query. Combine it with [`Mask::causal`].
    pub fn window(width: usize) -> Self {
        Self::term(MaskTerm::Window(width))
    }

    /// Hides keys outside the query's chunk of `length` positions (as in Llama 4).
    pub fn chunk(length: usize) -> Self {
        Self::term(MaskTerm::Chunk(length))
    }

    /// Hides the first `lengths` keys, `[]` or `[B]`.
    pub fn padding(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Padding) }
    }

    /// Hides keys after the first `counts` of `length`, such as padding; `[]` or `[B]`, at least 1.
    #[track_caller]
    pub fn counted(keys: Axis, length: usize, counts: Tensor<I32>) -> Self {
        let key = Tensor::<I32>::iota(keys, length);
        let real = key.broadcast(counts).less(counts.broadcast(key));
        Self::additive(real.select(0.0, Sdpa::HIDDEN))
    }

    /// Causal, but the first `lengths` positions, `[]` or `[B]`, see each other.
    pub fn prefix(lengths: Tensor<I32>) -> Self {
        Self { lengths: vec![lengths], ..Self::term(MaskTerm::Prefix) }
    }

    /// Added to scores, with any of their axes: batch, heads, queries, keys.
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
