//! Phi-3 and Phi-4: "Phi-3 Technical Report" (2024), §2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_phi3.py`). The network differs from Llama in two ways. The checkpoint stores the
//! query, key and value projections in one matrix, and the gate and up projections in another matrix. The
//! rotary embedding uses LongRoPE, and can rotate only some features of each head.

use dsl::nn::{Attend, Kv, attend, silu};
use dsl::{Float, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, Defaults, FeedForward, LlamaConfig};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::Layer;
use crate::rope::{RopeDefaults, RopeScaling};

/// The whole Phi-3 or Phi-4 network, from token ids to logits.
pub type Phi3<T> = Decoder<T, Layer<T, Attention<T>, Mlp<T>>>;

pub(crate) const FAMILY: Family = Family {
    about: "fused projections (q, k and v; gate and up), longrope scaling, partial rotary embedding",
    gguf: Some(GgufFamily {
        config: |file| {
            let rotated = file.optional_count("rope.dimension_count").zip(file.features());
            file.llama(json!({
                "sliding_window": file.window(),
                "partial_rotary_factor": rotated.map_or(1.0, |(some, all)| some as f64 / all as f64),
                "original_max_position_embeddings": file.optional_count("rope.scaling.original_context_length"),
            }))
        },
        parts: &[&[("ffn_up", "mlp.gate_up_proj")]],
        ..GgufFamily::llama("phi3")
    }),
    presets: presets!("phi-3-mini-4k": "microsoft/Phi-3-mini-4k-instruct"),
    ..Family::of(&["Phi3ForCausalLM"], &["Phi3Model"], &["phi3"])
};

model! {
    /// One matrix for queries, keys and values, in this order (`Phi3Attention`).
    pub Attention<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims {
            D = hidden_size, F = intermediate_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
            // P is the number of query, key and value heads together. U is the number of features
            // of gate and up together.
            P = H + K + K, U = 2 * F,
        }

        qkv_proj: Linear[D -> P, E],
        o_proj: Linear[K, G, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let [q, k, v] = self.qkv_proj(x).split(P, [self.dim(H), self.dim(K), self.dim(K)]); // [B, S, P, E]
            let q = at.rope(q.unmerge(P, &[self.dims.dim(K), self.dims.dim(G)])); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(k.rename(P, K)), v.rename(P, K), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }

    /// SwiGLU with one matrix for gate and up projection, in this order (`Phi3MLP`).
    pub Mlp<T: Float>: FeedForward<T> {
        gate_up_proj: Linear[D -> U],
        down_proj: Linear[F -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let halves = self.gate_up_proj(x).split(U, [self.dim(F); 2]);
            let [gate, up] = halves.map(|half| half.rename(U, F)); // [B, S, F]
            self.down_proj(silu(gate) * up)
        }
    }
}

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    for bias in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        keys.always(bias, false);
    }
    let rope = RopeDefaults {
        partial_rotary_factor: Some(1.0),
        original_max_position_embeddings: Some(4096),
        ..RopeDefaults::new(4096)
    };
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::of(rope) };
    let llama = LlamaConfig::shared(keys, defaults);
    if !matches!(llama.rope.scaling, RopeScaling::Default | RopeScaling::LongRope { .. }) {
        keys.refuse("rope_scaling", "of another type", "null or of type longrope");
    }
    let window = keys.optional_count("sliding_window");
    // HF transformers does not read these keys of published files.
    keys.ignore(&["auto_map", "embd_pdrop", "full_attn_mod", "interpolate_factor", "resid_pdrop"]);
    LlamaConfig { windows: vec![window; llama.num_hidden_layers].into(), ..llama }
}
