//! The tokens of a text that see each other.

use dsl::nn::{Attend, Kv, Mask, Slots};
use dsl::{Axis, Bool, Float, I32, Tensor};
use ops::ops::Sdpa;
use ops::{Literal, TensorType};

const TOKENS: Axis = Axis("S");
/// Tokens of the same text.
pub(crate) const KEYS: Axis = Axis("N");

/// All real tokens of a text, and those at a distance below `width`: `[B, S, N]`.
#[track_caller]
pub(crate) fn seen(length: usize, count: Tensor<I32>, width: usize) -> [Tensor<Bool>; 2] {
    let (query, key) = (Tensor::<I32>::iota(TOKENS, length), Tensor::<I32>::iota(KEYS, length));
    let distance = (query.broadcast(key) - key).abs(); // [S, N]
    // A padding token sees itself, because the softmax needs at least one key.
    let itself = distance.equals(0.0);
    let real = key.broadcast(count).less(count.broadcast(key)); // [B, N]
    let all = itself.or(real.broadcast(itself)); // [B, S, N]
    [all, all.and(distance.less(width as f64))]
}

/// The empty cache of a layer, because the calls of an encoder share no state.
#[track_caller]
pub(crate) fn no_past<T: Float>(sizes: [(Axis, usize); 4]) -> Kv<T> {
    let zeros = Literal::splat(TensorType::new(T::element(), sizes.map(|(_, size)| size)), 0.0);
    let empty = Slots::Computed(Tensor::constant(zeros, &sizes.map(|(axis, _)| axis)));
    Kv { k: empty, v: empty }
}

/// With a mask instead of that of a causal network.
pub(crate) fn masked<T: Float>(rotary: Attend<T>, seen: Tensor<Bool>) -> Attend<T> {
    Attend { mask: Mask::additive(seen.select(0.0, Sdpa::HIDDEN)), ..rotary }
}
