//! Recurrent states that are matrices, as in gated DeltaNet and Mamba-2.

use std::panic::Location;

use ops::ops::{LinearAttention, Narrow};

use super::Recurrent;
use crate::element::F32;
use crate::nn::Position;
use crate::{Axis, Tensor};

/// The tokens that a layer with linear attention writes to its recurrent state, which consists of matrices.
#[derive(Clone, Copy, Debug)]
pub struct MatrixTokens {
    /// The queries, `[B, S, H, D]`, by which the layer multiplies the matrices of the state. The
    /// operation does not scale the queries, so scale the queries before the call.
    pub query: Tensor<F32>,
    /// The keys, `[B, S, H, D]`. The matrices of the state are sums of outer products of a key and a value.
    pub key: Tensor<F32>,
    /// The values, `[B, S, H, G, E]`. G value heads share a key head.
    pub value: Tensor<F32>,
    /// The logarithm of the factor by which each token multiplies the matrix of a head, `[B, S, H, G]`.
    pub decay: Tensor<F32>,
    /// The factor by which a token's value is multiplied, `[B, S, H, G]`.
    pub rate: Tensor<F32>,
}

impl Recurrent<F32> {
    /// Updates the matrices `[B, H, G, D, E]` with new tokens, and returns the product of each
    /// token's query and the updated matrix, `[B, S, H, G, E]`. `axis` is the axis S of the tokens.
    /// For each token, the operation first multiplies the matrix by the exponential of the token's
    /// `decay`. The operation then adds the outer product of the token's key and value, multiplied
    /// by the token's `rate` (Mamba-2). See [`LinearAttention`].
    #[track_caller]
    pub fn write(&mut self, tokens: MatrixTokens, axis: Axis, at: Position) -> Tensor<F32> {
        self.written(false, tokens, axis, at)
    }

    /// Updates the matrices like [`write`](Self::write), but by the gated delta rule. In this rule,
    /// the operation first subtracts the product of the token's key and the decayed matrix from the
    /// token's value.
    #[track_caller]
    pub fn write_delta(&mut self, tokens: MatrixTokens, axis: Axis, at: Position) -> Tensor<F32> {
        self.written(true, tokens, axis, at)
    }

    #[track_caller]
    fn written(&mut self, delta: bool, tokens: MatrixTokens, axis: Axis, at: Position) -> Tensor<F32> {
        let place = Location::caller();
        let MatrixTokens { mut query, mut key, mut value, mut decay, mut rate } = tokens;
        let declared = self.state.dims(place);
        // The operation has its own names for the axes of the matrices.
        let (matrix, [keys, values]) = match declared[..] {
            [b, h, g, d, e] => {
                let [b, h, g, d, e] = [b, h, g, d, e].map(|dim| dim.axis);
                [query, key] = [query, key].map(|x| x.permute(&[b, axis, h, d]));
                [decay, rate] = [decay, rate].map(|x| x.permute(&[b, axis, h, g]));
                value = value.permute(&[b, axis, h, g, e]);
                ([b, h, g, axis, e], [d, axis])
            }
            _ => ([axis; 5], [axis; 2]),
        };
        let both = self.state.apply::<F32>(place, |t, state, _| {
            let raws = [query, key, value, decay, rate].map(|x| x.raw);
            let operands = [&raws[..], &[state, at.start.raw, at.count.raw]].concat();
            t.op(None, LinearAttention { delta }, &operands, &matrix, place)
        });
        let (length, before) = (declared.get(3).map_or(0, |d| d.extent), both.extent(axis));
        let part = |named: Axis, start: usize, length: usize| {
            both.apply::<F32>(place, |t, raw, _| {
                let names = matrix.map(|name| if name == axis { named } else { name });
                t.op(None, Narrow { axis: 3, start, length }, &[raw], &names, place)
            })
        };
        self.state = part(keys, 0, length);
        let outputs = part(values, length, before.saturating_sub(length));
        outputs.permute(&[matrix[0], axis, matrix[1], matrix[2], matrix[4]])
    }
}
