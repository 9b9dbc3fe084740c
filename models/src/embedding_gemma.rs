//! EmbeddingGemma: "EmbeddingGemma: Powerful and Lightweight Text Representations" (2025), §2. Field names
//! follow the names in the Hugging Face checkpoint. The transformer is a Gemma 3 network with bidirectional
//! attention. The modules after the transformer compute the embedding of a text: the mean over the tokens,
//! two linear layers and a normalization (`modules.json` of sentence-transformers).

use dsl::nn::{Attend, Position};
use dsl::{Bool, EntryPoint, Float, Tensor, TraceError, Traced, model};
use trace::Ignorable;

use crate::config::{ConfigError, IGNORED, Keys, read_base};
use crate::decoder::LlamaConfig;
use crate::family::Family;
use crate::gemma::{self, GemmaConfig};
use crate::gemma3;
use crate::rope::RopeParameters;
use crate::sentence::{self, After, KEYS, SentenceConfig, masked, no_past, seen};

pub(crate) const FAMILY: Family = Family {
    about: "EmbeddingGemma, which computes embeddings and needs the files of sentence-transformers",
    // A causal Gemma 3 network without an output head has the same class name. This key
    // distinguishes the two networks.
    is: |keys| keys.flag("use_bidirectional_attention", false),
    // Checkpoints of language models have this prefix, and also a head.
    prefixes: &[("model.", "")],
    ignorable: &[Ignorable::Prefix("lm_head.")],
    ..Family::of(&["Gemma3TextModel"], &[], &[])
};

model! {
    /// Computes an embedding of length 1 for each text. The first `count` tokens are real, the others
    /// padding.
    pub EmbeddingGemma<T: Float>(EmbeddingGemmaConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
            O = features,
        }
        shard { K, F, V over model; B over data }

        embed_tokens: Embedding[V, D],
        layers: [gemma::Layer<T>; L],
        norm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        after: After<T>,

        /// Computes the hidden states after the last layer.
        fn hidden(tokens: i32[B, S], count: i32[B]) -> T[B, S, D] {
            let length = tokens.extent(S);
            let width = self.config.windows.iter().flatten().max().copied().unwrap_or(length);
            let [all, near] = seen(length, count, width);

            let at = Position { start: count.filled(0.0), count };
            let attention = |rope: &RopeParameters, seen: Tensor<Bool>| {
                let rotary = Attend::rotary_of_whole(at, S, length, &rope.frequencies(self.dim(E), length));
                masked(rotary.scaled(self.config.query_pre_attn_scalar.powf(-0.5)), seen)
            };
            let global = attention(&self.config.rope, all);
            let local = attention(self.config.local_rope.as_ref().unwrap_or(&self.config.rope), near);

            let past = no_past::<T>([(B, tokens.extent(B)), (K, self.dim(K)), (KEYS, length), (E, self.dim(E))]);
            let mut x = self.embed_tokens(tokens) * Tensor::scalar((self.dim(D) as f64).sqrt());
            for (i, layer) in self.layers.iter().enumerate() {
                let at = if self.config.window(i).is_some() { &local } else { &global };
                x = layer.forward(x, at, &mut past.clone());
            }
            self.norm(x)
        }

        /// Computes the embeddings of the texts.
        fn embed(tokens: i32[B, S], count: i32[B]) -> f32[B, O] {
            self.after.of(self.hidden(tokens, count), count)
        }
    }
}

/// Read from several files in the model's folder.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingGemmaConfig {
    /// In a layer with a window w, a token sees earlier and later tokens at a distance below w.
    pub tower: GemmaConfig,
    /// The number of features of an embedding.
    pub features: usize,
    /// The settings for the preparation of texts: the prompts and the maximum length.
    pub sentence: SentenceConfig,
}

descends!(EmbeddingGemmaConfig from tower: GemmaConfig, through tower.llama: LlamaConfig);

impl dsl::Project<SentenceConfig> for EmbeddingGemmaConfig {
    fn project(&self) -> SentenceConfig {
        self.sentence.clone()
    }
}

pub(crate) fn read(keys: Keys, allowed: &[String]) -> Result<EmbeddingGemmaConfig, ConfigError> {
    let folder = keys.folder();
    let keys = keys.without("use_bidirectional_attention");
    let mut tower = gemma3::read(&keys).gemma;
    read_base(&keys);
    keys.finish(IGNORED, allowed)?;
    // Each side of a token gets half of the configured window, plus 1 for the token itself.
    let windows = tower.windows.iter().map(|window| window.map(|window| window / 2 + 1));
    tower.windows = windows.collect();
    tower.tie_word_embeddings = false;
    let positions = tower.max_position_embeddings;
    let sentence = SentenceConfig::read(&folder, tower.hidden_size, positions, allowed)?;
    tower.max_position_embeddings = sentence.max_tokens;
    Ok(EmbeddingGemmaConfig { tower, features: sentence.outputs(), sentence })
}

impl<T: Float> EmbeddingGemma<T> {
    /// Each computes the embeddings of B texts of up to S tokens: `tokens` (`i32[B,S]`) and `count`
    /// (`i32[B]`) to `embedding`.
    pub(crate) fn trace(
        config: &EmbeddingGemmaConfig,
        entry_points: &[EntryPoint],
    ) -> Result<Traced, TraceError> {
        sentence::trace(Self::record(config)?, &config.sentence, entry_points, |gemma, texts| {
            gemma.embed(texts.tokens, texts.count)
        })
    }
}
