//! Mamba-2: Dao and Gu, "Transformers are SSMs" (2024), §7.

use dsl::nn::{MatrixTokens, Position, Recurrent, rms_norm, silu};
use dsl::{F32, Float, model};
use irpa::{CheckpointTensor, StoredOrder};
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::LlamaConfig;
use crate::experts::ExpertsConfig;
use crate::family::Metadata;
use crate::hybrid;
use crate::shape_check::DeclaredSize;

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

/// Undoes the conversion to GGUF (`Mamba2Model` in `conversion/mamba.py` of llama.cpp), which changes axes of
/// extent 1, and stores −exp(`A_log`).
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
    /// Named as in HF transformers (`GraniteMoeHybridMambaLayer`). The paper's B, C and x are keys, queries
    /// and values. The states are `[W, R, U, O]` and `[M, P]`.
    pub Mamba2<T: Float>(Mamba2Config) {
        dims {
            D = hidden_size,
            // N, W and R are the numbers of value heads, of key heads, and of value heads per key
            // head. U and O are the numbers of features of a key and of a value.
            N = mamba_heads, W = mamba_groups, R = N / W, U = state_size, O = mamba_head_dim,
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
            let normed = rms_norm(gated, &[R, O], self.config.rms_norm_eps).to::<T>().merge(&[W, R, O], Y);
            self.out_proj(normed * self.norm())
        }
    }
}

/// The kind of block that a layer contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Mamba-2 block.
    Mamba,
    /// Attention.
    Attention,
    /// A feed-forward network.
    Mlp,
    /// A mixture of experts.
    Experts,
}

/// The configuration of a network in which some layers contain a Mamba-2 block.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Config {
    /// The configuration keys that the network shares with other networks with experts.
    pub experts: ExpertsConfig,
    /// A layer can have a feed-forward network beside it.
    pub kinds: Vec<Kind>,
    /// The number of value heads.
    pub mamba_heads: usize,
    /// The number of key heads, which is also the number of query heads.
    pub mamba_groups: usize,
    /// The number of features of a key.
    pub state_size: usize,
    /// The number of features of a value.
    pub mamba_head_dim: usize,
    /// The number of earlier positions that the convolution reads.
    pub conv_memory: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the linear layers have biases.
    pub proj_bias: bool,
    /// The lower bound of the time steps, or 0 if the time steps have no lower bound.
    pub least_step: f64,
    /// The names of the keys in this family's `config.json`.
    pub keys: Mamba2Keys,
}

descends!(Mamba2Config from experts: ExpertsConfig, through experts.llama: LlamaConfig);

impl Mamba2Config {
    /// Whether a layer has attention.
    pub fn attends(&self, layer: usize) -> bool {
        self.kinds.get(layer) == Some(&Kind::Attention)
    }

    /// Whether a layer has a Mamba-2 block.
    pub fn recurs(&self, layer: usize) -> bool {
        self.kinds.get(layer) == Some(&Kind::Mamba)
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let heads = &[("model.layers.*.mamba.A_log", 0), ("model.layers.*.mixer.A_log", 0)];
        let taps = &[("model.layers.*.mamba.conv1d.weight", 2), ("model.layers.*.mixer.conv1d.weight", 2)];
        let mut sizes = self.experts.sizes();
        sizes.push(DeclaredSize::extent(self.keys.heads.0, self.mamba_heads, heads));
        sizes.push(DeclaredSize::extent(self.keys.taps, self.conv_memory + 1, taps));
        sizes
    }
}

/// The names of the keys of Mamba-2 in a family's `config.json`. Some names come with the family's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the fields in `Mamba2Config`")]
pub struct Mamba2Keys {
    pub heads: (&'static str, usize),
    pub groups: (&'static str, usize),
    pub state_size: (&'static str, usize),
    pub head_dim: &'static str,
    /// The key of the number of positions that the convolution reads. The default is 4.
    pub taps: &'static str,
    /// The default is true.
    pub conv_bias: &'static str,
    /// The default is false.
    pub proj_bias: &'static str,
}

impl Mamba2Keys {
    /// `head_dim` computes a value's features from the number of value heads.
    pub(crate) fn read(
        &self,
        keys: &Keys,
        (experts, kinds): (ExpertsConfig, Vec<Kind>),
        head_dim: impl FnOnce(usize) -> usize,
    ) -> Mamba2Config {
        let count = |(key, default)| keys.optional_count(key).unwrap_or(default);
        let [heads, groups] = [self.heads, self.groups].map(count);
        if !heads.is_multiple_of(groups) {
            keys.refuse(
                self.groups.0,
                groups,
                format!("a divisor of {heads}, the value of `{}`", self.heads.0),
            );
        }
        Mamba2Config {
            experts,
            kinds,
            mamba_heads: heads,
            mamba_groups: groups,
            state_size: count(self.state_size),
            mamba_head_dim: head_dim(heads),
            conv_memory: hybrid::conv_memory(keys, self.taps, 4),
            conv_bias: keys.flag(self.conv_bias, true),
            proj_bias: keys.flag(self.proj_bias, false),
            least_step: 0.0,
            keys: *self,
        }
    }

    /// Layers of the kind `mamba` have a block. Without any, there are no keys.
    pub(crate) fn gguf(&self, file: &Metadata<'_>, kinds: &[&str]) -> Value {
        let layer = kinds.iter().position(|kind| *kind == "mamba");
        let Some(layer) = layer else { return Value::Null };
        let (inner, heads) = (file.count("ssm.inner_size"), file.count("ssm.time_step_rank"));
        json!({
            (self.heads.0): heads,
            (self.groups.0): file.count("ssm.group_count"),
            (self.state_size.0): file.count("ssm.state_size"),
            (self.head_dim): inner.zip(heads).and_then(|(inner, heads)| inner.checked_div(heads)),
            (self.taps): file.count("ssm.conv_kernel"),
            (self.conv_bias): file.has(&format!("blk.{layer}.ssm_conv1d.bias")),
            (self.proj_bias): file.has(&format!("blk.{layer}.ssm_in.bias")),
        })
    }
}
