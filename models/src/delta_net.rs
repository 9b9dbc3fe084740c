//! Gated DeltaNet: Yang et al., "Gated Delta Networks" (2024).

use dsl::nn::{MatrixTokens, Position, Recurrent, rms_norm, silu};
use dsl::{Axis, F32, Float, Tensor};
use files::limits;
use irpa::{CheckpointTensor, StoredOrder};
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::experts::{self, ExpertsConfig, Routing, Scores};
use crate::family::{GgufFamily, Metadata, joined};
use crate::hybrid::{self, alternates};
use crate::mtp::MtpError;
use crate::rope::RopeDefaults;
use crate::shape_check::DeclaredSize;

/// Updates a gated DeltaNet with new tokens, and returns each query times the new matrix, `[B, S, W, R, X]`.
/// Inputs `[B, S, P]` are queries, keys and values, taps `[P, I, J]`, gates b and a `[B, S, W, R]`, weights
/// `dt_bias` and `A_log`. If value heads are `tiled`, values and weights have the order R, W.
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
    let [dt_bias, a_log] = weights.map(|weight| {
        if tiled { weight.unmerge(n, &[r, w]).permute(&[w.axis, r.axis]) } else { weight.unmerge(n, &[w, r]) }
    });
    let value = if tiled {
        value.unmerge(p, &[r, w, x]).permute(&[Axis("B"), s, w.axis, r.axis, x.axis])
    } else {
        value.unmerge(p, &[w, r, x])
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

/// Divides by the Euclidean length (`l2norm`), where [`rms_norm`] divides by the root of the mean square.
#[track_caller]
fn unit(x: Tensor<F32>, features: Axis) -> Tensor<F32> {
    let count = x.extent(features) as f64;
    rms_norm(x, &[features], 1e-6 / count) / count.sqrt()
}

/// Fields are named as in `Qwen3_5TextConfig` of HF transformers.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "most fields are keys")]
pub struct Qwen35Config {
    /// The configuration keys that the network shares with Llama, and the keys for experts.
    pub experts: ExpertsConfig,
    /// Whether each layer has attention. A layer without attention has a DeltaNet.
    pub attention: Vec<bool>,
    pub linear_num_key_heads: usize,
    pub linear_num_value_heads: usize,
    pub linear_key_head_dim: usize,
    pub linear_value_head_dim: usize,
    /// The number of earlier positions that the convolution reads.
    pub conv_memory: usize,
    /// Whether value heads of different key heads take turns, as in GGUF files of Qwen3.5.
    pub value_heads_tiled: bool,
    /// Whether the projections of a DeltaNet are separate tensors, as in GGUF files of Qwen3-Next.
    pub projections_split: bool,
    /// The number of layers in the module for multi-token prediction.
    pub mtp_num_hidden_layers: usize,
    /// Whether the module for multi-token prediction has its own embedding table.
    pub mtp_use_dedicated_embeddings: bool,
}

descends!(Qwen35Config from experts.llama: LlamaConfig, through experts: ExpertsConfig);

alternates!(Qwen35Config);

impl Qwen35Config {
    /// Whether a layer belongs to the module for multi-token prediction.
    pub fn drafts(&self, layer: usize) -> bool {
        layer >= self.num_hidden_layers
    }

    /// Checks that Tracewright supports the network's module for multi-token prediction.
    pub(crate) fn check_mtp(&self) -> Result<(), MtpError> {
        match self.mtp_num_hidden_layers {
            _ if self.mtp_use_dedicated_embeddings => Err(MtpError::DedicatedEmbeddings),
            1 => Ok(()),
            layers => Err(MtpError::Layers { layers }),
        }
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        self.experts.sizes()
    }
}

pub(crate) const GGUF: GgufFamily = GgufFamily {
    keys: experts::GGUF_KEYS,
    parts: &[TILED_PARTS, GGUF_PARTS, experts::GGUF_PARTS],
    arranged: stored,
    ..GgufFamily::llama("qwen35")
};

/// Projections whose value heads are tiled in GGUF, with their names in the network.
const TILED_PARTS: &[(&str, &str)] = &[
    ("attn_gate", "linear_attn.tiled_z"),
    ("ssm_beta", "linear_attn.tiled_b"),
    ("ssm_alpha", "linear_attn.tiled_a"),
    ("ssm_out", "linear_attn.tiled_out"),
];

/// The names of a layer's tensors in GGUF files and in the network.
pub(crate) const GGUF_PARTS: &[(&str, &str)] = &[
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// Undoes the conversion to GGUF (`Qwen3NextModel` in `conversion/qwen.py` of llama.cpp).
fn stored(part: &str, end: &str, _: [usize; 2], tensor: &mut CheckpointTensor) -> StoredOrder {
    match (part, tensor.shape.len()) {
        ("ssm_conv1d", 2) => tensor.shape.insert(1, 1),
        ("ffn_gate_inp_shexp", 1) => tensor.shape.insert(0, 1),
        _ => {}
    }
    match part {
        "ssm_a" => StoredOrder::NegativeExponential,
        "ssm_norm" => StoredOrder::Same,
        _ if part.ends_with("norm") && end == "weight" => StoredOrder::PlusOne,
        _ => StoredOrder::Same,
    }
}

/// `LLM_ARCH_QWEN35` and similar ones in llama.cpp, with the family's `own` keys.
pub(crate) fn gguf_config(file: &Metadata<'_>, own: Value) -> Value {
    let period = file.optional_count("full_attention_interval").unwrap_or(4).max(1);
    let layers = file.layers().filter(|&layers| layers <= limits::LAYERS).unwrap_or(0);
    let by_period = || (1..=layers).map(|layer| !layer.is_multiple_of(period)).collect();
    let recurs = file.flags("attention.recurrent_layers").unwrap_or_else(by_period);
    let kind = |recurs: &bool| if *recurs { "linear_attention" } else { "full_attention" };
    let kinds: Vec<&str> = recurs.iter().take(layers).map(kind).collect();
    let attends = recurs.iter().position(|recurs| !recurs).unwrap_or(0);
    let (inner, heads) = (file.count("ssm.inner_size"), file.count("ssm.time_step_rank"));
    let keys = json!({
        "layer_types": kinds,
        "linear_num_key_heads": file.count("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": file.count("ssm.state_size"),
        "linear_value_head_dim": inner.zip(heads).and_then(|(inner, heads)| inner.checked_div(heads)),
        "linear_conv_kernel_dim": file.count("ssm.conv_kernel"),
        "partial_rotary_factor": file.partial_rotary_factor(),
        "attention_bias": file.has(&format!("blk.{attends}.attn_q.bias")),
    });
    let experts = file.experts().map_or(Value::Null, |experts| {
        let features = file.count("expert_feed_forward_length");
        json!({
            "num_experts": experts,
            "num_experts_per_tok": file.count("expert_used_count"),
            "moe_intermediate_size": features,
            "shared_expert_intermediate_size": file.optional_count("expert_shared_feed_forward_length").or(features),
            "intermediate_size": file.optional_count("feed_forward_length").or(features),
        })
    });
    file.llama(joined([keys, experts, own]))
}

pub(crate) fn defaults() -> Defaults {
    let rope = RopeDefaults { partial_rotary_factor: Some(0.25), ..RopeDefaults::new(32_768) };
    Defaults { head_dim: Some(256), ..Defaults::of(rope) }
}

/// Reads the keys that all families with a DeltaNet share. The result describes a network without experts.
pub(crate) fn read(keys: &Keys, llama: LlamaConfig) -> Qwen35Config {
    // Published files contain this key, but HF transformers ignores the key.
    keys.ignore(&["mlp_only_layers"]);
    keys.always("attn_output_gate", true);
    keys.one_of("mamba_ssm_dtype", &["float32"]);
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let period = count("full_attention_interval", 4);
    let layers = llama.num_hidden_layers;
    let attention =
        hybrid::kinds(keys, layers, &[(true, &["full_attention"]), (false, &["linear_attention"])]);
    let by_period = || (1..=layers).map(|layer| layer.is_multiple_of(period)).collect();
    let bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig { attention_bias: bias, attention_out_bias: bias, ..llama };
    Qwen35Config {
        experts: ExpertsConfig {
            sparse: Vec::new(),
            ..ExpertsConfig::like_llama(llama, Routing::plain(Scores::Softmax))
        },
        attention: attention.unwrap_or_else(by_period),
        linear_num_key_heads: count("linear_num_key_heads", 16),
        linear_num_value_heads: count("linear_num_value_heads", 32),
        linear_key_head_dim: count("linear_key_head_dim", 128),
        linear_value_head_dim: count("linear_value_head_dim", 128),
        conv_memory: hybrid::conv_memory(keys, "linear_conv_kernel_dim", 4),
        value_heads_tiled: keys.flag("value_heads_tiled", false),
        projections_split: keys.flag("projections_split", false),
        // Published files of Qwen3-Next have a module with one layer, but lack the key.
        mtp_num_hidden_layers: keys.optional_integer("mtp_num_hidden_layers").unwrap_or(1),
        mtp_use_dedicated_embeddings: keys.flag("mtp_use_dedicated_embeddings", false),
    }
}
