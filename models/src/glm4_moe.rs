//! GLM-4.5 to 4.7: Zhipu AI, "GLM-4.5: Agentic, Reasoning, and Coding Foundation Models" (2025),
//! §2. Field names follow the names in the Hugging Face checkpoint (`modeling_glm4_moe.py`). The
//! network differs from Llama in two ways. The rotary embedding rotates half of a head's features,
//! and all layers except the first layers have experts.

use dsl::nn::{Attend, Kv, attend};
use dsl::{Float, model};
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, LlamaConfig};
use crate::experts::{self, Experts, ExpertsConfig, ExpertsLayer, Sparse};
use crate::family::{Family, GgufFamily, Metadata, joined, presets};
use crate::rope::RopeDefaults;
use crate::shape_check::DeclaredSize;

/// The whole GLM-4.5 network, from token ids to logits.
pub type Glm4Moe<T> = Decoder<T, ExpertsLayer<T, Attention<T>, Experts<T>, Glm4MoeConfig>, Glm4MoeConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "mixture of experts with a shared expert, and sigmoid routing with a bias; rotary embedding of half of the features",
    stacks: experts::STACKS,
    further_layers: true,
    gguf: Some(GgufFamily {
        config: gguf,
        keys: experts::GGUF_KEYS,
        parts: &[experts::GGUF_PARTS],
        ..GgufFamily::llama("glm4moe")
    }),
    presets: presets!("glm-4.5-air": "zai-org/GLM-4.5-Air"),
    ..Family::of(&["Glm4MoeForCausalLM"], &["Glm4MoeModel"], &["glm4_moe"])
};

/// The `config.json` that corresponds to a GGUF file (`LLM_ARCH_GLM4_MOE` in llama.cpp).
fn gguf(file: &Metadata<'_>) -> Value {
    file.sigmoid();
    let own = json!({
        "attention_bias": file.is_biased("attn_q"),
        "use_qk_norm": file.has("blk.0.attn_q_norm.weight"),
        "partial_rotary_factor": file.partial_rotary_factor(),
    });
    file.llama(joined([own, file.deepseek()]))
}

model! {
    /// Attention with optional norms over the features of each query and key head (`Glm4MoeAttention`).
    pub Attention<T: Float>(Glm4MoeConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[E](eps = rms_norm_eps),
        k_norm: RmsNorm[E](eps = rms_norm_eps),
        o_proj: Linear[K, G, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let (q, k) = (self.q_proj(x), self.k_proj(x)); // [B, S, K, G, E], [B, S, K, E]
            let (q, k) = if self.config.use_qk_norm { (self.q_norm(q), self.k_norm(k)) } else { (q, k) };
            let (k, v) = kv.append(at.rope(k), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(at.rope(q), k, v, at))
        }
    }
}

/// The values in the `config.json` of a GLM-4.5 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Glm4MoeConfig {
    /// The configuration keys that GLM-4.5 shares with other networks with experts.
    pub experts: ExpertsConfig,
    /// Whether attention normalizes the queries and keys.
    pub use_qk_norm: bool,
}

descends!(Glm4MoeConfig from experts.llama: LlamaConfig, through experts: ExpertsConfig);

impl DecoderConfig for Glm4MoeConfig {}

impl Sparse for Glm4MoeConfig {
    fn experts(&self) -> &ExpertsConfig {
        &self.experts
    }
}

impl Glm4MoeConfig {
    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        self.experts.sizes()
    }
}

pub(crate) fn read(keys: &Keys) -> Glm4MoeConfig {
    keys.ignore(experts::IGNORED);
    keys.ignore(experts::FURTHER_LAYERS);
    let rope = RopeDefaults { partial_rotary_factor: Some(0.5), ..RopeDefaults::new(131_072) };
    let sizes = Some([151_552, 4096, 10_944, 46, 96]);
    let defaults = Defaults { sizes, num_key_value_heads: Some(8), rms_norm_eps: 1e-5, ..Defaults::of(rope) };
    let llama = LlamaConfig::shared(keys, defaults);
    // If the key is missing, the quotient is rounded down.
    let head_dim = llama.head_dim.or(Some(llama.hidden_size / llama.num_attention_heads));
    let llama = LlamaConfig { attention_bias: keys.flag("attention_bias", false), head_dim, ..llama };
    Glm4MoeConfig {
        experts: experts::deepseek(keys, llama, [128, 8, 1408], ([1, 1], 1.0, 1)),
        use_qk_norm: keys.flag("use_qk_norm", false),
    }
}
