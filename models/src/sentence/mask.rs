//! Which tokens of a text see each other.

use dsl::nn::{Attend, Mask};
use dsl::{Axis, Bool, Float, I32, Tensor};
use ops::ops::Sdpa;

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

/// With a mask instead of that of a causal network.
pub(crate) fn masked<T: Float>(rotary: Attend<T>, seen: Tensor<Bool>) -> Attend<T> {
    Attend { mask: Mask::additive(seen.select(0.0, Sdpa::HIDDEN)), ..rotary }
}
