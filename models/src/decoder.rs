//! What decoders have in common: embedding, layers, a norm and a head. A family brings its layers.

use dsl::nn::{Attend, Cache, Kv, Position};
use dsl::{Block, Float, Tensor, model};

use crate::llama::LlamaConfig;

/// What looks at other positions: a layer, or the attention within it.
pub trait Attends<T: Float>: Block<Config = LlamaConfig> {
    /// Features `[B, S, D]` of the next place in the network, by what other positions hold.
    fn forward(&self, x: Tensor<T>, at: &Attend<T>, kv: &mut Kv<T>) -> Tensor<T>;
}

/// What takes each position by itself: a feed-forward network.
pub trait Maps<T: Float>: Block<Config = LlamaConfig> {
    /// Features `[B, S, D]` of the next place in the network.
    fn forward(&self, x: Tensor<T>) -> Tensor<T>;
}

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Decoder<T: Float, Y: Attends<T>>(LlamaConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
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
        layers: [Y; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed_tokens(tokens);
            for (i, (layer, kv)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
                x = layer.forward(x, &self.config.look(i, &at), kv);
            }
            self.norm(x)
        }
    }
}
