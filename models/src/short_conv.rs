//! LFM2's decoder, in which most layers mix neighbouring tokens with a short gated convolution: "LFM2
//! Technical Report" (2025), §2. Field names follow the names in the Hugging Face checkpoint
//! (`modeling_lfm2.py`). Layers without a convolution have the same attention as Qwen3.

use dsl::nn::{Attend, Cache, Kv, Position, Recurrent, attend, silu};
use dsl::{F32, Float, model};
use irpa::StoredOrder;
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::experts::{ExpertsConfig, Routing, Scores};
use crate::family::{GgufFamily, Metadata, joined};
use crate::hybrid::{self, alternates};
use crate::mixtral::Mixture;
use crate::rope::RopeDefaults;

pub(crate) const GGUF: GgufFamily = GgufFamily {
    config: |file| joined([gguf_config(file), json!({ "block_auto_adjust_ff_dim": false })]),
    keys: &[("norm_eps", "attention.layer_norm_rms_epsilon"), ("conv_L_cache", "shortconv.l_cache")],
    parts: &[GGUF_PARTS],
    // The norm after the last layer has one of these two names in GGUF files.
    outside: &[("token_embd_norm", "model.embedding_norm"), ("output_norm", "model.embedding_norm")],
    arranged: |part, _, _, tensor| {
        // The conversion to GGUF removed the axis of the single input.
        if part == "shortconv.conv" && tensor.shape.len() == 2 {
            tensor.shape.insert(1, 1);
        }
        StoredOrder::Same
    },
    ..GgufFamily::llama("lfm2")
};

/// The names of a layer's tensors in GGUF files and in the network.
pub(crate) const GGUF_PARTS: &[(&str, &str)] = &[
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
];

pub(crate) fn gguf_config(file: &Metadata<'_>) -> Value {
    let kind = |heads| if heads > 0 { "full_attention" } else { "conv" };
    let types: Vec<&str> = file.key_value_heads().into_iter().map(kind).collect();
    let keys = json!({
        "intermediate_size": file.count("feed_forward_length"),
        "norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "layer_types": types,
        "conv_L_cache": file.count("shortconv.l_cache"),
        "conv_bias": (0..types.len()).any(|layer| file.has(&format!("blk.{layer}.shortconv.in_proj.bias"))),
    });
    file.hybrid(joined([keys, file.rope(None)]))
}

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub ConvDecoder<T: Float>(ConvConfig) {
        dims {
            V = vocab_size, D = hidden_size, F = intermediate_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
            // C is the number of inputs that a convolution caches, and J is the number of taps.
            C = conv_memory, J = C + 1,
            // P is the outputs of the input projection: the gate before the convolution, the gate
            // after the convolution, and the convolution's input. I is the inputs of each tap, and
            // M is the outputs of the convolution.
            P = 3 * D, I = 1, M = D,
            // X is the number of experts in a layer with experts.
            X = num_experts,
        }
        cache { L of [K, E] if attends, L of recurrent [C, D] if recurs }
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
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let attention = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed_tokens(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                x = if self.config.attends(i) { layer.forward(x, &attention, cache.state(i), self.config.experts.is_sparse(i)) } else { layer.convolve(x, at, cache.state(i), self.config.experts.is_sparse(i)) };
            }
            self.norm(x)
        }
    }

    /// Attention or a convolution, then a feed-forward network or experts, each normalized before and added.
    pub Layer {
        operator_norm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention,
        conv: Convolution,
        ffn_norm: RmsNorm[D](eps = rms_norm_eps),
        feed_forward: FeedForward,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>, sparse: bool) -> T[B, S, D] {
            let x = x + self.self_attn(self.operator_norm(x), at, kv);
            x + self.feed_forward.either(self.ffn_norm(x), sparse)
        }

        fn convolve(x: T[B, S, D], at: Position, state: &mut Recurrent<T>, sparse: bool) -> T[B, S, D] {
            let x = x + self.conv(self.operator_norm(x), at, state);
            x + self.feed_forward.either(self.ffn_norm(x), sparse)
        }
    }

    /// Attention that normalizes each query head and key head before the rotary embedding.
    pub Attention {
        q_proj: Linear[D -> K, G, E],
        k_proj: Linear[D -> K, E],
        v_proj: Linear[D -> K, E],
        q_layernorm: RmsNorm[E](eps = rms_norm_eps),
        k_layernorm: RmsNorm[E](eps = rms_norm_eps),
        out_proj: Linear[K, G, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_layernorm(self.q_proj(x))); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_layernorm(self.k_proj(x))), self.v_proj(x), at); // [B, K, N, E]
            self.out_proj(attend(q, k, v, at))
        }
    }

    /// Over each feature's last positions, with a gate before and one after (`Lfm2ShortConv`).
    pub Convolution {
        in_proj: Linear[D -> P](bias if conv_bias),
        taps: Weight[D, I, J] at "conv.weight",
        bias: Weight[D] at "conv.bias",
        out_proj: Linear[M -> D](bias if conv_bias),

        fn forward(x: T[B, S, D], at: Position, state: &mut Recurrent<T>) -> T[B, S, D] {
            let parts = self.in_proj(x).split(P, [self.dim(D); 3]);
            let [before, behind, x] = parts.map(|part| part.rename(P, D)); // [B, S, D]
            let mixed = state.convolve(before * x, self.taps(), [C, J, S], at);
            let mixed = if self.config.conv_bias { mixed + self.bias().to::<F32>() } else { mixed };
            self.out_proj((behind * mixed.to()).rename(D, M))
        }
    }

    /// A SwiGLU feed-forward network or a mixture of experts.
    pub FeedForward {
        w1: Linear[D -> F],
        w3: Linear[D -> F],
        w2: Linear[F -> D],
        gate: Linear[D -> X],
        expert_bias: Weight<F32>[X],
        experts: Mixture<T> at "experts",

        fn either(x: T[B, S, D], sparse: bool) -> T[B, S, D] {
            if !sparse {
                return self.w2(silu(self.w1(x)) * self.w3(x));
            }
            let bias = self.config.experts.biased.then(|| self.expert_bias());
            self.experts.mix(x, self.gate(x), bias)
        }
    }
}

/// The configuration of a network with short convolutions (`configuration_lfm2.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct ConvConfig {
    /// The configuration keys that the network shares with other networks in which some layers have experts.
    pub experts: ExpertsConfig,
    /// Whether each layer has attention. A layer without attention has a convolution.
    pub attention: Vec<bool>,
    /// The number of earlier positions that the convolution reads.
    pub conv_memory: usize,
    /// Whether the convolutions and the linear layers before and after a convolution have biases.
    pub conv_bias: bool,
}

descends!(ConvConfig from experts: ExpertsConfig);

/// Without experts. `sizes` are defaults, as in [`Defaults::sizes`].
pub(crate) fn shared(keys: &Keys, sizes: [usize; 5]) -> ConvConfig {
    let rope = RopeDefaults { theta: 1e6, ..RopeDefaults::new(128_000) };
    let defaults = Defaults {
        hidden_act: &[],
        sizes: Some(sizes),
        num_key_value_heads: Some(8),
        norm_key: "norm_eps",
        rms_norm_eps: 1e-5,
        tie_word_embeddings: true,
        ..Defaults::of(rope)
    };
    let conv_memory = hybrid::conv_memory(keys, "conv_L_cache", 3);
    let mut llama = LlamaConfig::shared(keys, defaults);
    llama.tie_word_embeddings = keys.flag("tie_embedding", llama.tie_word_embeddings);
    let (attention, conv_bias) = (attention(keys, llama.num_hidden_layers), keys.flag("conv_bias", false));
    let experts = ExpertsConfig {
        sparse: Vec::new(),
        ..ExpertsConfig::like_llama(llama, Routing::plain(Scores::Sigmoid))
    };
    ConvConfig { experts, attention, conv_memory, conv_bias }
}

alternates!(ConvConfig);

/// By `layer_types`, or else `full_attn_idxs`, or else in all layers.
fn attention(keys: &Keys, layers: usize) -> Vec<bool> {
    let mut attention = vec![false; layers];
    let listed = keys.layers("full_attn_idxs", layers, |layer| attention[layer] = true);
    let kinds = hybrid::kinds(keys, layers, &[(true, &["full_attention"]), (false, &["conv"])]);
    kinds.unwrap_or_else(|| if listed { attention } else { vec![true; layers] })
}
