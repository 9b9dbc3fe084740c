//! DeepSeek-V3: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), §2.1. Field names follow the
//! names in the Hugging Face checkpoint (`modeling_deepseek_v3.py`). The network is the
//! decoder with latent attention and experts.

use serde_json::{Value, json};

use crate::config::Keys;
use crate::experts;
use crate::family::{Family, GgufFamily, Metadata, joined, presets};
use crate::latent::{self, LatentConfig, LatentDecoder, LatentDefaults};
use crate::rope::RopeDefaults;

/// The whole DeepSeek-V3 network, from token ids to logits.
pub type DeepseekV3<T> = LatentDecoder<T>;

pub(crate) const FAMILY: Family = Family {
    about: "latent attention; mixture of experts with expert groups, a shared expert, and sigmoid routing with a bias",
    stacks: experts::STACKS,
    further_layers: true,
    gguf: Some(GgufFamily {
        config: gguf,
        keys: experts::GGUF_KEYS,
        parts: &[latent::GGUF_PARTS, experts::GGUF_PARTS],
        ..GgufFamily::llama("deepseek2")
    }),
    presets: presets!("deepseek-v3": "deepseek-ai/DeepSeek-V3"),
    ..Family::of(&["DeepseekV3ForCausalLM"], &["DeepseekV3Model"], &["deepseek_v3"])
};

/// `LLM_ARCH_DEEPSEEK2` in llama.cpp. DeepSeek-V2 has the same name, but scores by softmax.
fn gguf(file: &Metadata<'_>) -> Value {
    // GLM-4.7-Flash is the only network whose scores are sigmoids although the key is missing.
    match file.vocabulary() {
        Some(GLM_VOCABULARY) => drop(file.sigmoid()),
        _ => file.require_sigmoid(),
    }
    let rotated = file.count("rope.dimension_count");
    let loudness = file.optional_number("rope.scaling.yarn_log_multiplier").map(|scale| 10.0 * scale);
    let mut rope = file.rope(rotated);
    if let (Some(scaling), Some(loudness)) = (rope["rope_scaling"].as_object_mut(), loudness) {
        // The product of the frequencies' factor with its inverse is 1, so only the scores have a factor.
        scaling.extend([("mscale".into(), json!(loudness)), ("mscale_all_dim".into(), json!(loudness))]);
    }
    let both = file.count("attention.key_length_mla");
    let keys = json!({
        "hidden_size": file.count("embedding_length"),
        "intermediate_size": file.count("feed_forward_length"),
        "num_hidden_layers": file.layers(),
        "num_attention_heads": file.count("attention.head_count"),
        "num_key_value_heads": file.count("attention.head_count"),
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.count("context_length"),
        "q_lora_rank": file.optional_count("attention.q_lora_rank").unwrap_or(0),
        "kv_lora_rank": file.count("attention.kv_lora_rank"),
        "qk_nope_head_dim": both.zip(rotated).map(|(both, rotated)| both.saturating_sub(rotated)),
        "qk_rope_head_dim": rotated,
        "v_head_dim": file.count("attention.value_length_mla"),
        "attention_bias": file.is_biased("attn_q_a"),
        "kv_b_split": true,
    });
    file.shared(joined([keys, file.deepseek(), rope]))
}

/// The size of the vocabulary by which llama.cpp recognizes a GLM-4.7-Flash.
const GLM_VOCABULARY: usize = 154_880;

pub(crate) fn read(keys: &Keys) -> LatentConfig {
    let defaults = LatentDefaults {
        sizes: [129_280, 7168, 18_432, 61, 128],
        rope: RopeDefaults::new(4096),
        rms_norm_eps: 1e-6,
        heads: [1536, 512, 128, 64, 128],
        experts: [256, 8, 2048],
        routing: ([8, 4], 2.5, 3),
    };
    // Published files contain these keys, but HF transformers does not read them.
    keys.ignore(&["aux_loss_alpha", "ep_size", "moe_layer_freq", "seq_aux"]);
    latent::read(keys, &defaults)
}
