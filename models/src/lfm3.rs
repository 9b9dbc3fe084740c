//! The LFM3 network. Field names follow the names in the Hugging Face checkpoint (`modeling_lfm3.py`). The
//! network extends LFM2 in three ways. Some layers have an attention window, each attention head has an
//! output gate, and a norm follows attention, the convolution and the feed-forward network.

use dsl::nn::{Attend, Cache, Kv, Position, Recurrent, attend};
use dsl::{Float, Tensor, model};

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::experts::{ExpertsConfig, Routing, Scores};
use crate::family::{Family, presets};
use crate::hybrid;
use crate::rope::{RopeDefaults, RopeParameters, RopeScaling};
use crate::short_conv::{ConvConfig, Convolution, FeedForward};

pub(crate) const FAMILY: Family = Family {
    about: "short convolutions between attention layers, some with a window; gated heads",
    prefixes: crate::lfm2::FAMILY.prefixes,
    // The first name is the key in published checkpoints, and the second name is the key in HF
    // transformers.
    stacks: &[("self_attn.g_proj.weight", &["self_attn.gate_proj.weight"])],
    presets: presets!("lfm3-1.7b": "LiquidAI/LFM3-1.7B"),
    ..Family::of(&["Lfm3ForCausalLM"], &["Lfm3Model"], &["lfm3"])
};

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub Lfm3<T: Float>(Lfm3Config) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
            // C is the number of inputs that a convolution caches.
            C = conv_memory,
        }
        cache { L of [K, E] within window if attends, L of recurrent [C, D] if recurs }
        shard { K, F, V over model; X over expert; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    /// The network without the output head: the embedding, the layers and the final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps) at "embedding_norm",

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let attention = |rope: &RopeParameters| {
                let frequencies = rope.frequencies(self.dim(E), cache.context);
                Attend::rotary(at, S, tokens.extent(S), &frequencies, cache.context)
            };
            let (global, local) = (attention(&self.config.rope), self.config.local_rope.as_ref().map(attention));
            let mut x = self.embed_tokens(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                let window = self.config.window(i);
                let rotary = local.as_ref().filter(|_| window.is_some()).unwrap_or(&global);
                x = if self.config.attends(i) { layer.forward(x, &rotary.clone().windowed(window), cache.state(i)) } else { layer.convolve(x, at, cache.state(i)) };
            }
            self.norm(x)
        }
    }

    /// Attention or a convolution, then a feed-forward network, each with norms before and after.
    pub Layer {
        operator_norm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention,
        conv: Convolution<T>,
        post_operator_norm: RmsNorm[D](eps = rms_norm_eps),
        ffn_norm: RmsNorm[D](eps = rms_norm_eps),
        feed_forward: FeedForward<T>,
        post_ffn_norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let y = self.self_attn(self.operator_norm(x), at, kv);
            self.after(x, y)
        }

        fn convolve(x: T[B, S, D], at: Position, state: &mut Recurrent<T>) -> T[B, S, D] {
            let y = self.conv.forward(self.operator_norm(x), at, state);
            self.after(x, y)
        }

        /// Computes the rest of the layer from `y`, the output of attention or of the convolution.
        fn after(x: T[B, S, D], y: T[B, S, D]) -> T[B, S, D] {
            let normed = self.config.use_sandwich_norm;
            let x = x + if normed { self.post_operator_norm(y) } else { y };
            let y = self.feed_forward.either(self.ffn_norm(x), false);
            x + if normed { self.post_ffn_norm(y) } else { y }
        }
    }

    /// Normalizes queries and keys, and multiplies each head's output by a gate between 0 and 1.
    pub Attention {
        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        gate_proj: Linear[D -> K, G],
        q_norm: RmsNorm[E](eps = rms_norm_eps),
        k_norm: RmsNorm[E](eps = rms_norm_eps),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_norm(self.q_proj(x))); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_norm(self.k_proj(x))), self.v_proj(x), at); // [B, K, N, E]
            let attended: Tensor<T> = attend(q, k, v, at);
            self.o_proj(if self.config.use_attention_gate { attended * self.gate_proj(x).logistic().broadcast(attended) } else { attended })
        }
    }
}

/// The values in the `config.json` of an LFM3 model (`configuration_lfm3.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct Lfm3Config {
    /// The configuration keys that LFM3 shares with LFM2.
    pub conv: ConvConfig,
    /// Whether a norm follows attention, the convolution and the feed-forward network.
    pub use_sandwich_norm: bool,
    /// Whether each attention head has an output gate.
    pub use_attention_gate: bool,
}

descends!(Lfm3Config from conv: ConvConfig);

pub(crate) fn read(keys: &Keys) -> Lfm3Config {
    let defaults = Defaults {
        hidden_act: &[],
        sizes: Some([128_000, 2048, 7680, 24, 16]),
        num_key_value_heads: Some(4),
        head_dim: Some(128),
        norm_key: "norm_eps",
        rms_norm_eps: 1e-5,
        tie_word_embeddings: true,
        ..Defaults::of(RopeDefaults::new(128_000))
    };
    let mut local = RopeParameters::plain(1e4);
    let mut llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        let both = RopeParameters::by_layer_type(keys, [1e4, 1e6], defaults.max_position_embeddings);
        let [sliding, mut global] = both;
        if keys.get("rope_parameters").is_none() {
            global.scaling = RopeScaling::Proportional { proportion: 0.5, factor: 1.0 };
        }
        local = sliding;
        global
    });
    let layers = llama.num_hidden_layers;
    let kinds = keys.kinds_of_layers("layer_types", layers, &["full_attention", "sliding_attention", "conv"]);
    let kind = |layer: usize| match &kinds {
        Some(kinds) => kinds[layer].as_str(),
        None if layer % 4 == 2 => "full_attention",
        None if layer.is_multiple_of(4) && layer > 0 => "sliding_attention",
        None => "conv",
    };
    let window = keys.nullable_count("sliding_window", Some(256));
    if window.is_none() && (0..layers).any(|layer| kind(layer) == "sliding_attention") {
        keys.refuse("sliding_window", "null", "a positive integer: some layers look through a window");
    }
    let slides = |layer| window.filter(|_| kind(layer) == "sliding_attention");
    llama.windows = (0..layers).map(slides).collect();
    llama.local_rope = Some(local);
    llama.attention_bias = keys.flag("attention_bias", false);
    let conv = ConvConfig {
        attention: (0..layers).map(|layer| kind(layer) != "conv").collect(),
        conv_memory: hybrid::conv_memory(keys, "conv_L_cache", 7),
        conv_bias: keys.flag("conv_bias", false),
        experts: ExpertsConfig {
            sparse: Vec::new(),
            ..ExpertsConfig::like_llama(llama, Routing::plain(Scores::Sigmoid))
        },
    };
    Lfm3Config {
        conv,
        use_sandwich_norm: keys.flag("use_sandwich_norm", true),
        use_attention_gate: keys.flag("use_attention_gate", true),
    }
}
