//! Mamba-2: Dao and Gu, "Transformers are SSMs" (2024), §7.

use dsl::nn::{MatrixTokens, Position, Recurrent, rms_norm, silu};
use dsl::{F32, Float, model};
use irpa::{CheckpointTensor, StoredOrder};

/// The names of the tensors of a Mamba-2 block in GGUF files and in the network.
pub(crate) const GGUF_PARTS: &[(&str, &str)] = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_dt.bias", "mamba.dt_bias"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_d", "mamba.D"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
];

/// Undoes the changes that the conversion to GGUF made to a tensor of a Mamba-2 (`Mamba2Model` in
/// `conversion/mamba.py` of llama.cpp). The conversion removes, adds and splits axes of extent 1, and stores
/// −exp(`A_log`).
pub(crate) fn stored(part: &str, end: &str, tensor: &mut CheckpointTensor) -> StoredOrder {
    let count = tensor.shape.iter().product();
    match (part, end) {
        ("ssm_conv1d", "weight") if tensor.shape.len() == 2 => tensor.shape.insert(1, 1),
        ("ssm_a" | "ssm_d", _) | ("ssm_norm", "weight") => tensor.shape = vec![count],
        _ => {}
    }
    if part == "ssm_a" { StoredOrder::NegativeExponential } else { StoredOrder::Same }
}

model! {
    /// A Mamba-2 block whose fields have the same names as in HF transformers
    /// (`GraniteMoeHybridMambaLayer`). The paper's B, C and x are the keys, queries and values of
    /// this block. The two states of the block have the axes `[W, R, U, O]` and `[M, P]`.
    pub Mamba2<T: Float>(Mamba2Config) {
        dims {
            D = hidden_size,
            // N, W and R are the numbers of value heads, of key heads, and of value heads per key
            // head. U and O are the numbers of features of a key and of a value.
            N = heads, W = groups, R = N / W, U = state_size, O = head_dim,
            // P is the convolution's inputs, which are values, keys and queries. Z also includes
            // the gate and the time steps.
            Y = N * O, Q = W * U, P = Y + Q + Q, Z = Y + P + N,
            // M is the inputs that the state stores, J is the taps of the convolution, and I is the
            // input channels per tap.
            M = conv_memory, J = M + 1, I = 1,
        }

        in_proj: Linear[D -> Z](bias if proj_bias),
        taps: Weight[P, I, J] at "conv1d.weight",
        bias: Weight[P] at "conv1d.bias",
        dt_bias: Weight<F32>[N],
        a_log: Weight<F32>[N] at "A_log",
        skip: Weight<F32>[N] at "D",
        norm: Weight[Y] at "norm.weight",
        out_proj: Linear[Y -> D](bias if proj_bias),

        fn forward(x: T[B, S, D], at: Position, scan: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            let [w, r, u, o] = [W, R, U, O].map(|axis| self.dims.dim(axis));
            let [gate, mixed, time] = self.in_proj(x).split(Z, [self.dim(Y), self.dim(P), self.dim(N)]);
            let mixed = conv.convolve(mixed.rename(Z, P), self.taps(), [M, J, S], at); // [B, S, P]
            let mixed = if self.config.conv_bias { mixed + self.bias().to::<F32>() } else { mixed };
            let [value, key, query] = silu(mixed).split(P, [self.dim(Y), self.dim(Q), self.dim(Q)]);
            let value = value.unmerge(P, &[w, r, o]);
            let [key, query] = [key, query].map(|x| x.unmerge(P, &[w, u]));
            let time = (time.rename(Z, N).to::<F32>() + self.dt_bias()).softplus();
            let time = if self.config.least_step > 0.0 { time.maximum(self.config.least_step) } else { time };
            let decay = (-(time * self.a_log().exp())).unmerge(N, &[w, r]);
            let tokens = MatrixTokens { query, key, value, decay, rate: time.unmerge(N, &[w, r]) };
            let read = scan.write(tokens, S, at) + value * self.skip().unmerge(N, &[w, r]); // [B, S, W, R, O]
            let gated = read * silu(gate.to::<F32>()).unmerge(Z, &[w, r, o]);
            // Each group has its own norm.
            let normed = rms_norm(gated, &[R, O], self.config.epsilon).to::<T>().merge(&[W, R, O], Y);
            self.out_proj(normed * self.norm())
        }
    }
}

/// The configuration of a Mamba-2 block.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Config {
    /// The number of features of the residual stream.
    pub hidden_size: usize,
    /// The number of value heads.
    pub heads: usize,
    /// The number of key heads, which is also the number of query heads.
    pub groups: usize,
    /// The number of features of a key.
    pub state_size: usize,
    /// The number of features of a value.
    pub head_dim: usize,
    /// The number of earlier positions that the convolution reads.
    pub conv_memory: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the linear layers have biases.
    pub proj_bias: bool,
    /// The ε that the norm adds to the mean square.
    pub epsilon: f64,
    /// The lower bound of the time steps, or 0 if the time steps have no lower bound.
    pub least_step: f64,
}
