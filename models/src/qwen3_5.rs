//! The text network of Qwen3.5. Field names follow the names in the Hugging Face checkpoint
//! (`modeling_qwen3_5.py`). Three of every four layers have a gated DeltaNet (Yang et al., "Gated Delta
//! Networks", 2024) instead of attention. Layers without a DeltaNet have attention with an output gate.

use dsl::nn::{Attend, Cache, Kv, Position, Recurrent, attend, silu};
use dsl::{Block, F32, Float, Tensor, model};
use serde_json::json;
use trace::Ignorable;

use crate::config::Keys;
use crate::decoder::{Defaults, FeedForward, LlamaConfig};
use crate::delta_net::{self, delta_net};
use crate::experts::{ExpertsConfig, Shared};
use crate::family::{BASE, Family, GgufFamily};
use crate::hybrid;

pub use crate::delta_net::Qwen35Config;

pub(crate) const FAMILY: Family = Family {
    about: "gated DeltaNet in three of four layers, attention with a gated output, partial rotation",
    prefixes: &[("model.language_model.", "model."), BASE[0], BASE[1], BASE[2]],
    // These are tensors of the vision tower and of the module for multi-token prediction.
    ignorable: &[
        Ignorable::Suffix(".rotary_emb.inv_freq"),
        Ignorable::Prefix("model.visual."),
        Ignorable::Prefix("mtp."),
    ],
    gguf: Some(GgufFamily {
        config: |file| delta_net::gguf_config(file, json!({ "value_heads_tiled": true })),
        ..delta_net::GGUF
    }),
    ..Family::of(
        &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
        &["Qwen3_5TextModel", "Qwen3_5Model"],
        &["qwen3_5_text", "qwen3_5"],
    )
};

/// The whole Qwen3.5 network, from token ids to logits.
pub type Qwen35<T> = DeltaDecoder<T, DeltaNet<T>, Shared<T>>;

/// A block with a recurrent state. The state consists of a matrix and the last inputs of a convolution.
pub trait DeltaBlock<T: Float>: Block<Config = Qwen35Config> {
    /// Computes new features `[B, S, D]` from the features `x` `[B, S, D]`.
    fn forward(
        &self,
        x: Tensor<T>,
        at: Position,
        delta: &mut Recurrent<F32>,
        conv: &mut Recurrent<T>,
    ) -> Tensor<T>;
}

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub DeltaDecoder<T: Float, Y: DeltaBlock<T>, A: FeedForward<T, Config = ExpertsConfig>>(Qwen35Config) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
            // Z is the features of a query together with the query's gate.
            Z = E + E,
            // In a DeltaNet, W, N and R are the numbers of key heads, of value heads, and of value
            // heads per key head. U and X are the features of a key and of a value.
            W = linear_num_key_heads, N = linear_num_value_heads, R = N / W,
            U = linear_key_head_dim, X = linear_value_head_dim,
            // P is the convolution's inputs, which are queries, keys and values. C is the number of
            // inputs that the state stores.
            P = W * U + W * U + N * X, C = conv_memory,
            // M is the number of layers with the layer for multi-token prediction. Q is the inputs
            // of this module.
            M = num_hidden_layers + 1, Q = D + D,
        }
        cache {
            L of [K, E] if attends,
            M of [K, E] if drafts for draft,
            L of delta: Recurrent<F32>[W, R, U, X] if recurs,
            L of conv: Recurrent[C, P] if recurs,
        }
        shard { K, F, V over model; X over expert; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,
        mtp: Mtp,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn draft(tokens: i32[B, S], hidden: T[B, S, D], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let attention = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let kv = cache.state(self.config.num_hidden_layers);
            self.mtp(self.model.embed_tokens(tokens), hidden, &attention, kv)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    /// The network without the output head: the embedding, the layers and the final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let attention = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed_tokens(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                x = if self.config.attends(i) { layer.forward(x, &attention, cache.state(i)) } else {
                        let (delta, conv) = cache.pair(i, ["delta", "conv"]);
                        layer.recur(x, at, delta, conv)
                    };
            }
            self.norm(x)
        }
    }

    /// Attention or a DeltaNet, then a feed-forward network, each normalized before and added.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        self_attn: Attention,
        linear_attn: Y,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        mlp: A,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn(self.input_layernorm(x), at, kv);
            x + self.mlp.forward(self.post_attention_layernorm(x))
        }

        fn recur(x: T[B, S, D], at: Position, delta: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            let x = x + self.linear_attn.forward(self.input_layernorm(x), at, delta, conv);
            x + self.mlp.forward(self.post_attention_layernorm(x))
        }
    }

    /// Multi-token prediction (`Qwen3NextMultiTokenPredictor` of vLLM): the next token from a token's
    /// embedding `x` and the hidden state before it. That is the output of the final norm, or of the module's
    /// own (<https://github.com/ggml-org/llama.cpp/pull/24025>).
    pub Mtp {
        pre_fc_norm_embedding: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        pre_fc_norm_hidden: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        fc: Linear[Q -> D],
        layer: Layer at "layers.0",
        norm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),

        fn forward(x: T[B, S, D], hidden: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let parts = [self.pre_fc_norm_embedding(x), self.pre_fc_norm_hidden(hidden)];
            let x = self.fc(Tensor::concat(&parts.map(|part| part.rename(D, Q)), Q));
            self.norm(self.layer.forward(x, at, kv))
        }
    }

    /// The layer for queries also computes a gate of the output (`Qwen3NextAttention`).
    pub Attention<T: Float> {
        q_proj: Linear[D -> K, G, Z](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[E](eps = rms_norm_eps, style = one_plus),
        k_norm: RmsNorm[E](eps = rms_norm_eps, style = one_plus),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let [q, gate] = self.q_proj(x).split(Z, [self.dim(E); 2]).map(|half| half.rename(Z, E)); // [B, S, K, G, E]
            let q = at.rope(self.q_norm(q));
            let (k, v) = kv.append(at.rope(self.k_norm(self.k_proj(x))), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at) * gate.logistic())
        }
    }
}

model! {
    /// A gated DeltaNet, as in `Qwen3_5GatedDeltaNet` of HF transformers.
    pub DeltaNet<T: Float>(Qwen35Config): DeltaBlock<T> {
        dims {
            D = hidden_size,
            W = linear_num_key_heads, N = linear_num_value_heads, R = N / W,
            U = linear_key_head_dim, X = linear_value_head_dim,
            P = W * U + W * U + N * X, J = conv_memory + 1, I = 1,
        }

        in_proj_qkv: Linear[D -> P],
        in_proj_z: Linear[D -> W, R, X],
        in_proj_b: Linear[D -> W, R],
        in_proj_a: Linear[D -> W, R],
        tiled_z: Linear[D -> R, W, X],
        tiled_b: Linear[D -> R, W],
        tiled_a: Linear[D -> R, W],
        taps: Weight[P, I, J] at "conv1d.weight",
        dt_bias: Weight<F32>[N],
        a_log: Weight<F32>[N] at "A_log",
        norm: RmsNorm<F32>[X](eps = rms_norm_eps),
        out_proj: Linear[W, R, X -> D],
        tiled_out: Linear[R, W, X -> D],

        fn forward(x: T[B, S, D], at: Position, delta: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            let (weights, inputs) = ([self.dt_bias(), self.a_log()], (self.in_proj_qkv(x), self.taps()));
            let tiled = self.config.value_heads_tiled;
            let (gates, z) = if tiled { (
                    [self.tiled_b(x), self.tiled_a(x)].map(|gate| gate.permute(&[B, S, W, R])),
                    self.tiled_z(x).permute(&[B, S, W, R, X]),
                ) } else { ([self.in_proj_b(x), self.in_proj_a(x)], self.in_proj_z(x)) };
            let read = delta_net(inputs, gates, weights, at, (delta, conv), tiled); // [B, S, W, R, X]
            let gated = (self.norm(read) * silu(z.to::<F32>())).to();
            if tiled { self.tiled_out(gated.permute(&[B, S, R, W, X])) } else { self.out_proj(gated) }
        }
    }
}

pub(crate) fn read(keys: &Keys) -> Qwen35Config {
    hybrid::read_qwen(keys, |keys| {
        let sizes = Some([248_320, 4096, 12_288, 32, 16]);
        let defaults = Defaults { sizes, num_key_value_heads: Some(4), ..delta_net::defaults() };
        delta_net::read(keys, LlamaConfig::shared(keys, defaults))
    })
}
