//! Gated DeltaNet: Yang et al., "Gated Delta Networks" (2024).

use dsl::nn::{MatrixTokens, Position, Recurrent, rms_norm, silu};
use dsl::{Axis, F32, Float, Tensor};

/// Updates the state of a gated DeltaNet with new tokens. Returns the product of each token's query
/// and the updated matrix, `[B, S, W, R, X]`. The inputs `[B, S, P]` of the convolution are
/// queries, keys and values. The taps of the convolution have the shape `[P, I, J]`. The gates b
/// and a have the shape `[B, S, W, R]`. The weights are `dt_bias` and `A_log`. If the value heads
/// are `tiled`, the axes of the values and of the weights have the order R, W.
#[track_caller]
pub(crate) fn delta_net<T: Float>(
    (inputs, taps): (Tensor<T>, Tensor<T>),
    [b, a]: [Tensor<T>; 2],
    weights: [Tensor<F32>; 2],
    at: Position,
    (delta, conv): (&mut Recurrent<F32>, &mut Recurrent<T>),
    tiled: bool,
) -> Tensor<F32> {
    let [n, p, s, u, w, r, x] = ["N", "P", "S", "U", "W", "R", "X"].map(Axis);
    let [w, r, u, x] = [w, r, u, x].map(|axis| axis.of(delta.state.extent(axis)));
    let mixed = silu(conv.convolve(inputs, taps, [Axis("C"), Axis("J"), s], at));
    let [keys, values] = [w.extent * u.extent, w.extent * r.extent * x.extent];
    let [query, key, value] = mixed.split(p, [keys, keys, values]);
    let [query, key] = [query, key].map(|part| unit(part.unmerge(p, &[w, u]), u.axis));
    let [dt_bias, a_log] = weights.map(|weight| match tiled {
        true => weight.unmerge(n, &[r, w]).permute(&[w.axis, r.axis]),
        false => weight.unmerge(n, &[w, r]),
    });
    let value = match tiled {
        true => value.unmerge(p, &[r, w, x]).permute(&[Axis("B"), s, w.axis, r.axis, x.axis]),
        false => value.unmerge(p, &[w, r, x]),
    };
    let time = (a.to::<F32>() + dt_bias).softplus();
    let tokens = MatrixTokens {
        query: query / (u.extent as f64).sqrt(),
        key,
        value,
        decay: -(time * a_log.exp()),
        rate: b.to::<F32>().logistic(),
    };
    delta.write_delta(tokens, s, at)
}

/// Divides vectors by their Euclidean length (`l2norm`). In contrast, [`rms_norm`] divides by the
/// root of the mean square.
#[track_caller]
fn unit(x: Tensor<F32>, features: Axis) -> Tensor<F32> {
    let count = x.extent(features) as f64;
    rms_norm(x, &[features], 1e-6 / count) / count.sqrt()
}
