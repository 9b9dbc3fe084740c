//! Computes a mixture of experts: the sum over the chosen experts of each token.

use dsl::nn::{dot, silu, topk};
use dsl::{Axis, F32, Float, I32, Tensor};

const B: Axis = Axis("B");
const S: Axis = Axis("S");
const D: Axis = Axis("D");
const F: Axis = Axis("F");
/// The axis of all experts, and the axis of the chosen experts.
const X: Axis = Axis("X");
const C: Axis = Axis("C");

/// Computes the sum over the SwiGLUs of the chosen experts for features `x` `[B, S, D]`, weighted by `share`
/// `[B, S, C]`. The indices `chosen` `[B, S, C]` select experts, whose weights are gate `[X, F, D]`, up `[X,
/// F, D]` and down `[X, D, F]`.
///
/// For few tokens, the network reads only the weights of the chosen experts. If the tokens choose as many
/// experts as there are, every expert computes every token. The weight is 0 for tokens that did not choose
/// the expert. Both methods add in the order of the experts, so that their results have the same bits.
#[track_caller]
pub(crate) fn mixture<T: Float>(
    x: Tensor<T>,
    share: Tensor<F32>,
    chosen: Tensor<I32>,
    weights: [Tensor<T>; 3],
) -> Tensor<T> {
    let (all, count) = (weights[0].extent(X), chosen.extent(C));
    let expert = Tensor::<I32>::iota(X, all);
    let is = |chosen: Tensor<I32>| chosen.broadcast(expert).equals(expert.broadcast(chosen)); // [B, S, C, X]
    let each = share.broadcast(expert); // [B, S, C, X]
    let share = is(chosen).select(each, 0.0).sum(C); // [B, S, X]
    let (weights, share, experts) = match x.extent(B) * x.extent(S) * count < all {
        true => {
            // The first expert leads.
            let order = (-expert.to::<F32>() + all as f64).broadcast(each);
            let (_, chosen) = topk(is(chosen).select(order, 0.0).sum(C), X, count);
            let chosen = chosen.rename(X, C);
            let share = is(chosen).select(share.broadcast(chosen), 0.0).sum(X);
            (weights.map(|weight| weight.take(X, chosen)), share, C)
        }
        false => (weights, share, X),
    };
    let [gate, up, down] = weights;
    let each = dot(silu(dot(x, gate, D)) * dot(x, up, D), down, F);
    (each.to::<F32>() * share.broadcast(each)).sum(experts).to()
}
