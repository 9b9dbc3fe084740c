//! The text network of Gemma 4: Google DeepMind, "Gemma 4" (2026). Field names follow the names in the
//! Hugging Face checkpoint (`modeling_gemma4.py`).

use serde_json::{Value, json};
use trace::Ignorable;

use crate::config::Keys;
use crate::family::{Family, GgufFamily, Metadata, TOWER_PREFIXES, presets};
use crate::gemma;
use crate::per_layer::{self, OwnDefaults, PerLayerConfig, PerLayerDecoder};

/// The whole Gemma 4 network, from token ids to logits.
pub type Gemma4<T> = PerLayerDecoder<T>;

pub(crate) const FAMILY: Family = Family {
    about: "Gemma 4, dense and with experts: larger heads in global layers, shared keys and values, an embedding for each layer",
    prefixes: TOWER_PREFIXES,
    stacks: &[
        ("experts.gate_up_proj", &["experts.*.gate_proj.weight", "experts.*.up_proj.weight"]),
        ("experts.down_proj", &["experts.*.down_proj.weight"]),
    ],
    ignorable: &[
        Ignorable::Prefix("model.vision_tower."),
        Ignorable::Prefix("model.audio_tower."),
        Ignorable::Prefix("model.embed_vision."),
        Ignorable::Prefix("model.embed_audio."),
        Ignorable::Prefix("model.vision_embedder."),
    ],
    gguf: Some(GgufFamily {
        config: gguf,
        keys: GGUF_KEYS,
        parts: &[GGUF_PARTS],
        outside: &[
            ("per_layer_token_embd", "model.embed_tokens_per_layer"),
            ("per_layer_model_proj", "model.per_layer_model_projection"),
            ("per_layer_proj_norm", "model.per_layer_projection_norm"),
        ],
        fits_f16: false,
        ..GgufFamily::llama("gemma4")
    }),
    presets: presets!("gemma-4-e2b": "google/gemma-4-E2B-it", "gemma-4-26b-a4b": "google/gemma-4-26B-A4B-it"),
    ..Family::of(
        &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        &["Gemma4TextModel", "Gemma4Model"],
        &["gemma4_text", "gemma4"],
    )
};

/// The names of a layer's tensors in GGUF files and in the network.
const GGUF_PARTS: &[(&str, &str)] = &[
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
    ("ffn_down_exps.weight", "experts.down_proj"),
];

/// The names of keys in a `config.json`, and in a GGUF file's metadata.
const GGUF_KEYS: &[(&str, &str)] = &[
    ("head_dim", "attention.key_length_swa"),
    ("global_head_dim", "attention.key_length"),
    ("num_global_key_value_heads", "attention.head_count_kv"),
    ("num_kv_shared_layers", "attention.shared_kv_layers"),
    ("hidden_size_per_layer_input", "embedding_length_per_layer_input"),
    ("num_experts", "expert_count"),
    ("top_k_experts", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

/// The `config.json` that corresponds to a GGUF file (`LLM_ARCH_GEMMA4` in llama.cpp).
fn gguf(file: &Metadata<'_>) -> Value {
    let layers = file.layers();
    let kinds = gemma::gguf_layer_types(file, layers.unwrap_or(0), 6, true);
    let [heads, features] =
        ["attention.head_count_kv", "feed_forward_length"].map(|key| file.each_layer(key, layers));
    let of_kind =
        |wanted| kinds.iter().zip(&heads).find(|(kind, _)| **kind == wanted).map(|(_, heads)| *heads);
    let global = of_kind("full_attention");
    let shared = file.optional_count("attention.shared_kv_layers").unwrap_or(0);
    let own = kinds.len().saturating_sub(shared);
    let lacks_values = |(layer, kind): (usize, &&str)| {
        *kind == "full_attention" && !file.has(&format!("blk.{layer}.attn_v.weight"))
    };
    let factors = file.factors("rope_freqs.weight").unwrap_or_default();
    let rotated =
        factors.iter().filter(|factor| **factor == 1.0).count() as f64 / factors.len().max(1) as f64;
    let experts = file.experts();
    let beside = file.optional_count("embedding_length_per_layer_input").unwrap_or(0);
    let theta = |key| file.optional_number(key).unwrap_or(1e4);
    file.shared(json!({
        "hidden_size": file.count("embedding_length"),
        "intermediate_size": features.first(),
        "use_double_wide_mlp": features.first() != features.last(),
        "num_hidden_layers": layers,
        "num_attention_heads": file.count("attention.head_count"),
        "num_key_value_heads": of_kind("sliding_attention").or(global),
        "num_global_key_value_heads": global,
        "head_dim": file.count("attention.key_length_swa"),
        "global_head_dim": file.count("attention.key_length"),
        "attention_k_eq_v": kinds.iter().enumerate().take(own).any(lacks_values),
        "num_kv_shared_layers": shared,
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.count("context_length"),
        "layer_types": kinds,
        "sliding_window": file.window(),
        "hidden_size_per_layer_input": beside,
        "vocab_size_per_layer_input": file.rows("per_layer_token_embd.weight"),
        "enable_moe_block": experts.is_some(),
        "num_experts": experts,
        "top_k_experts": experts.and_then(|_| file.count("expert_used_count")),
        "moe_intermediate_size": experts.and_then(|_| file.count("expert_feed_forward_length")),
        "final_logit_softcapping": file.optional_number("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": theta("rope.freq_base"),
                "partial_rotary_factor": if factors.is_empty() { 1.0 } else { rotated },
            },
            "sliding_attention": { "rope_type": "default", "rope_theta": theta("rope.freq_base_swa") },
        },
    }))
}

pub(crate) fn read(keys: &Keys) -> PerLayerConfig {
    let defaults = OwnDefaults {
        max_position_embeddings: 131_072,
        sliding_window: 512,
        hidden_size_per_layer_input: 256,
    };
    per_layer::read(keys, &defaults)
}
