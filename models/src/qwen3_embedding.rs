//! Qwen3 Embedding: Zhang et al., "Qwen3 Embedding: Advancing Text Embedding and Reranking" (2025). The causal
//! network of Qwen3 without an output head, for a whole text in one call.

use dsl::nn::{Attend, Position};
use dsl::{EntryPoint, F32, Float, Tensor, TraceError, Traced, model};
use files::is_there;
use trace::Ignorable;

use crate::config::{ConfigError, IGNORED, Keys, read_base};
use crate::decoder::{LlamaConfig, Plain};
use crate::family::{BASE, Family};
use crate::llama::Layer;
use crate::qwen3::{self, Attention};
use crate::sentence::{self, After, KEYS, SentenceConfig, no_past};

pub(crate) const FAMILY: Family = Family {
    about: "Qwen3 for embeddings, in a folder of sentence-transformers",
    is: |keys| is_there(&keys.folder().path().join(sentence::MODULES)),
    prefixes: BASE,
    ignorable: &[Ignorable::Suffix(".rotary_emb.inv_freq"), Ignorable::Prefix("lm_head.")],
    ..Family::of(&["Qwen3Model"], &[], &["qwen3", "Qwen3ForCausalLM"])
};

model! {
    /// Computes the features of all tokens of a text at once.
    pub Qwen3Embedding<T: Float>(Qwen3EmbeddingConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
        }
        shard { K, V over model; B over data }

        embed_tokens: Embedding[V, D] at "model.embed_tokens",
        layers: [Layer<T, Attention<T>>; L] at "model.layers",
        norm: RmsNorm[D](eps = rms_norm_eps) at "model.norm",
        after: After<T>,

        /// The first `count` tokens of a text are real.
        fn hidden(tokens: i32[B, S], count: i32[B]) -> T[B, S, D] {
            let length = tokens.extent(S);
            let at = Position { start: count.filled(0.0), count };
            let rope = self.config.rope.frequencies(self.dim(E), length);
            let rotary = Attend::rotary_of_whole(at, S, length, &rope);
            let past = no_past::<T>([(B, tokens.extent(B)), (K, self.dim(K)), (KEYS, length), (E, self.dim(E))]);
            let mut x = self.embed_tokens(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                let at = rotary.clone().windowed(self.config.window(i));
                x = layer.forward(x, &at, &mut past.clone());
            }
            self.norm(x)
        }

        fn embed(tokens: i32[B, S], count: i32[B]) -> Tensor<F32> {
            self.after.of(self.hidden(tokens, count), count)
        }
    }
}

/// The configuration of a Qwen3 that computes embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen3EmbeddingConfig {
    /// The configuration of the network.
    pub llama: LlamaConfig,
    /// The preparation of texts, and what follows the transformer.
    pub sentence: SentenceConfig,
}

descends!(Qwen3EmbeddingConfig from llama: LlamaConfig);

impl dsl::Project<Plain> for Qwen3EmbeddingConfig {
    fn project(&self) -> Plain {
        self.llama.clone().into()
    }
}

impl dsl::Project<SentenceConfig> for Qwen3EmbeddingConfig {
    fn project(&self) -> SentenceConfig {
        self.sentence.clone()
    }
}

pub(crate) fn read(keys: Keys, allowed: &[String]) -> Result<Qwen3EmbeddingConfig, ConfigError> {
    let folder = keys.folder();
    let llama = qwen3::read(&keys);
    read_base(&keys);
    keys.finish(IGNORED, allowed)?;
    let positions = llama.max_position_embeddings;
    let sentence = SentenceConfig::read(&folder, llama.hidden_size, positions, allowed)?;
    let max_position_embeddings = sentence.max_tokens;
    let llama = LlamaConfig { tie_word_embeddings: false, max_position_embeddings, ..llama };
    Ok(Qwen3EmbeddingConfig { llama, sentence })
}

impl<T: Float> Qwen3Embedding<T> {
    pub(crate) fn trace(
        config: &Qwen3EmbeddingConfig,
        entry_points: &[EntryPoint],
    ) -> Result<Traced, TraceError> {
        sentence::trace(Self::record(config)?, &config.sentence, entry_points, |network, texts| {
            network.embed(texts.tokens, texts.count)
        })
    }
}
