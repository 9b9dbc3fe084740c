//! The configuration of a Nemotron-H model.

use dsl::Project;
use files::limits;
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::experts::{self, ExpertsConfig};
use crate::family::{Metadata, joined};
use crate::hybrid;
use crate::mamba2::Mamba2Config;
use crate::rope::RopeParameters;
use crate::shape_check::DeclaredSize;

/// The kind of block that a layer contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the parts")]
pub enum Kind {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// Lists the name of each kind of block in the key `layers_block_type`, and the letter of the kind
/// in the key `hybrid_override_pattern`.
const KINDS: &[(Kind, &[&str], char)] = &[
    (Kind::Mamba, &["linear_attention", "mamba"], 'M'),
    (Kind::Attention, &["full_attention", "attention"], '*'),
    (Kind::Mlp, &["mlp"], '-'),
    (Kind::Experts, &["moe"], 'E'),
];

/// The values in the `config.json` of a Nemotron-H model.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "most fields are keys")]
pub struct NemotronHConfig {
    pub experts: ExpertsConfig,
    pub kinds: Vec<Kind>,
    /// Whether the routed experts read a projection of the features to fewer dimensions.
    pub is_latent: bool,
    /// The number of inputs of an expert.
    pub latent_size: usize,
    /// The number of features of the shared expert, which processes every token.
    pub shared_features: usize,
    pub mamba_num_heads: usize,
    pub n_groups: usize,
    pub ssm_state_size: usize,
    pub mamba_head_dim: usize,
    /// The number of earlier positions that the convolution reads.
    pub conv_memory: usize,
    pub use_conv_bias: bool,
    pub use_bias: bool,
    pub time_step_min: f64,
}

descends!(NemotronHConfig from experts: ExpertsConfig, through experts.llama: LlamaConfig);

impl Project<Mamba2Config> for NemotronHConfig {
    fn project(&self) -> Mamba2Config {
        Mamba2Config {
            hidden_size: self.hidden_size,
            heads: self.mamba_num_heads,
            groups: self.n_groups,
            state_size: self.ssm_state_size,
            head_dim: self.mamba_head_dim,
            conv_memory: self.conv_memory,
            conv_bias: self.use_conv_bias,
            proj_bias: self.use_bias,
            epsilon: self.rms_norm_eps,
            least_step: self.time_step_min,
        }
    }
}

impl NemotronHConfig {
    /// Whether a layer has attention.
    pub fn attends(&self, layer: usize) -> bool {
        self.kinds.get(layer) == Some(&Kind::Attention)
    }

    /// Whether a layer has a Mamba-2 block.
    pub fn recurs(&self, layer: usize) -> bool {
        self.kinds.get(layer) == Some(&Kind::Mamba)
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the
    /// checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        vec![
            DeclaredSize::numbers("layers_block_type", self.num_hidden_layers, "model.layers."),
            DeclaredSize::extent("vocab_size", self.vocab_size, &[("model.embeddings.weight", 0)]),
            DeclaredSize::extent("hidden_size", self.hidden_size, &[("model.embeddings.weight", 1)]),
            DeclaredSize::extent(
                "mamba_num_heads",
                self.mamba_num_heads,
                &[("model.layers.*.mixer.A_log", 0)],
            ),
            DeclaredSize::extent(
                "conv_kernel",
                self.conv_memory + 1,
                &[("model.layers.*.mixer.conv1d.weight", 2)],
            ),
            DeclaredSize::extent(
                "n_routed_experts",
                self.num_experts,
                &[("model.layers.*.mixer.gate.weight", 0)],
            ),
        ]
    }
}

/// Configuration keys that Tracewright ignores, because the keys affect only training or other
/// implementations.
const IGNORED: &[&str] = key_names![
    attention_bias chunk_size expand hidden_dropout mamba_proj_bias mamba_ssm_cache_dtype
    moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type n_shared_experts
    norm_eps num_logits_to_keep num_nextn_predict_layers partial_rotary_factor rescale_prenorm_residual
    residual_in_fp32 rope_parameters rope_theta time_step_floor time_step_limit time_step_max
    time_step_rank use_mamba_kernels
];

/// Reads the `config.json` of a Nemotron-H model. Missing configuration keys get the defaults of
/// `NemotronHConfig` in HF transformers.
pub(crate) fn read(keys: &Keys) -> NemotronHConfig {
    keys.ignore(IGNORED);
    keys.ignore(experts::IGNORED);
    keys.one_of("mlp_hidden_act", &["relu2"]);
    keys.one_of("mamba_hidden_act", &["silu"]);
    // HF transformers always stores a separate head matrix.
    keys.always("tie_word_embeddings", false);
    if let Some(found) = keys.get("sliding_window") {
        keys.refuse("sliding_window", found, "null");
    }
    let kinds = kinds(keys);
    let defaults = Defaults {
        hidden_act: &[],
        sizes: Some([131_072, 4096, 21_504, kinds.len(), 32]),
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        norm_key: "layer_norm_epsilon",
        rms_norm_eps: 1e-5,
        ..Defaults::new(4096)
    };
    let llama = LlamaConfig::with_rope(keys, defaults, |_, _| RopeParameters::plain(1e4));
    if llama.num_hidden_layers != kinds.len() {
        let expected = format!("{}, the layers that the list of kinds has", kinds.len());
        keys.refuse("num_hidden_layers", llama.num_hidden_layers, expected);
    }
    let llama = LlamaConfig { mlp_bias: keys.flag("mlp_bias", false), ..llama };
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let experts = experts::deepseek(keys, llama, [8, 2, 7688], ([1, 1], 1.0, 0));
    let latent = keys.optional_count("moe_latent_size");
    NemotronHConfig {
        is_latent: latent.is_some(),
        latent_size: latent.unwrap_or(experts.hidden_size),
        shared_features: count("moe_shared_expert_intermediate_size", 7688),
        kinds,
        mamba_num_heads: count("mamba_num_heads", 128),
        n_groups: count("n_groups", 8),
        ssm_state_size: count("ssm_state_size", 128),
        mamba_head_dim: count("mamba_head_dim", 64),
        conv_memory: hybrid::conv_memory(keys, "conv_kernel", 4),
        use_conv_bias: keys.flag("use_conv_bias", true),
        use_bias: keys.flag("use_bias", false),
        time_step_min: keys.number_or("time_step_min", 0.001),
        experts,
    }
}

/// The `config.json` that corresponds to a GGUF file (`LLM_ARCH_NEMOTRON_H` and `LLM_ARCH_NEMOTRON_H_MOE` in
/// llama.cpp).
pub(super) fn gguf(file: &Metadata<'_>) -> Value {
    let layers = file.layers();
    let [heads, features] =
        ["attention.head_count_kv", "feed_forward_length"].map(|key| file.each_layer(key, layers));
    let kind = |layer: usize| match (heads[layer], features[layer]) {
        (0, 0) => "mamba",
        (_, 0) => "attention",
        _ if file.has(&format!("blk.{layer}.ffn_gate_inp.weight")) => "moe",
        _ => "mlp",
    };
    let kinds: Vec<&str> = (0..heads.len().min(features.len())).map(kind).collect();
    let recurs = kinds.iter().position(|kind| *kind == "mamba").unwrap_or(0);
    let [rms, other] = ["rms_epsilon", "epsilon"].map(|end| format!("attention.layer_norm_{end}"));
    let (inner, mamba_heads) = (file.count("ssm.inner_size"), file.count("ssm.time_step_rank"));
    let keys = json!({
        "hidden_size": file.count("embedding_length"),
        "intermediate_size": file.most("feed_forward_length").filter(|&most| most > 0),
        "num_hidden_layers": layers,
        "layers_block_type": kinds,
        "num_attention_heads": file.most("attention.head_count"),
        "num_key_value_heads": heads.iter().max(),
        "head_dim": file.count("attention.key_length"),
        "layer_norm_epsilon": file.optional_number(&rms).or_else(|| file.number(&other)),
        "max_position_embeddings": file.count("context_length"),
        "mlp_bias": (0..kinds.len()).any(|layer| file.has(&format!("blk.{layer}.ffn_up.bias"))),
        "mamba_num_heads": mamba_heads,
        "mamba_head_dim": inner.zip(mamba_heads).and_then(|(inner, heads)| inner.checked_div(heads)),
        "n_groups": file.count("ssm.group_count"),
        "ssm_state_size": file.count("ssm.state_size"),
        "conv_kernel": file.count("ssm.conv_kernel"),
        "use_conv_bias": file.has(&format!("blk.{recurs}.ssm_conv1d.bias")),
        "use_bias": file.has(&format!("blk.{recurs}.ssm_in.bias")),
    });
    let experts = file.experts().map_or(Value::Null, |_| {
        let own = json!({
            "moe_shared_expert_intermediate_size": file.count("expert_shared_feed_forward_length"),
            "moe_latent_size": file.optional_count("moe_latent_size").filter(|&size| size > 0),
        });
        joined([own, file.deepseek()])
    });
    file.shared(joined([keys, experts]))
}

/// Reads the kind of block of each layer from the key `layers_block_type` or from the letters in
/// the key `hybrid_override_pattern`.
fn kinds(keys: &Keys) -> Vec<Kind> {
    let (listed, pattern) = (keys.get("layers_block_type"), keys.get("hybrid_override_pattern"));
    let named = |name: &Value| {
        let found = KINDS.iter().find(|(_, names, _)| names.iter().any(|known| name == known));
        found.map(|(kind, ..)| *kind)
    };
    let lettered = |letter: char| KINDS.iter().find(|(.., known)| *known == letter).map(|(kind, ..)| *kind);
    let (key, value, kinds) = match (listed, pattern) {
        (Some(value), _) => {
            let names = value.as_array().map(|names| names.iter().map(named).collect());
            ("layers_block_type", value, names.flatten())
        }
        (None, Some(value)) => {
            let letters = value.as_str().map(|letters| letters.chars().map(lettered).collect());
            ("hybrid_override_pattern", value, letters.flatten())
        }
        (None, None) => return vec![Kind::Mamba, Kind::Experts, Kind::Attention, Kind::Mlp],
    };
    match kinds {
        Some(kinds) if (1..=limits::LAYERS).contains(&Vec::len(&kinds)) => kinds,
        _ => {
            let expected = "`mamba`, `attention`, `mlp` or `moe` for each layer, or one of the letters M*-E";
            keys.refuse(key, value, expected);
            vec![Kind::Mlp]
        }
    }
}
