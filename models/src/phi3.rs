//! Phi-3 and Phi-4: "Phi-3 Technical Report" (2024), §2; names as in the HF checkpoint (`modeling_phi3.py`). A Llama
//! whose checkpoint holds queries, keys and values in one matrix, gate and up in another; with LongRoPE, which may
//! rotate a part of each head.

use dsl::nn::{Attend, Cache, Kv, Position, attend, silu};
use dsl::{Float, model};

use crate::config::{ConfigError, Keys};
use crate::llama::{self, Defaults, LlamaConfig};
use crate::rope::{RopeDefaults, RopeScaling};

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Phi3<T: Float>(Phi3Config) {
        dims {
            V = vocab_size, D = hidden_size, F = intermediate_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
            // The heads of queries, keys and values; the features of gate and up.
            P = H + K + K, U = 2 * F,
        }
        cache { L of [K, E] within window }

        model: Model,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    /// Embedding, layers, final norm.
    pub Model {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed_tokens(tokens);
            for (i, (layer, kv)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
                x = layer.forward(x, &at.clone().windowed(self.config.window(i)), kv);
            }
            self.norm(x)
        }
    }

    /// As in Llama, of other halves.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Mlp,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn(self.input_layernorm(x), at, kv);
            x + self.mlp(self.post_attention_layernorm(x))
        }
    }

    /// One projection: query heads, then key heads, then value heads (`Phi3Attention`).
    pub Attention {
        qkv_proj: Linear[D -> P, E],
        o_proj: Linear[K, G, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let [q, k, v] = self.qkv_proj(x).split(P, [self.dim(H), self.dim(K), self.dim(K)]); // [B, S, P, E]
            let q = at.rope(q.unmerge(P, &[self.dims.dim(K), self.dims.dim(G)])); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(k.rename(P, K)), v.rename(P, K), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }

    /// SwiGLU of one projection: gate, then up (`Phi3MLP`).
    pub Mlp {
        gate_up_proj: Linear[D -> U],
        down_proj: Linear[F -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let halves = self.gate_up_proj(x).split(U, [self.dim(F); 2]);
            let [gate, up] = halves.map(|half| half.rename(U, F)); // [B, S, F]
            self.down_proj(silu(gate) * up)
        }
    }
}

/// `config.json` of a Phi-3 (`configuration_phi3.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct Phi3Config {
    /// What it shares with Llama.
    pub llama: LlamaConfig,
    /// Positions that a query sees, its own included, if not all.
    pub sliding_window: Option<usize>,
}

descends!(Phi3Config from llama: LlamaConfig);

/// Keys of the published checkpoints that transformers does not read.
const IGNORED: &[&str] = &["auto_map", "embd_pdrop", "full_attn_mod", "interpolate_factor", "resid_pdrop"];

impl Phi3Config {
    /// Reads `config.json`. Defaults are those of `Phi3Config` in transformers. `allowed` keys may be there although
    /// nothing reads them.
    ///
    /// # Errors
    /// All keys that are missing, unknown or unusable.
    pub fn read(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
        keys.one_of("hidden_act", &["silu"]);
        for bias in ["attention_bias", "mlp_bias", "lm_head_bias"] {
            keys.always(bias, false);
        }
        let rope = RopeDefaults {
            partial_rotary_factor: Some(1.0),
            original_max_position_embeddings: Some(4096),
            ..RopeDefaults::new(4096)
        };
        let defaults = Defaults { rms_norm_eps: 1e-5, rope, ..Defaults::new(4096) };
        let llama = LlamaConfig::shared(&keys, defaults);
        if !matches!(llama.rope.scaling, RopeScaling::Default | RopeScaling::LongRope { .. }) {
            keys.refuse("rope_scaling", "of another type", "null or of type longrope");
        }
        let sliding_window = keys.optional_count("sliding_window");
        keys.finish(&[llama::IGNORED, IGNORED].concat(), allowed)?;
        Ok(Self { llama, sliding_window })
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, _layer: usize) -> Option<usize> {
        self.sliding_window
    }
}
