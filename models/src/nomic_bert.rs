//! Nomic's BERT: Nussbaum et al., "Nomic Embed: Training a Reproducible Long Context Text Embedder" (2024).
//! A BERT with a rotary embedding and a SwiGLU. Field names follow the published checkpoint.

use dsl::nn::{Attend, Position, attend, silu};
use dsl::{EntryPoint, F32, Float, I32, Tensor, TraceError, Traced, model};
use ops::ElementType;
use trace::Ignorable;

use crate::config::{ConfigError, IGNORED, Keys, read_base};
use crate::family::Family;
use crate::rope::{RopeDefaults, RopeParameters};
use crate::sentence::{self, After, KEYS, SentenceConfig, masked, seen};
use crate::shape_check::DeclaredSize;

pub(crate) const FAMILY: Family = Family {
    about: "BERT with a rotary embedding and a SwiGLU, for embeddings",
    prefixes: &[("nomic_bert.", ""), ("bert.", "")],
    ignorable: &[
        Ignorable::Prefix("pooler."),
        Ignorable::Prefix("cls."),
        Ignorable::Suffix("rotary_emb.inv_freq"),
    ],
    ..Family::of(&["NomicBertModel"], &[], &["nomic_bert", "NomicBertForMaskedLM"])
};

model! {
    /// Computes the features of all tokens of a text at once.
    pub NomicBert<T: Float>(NomicBertConfig) {
        dims {
            V = vocab_size, Y = type_vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, E = D / H, P = H + H + H, F = intermediate_size,
        }
        shard { H, F, V over model; B over data }

        words: Embedding[V, D] at "embeddings.word_embeddings",
        types: Embedding[Y, D] at "embeddings.token_type_embeddings",
        norm: LayerNorm[D](eps = layer_norm_eps) at "emb_ln",
        layers: [Layer; L] at "encoder.layers",
        after: After<T>,

        /// The first `count` tokens of a text are real. All have the type 0.
        fn hidden(tokens: i32[B, S], count: i32[B]) -> T[B, S, D] {
            let length = tokens.extent(S);
            let [all, _] = seen(length, count, length);
            let at = Position { start: count.filled(0.0), count };
            let rope = self.config.rope.frequencies(self.dim(E), length);
            let at = masked(Attend::rotary_of_whole(at, S, length, &rope), all);
            let x = self.words(tokens) + self.types(Tensor::<I32>::scalar(0.0));
            self.layers.iter().fold(self.norm(x), |x, layer| layer.forward(x, &at))
        }

        fn embed(tokens: i32[B, S], count: i32[B]) -> Tensor<F32> {
            self.after.of(self.hidden(tokens, count), count)
        }
    }

    Layer {
        qkv: Linear[D -> P, E] at "attn.Wqkv",
        out: Linear[H, E -> D] at "attn.out_proj",
        out_norm: LayerNorm[D](eps = layer_norm_eps) at "norm1",
        up: Linear[D -> F] at "mlp.fc11",
        gate: Linear[D -> F] at "mlp.fc12",
        down: Linear[F -> D] at "mlp.fc2",
        down_norm: LayerNorm[D](eps = layer_norm_eps) at "norm2",

        fn forward(x: T[B, S, D], at: &Attend<T>) -> T[B, S, D] {
            let [q, k, v] = self.qkv(x).split(P, [self.dim(H); 3]).map(|part| part.rename(P, H));
            let (k, v) = (at.rope(k).rename(S, KEYS), v.rename(S, KEYS));
            let x = self.out_norm(x + self.out(attend(at.rope(q), k, v, at)));
            self.down_norm(x + self.down(self.up(x) * silu(self.gate(x))))
        }
    }
}

/// The configuration of one of Nomic's BERTs.
#[derive(Clone, Debug, PartialEq)]
pub struct NomicBertConfig {
    /// The number of token ids in the vocabulary.
    pub vocab_size: usize,
    /// The number of features of a token.
    pub hidden_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The number of features between the linear layers of the feed-forward network.
    pub intermediate_size: usize,
    /// The number of token types.
    pub type_vocab_size: usize,
    /// The ε of norms.
    pub layer_norm_eps: f64,
    /// The parameters of the rotary embedding.
    pub rope: RopeParameters,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
    /// Always false: the network has no output head.
    pub tie_word_embeddings: bool,
    /// The most tokens of a text.
    pub max_position_embeddings: usize,
    /// The preparation of texts, and what follows the transformer.
    pub sentence: SentenceConfig,
}

impl dsl::Project<SentenceConfig> for NomicBertConfig {
    fn project(&self) -> SentenceConfig {
        self.sentence.clone()
    }
}

impl NomicBertConfig {
    /// For comparison with the shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        const WORDS: &str = "embeddings.word_embeddings.weight";
        vec![
            DeclaredSize::numbers("num_hidden_layers", self.num_hidden_layers, "encoder.layers."),
            DeclaredSize::extent("vocab_size", self.vocab_size, &[(WORDS, 0)]),
            DeclaredSize::extent("hidden_size", self.hidden_size, &[(WORDS, 1)]),
            DeclaredSize::extent(
                "intermediate_size",
                self.intermediate_size,
                &[("encoder.layers.*.mlp.fc2.weight", 1)],
            ),
        ]
    }
}

/// The keys of transformers. The defaults are those of `NomicBertConfig`.
pub(crate) fn read(keys: Keys, allowed: &[String]) -> Result<NomicBertConfig, ConfigError> {
    let folder = keys.folder();
    keys.one_of("hidden_act", &["silu"]);
    let (hidden_size, num_attention_heads) = (keys.count("hidden_size"), keys.count("num_attention_heads"));
    let features = hidden_size / num_attention_heads;
    if let Some(found) = keys.optional_count("head_dim").filter(|&found| found != features) {
        keys.refuse("head_dim", found, format!("{features}, `hidden_size` / `num_attention_heads`"));
    }
    let positions = keys.optional_count("max_position_embeddings").unwrap_or(2048);
    let rope = RopeParameters::read(&keys, &RopeDefaults { theta: 1e3, ..RopeDefaults::new(positions) });
    rope.check(&keys, features);
    let (vocab_size, num_hidden_layers) = (keys.count("vocab_size"), keys.count("num_hidden_layers"));
    let intermediate_size = keys.count("intermediate_size");
    let type_vocab_size = keys.optional_count("type_vocab_size").unwrap_or(2);
    let (layer_norm_eps, element) = (keys.number_or("layer_norm_eps", 1e-12), keys.element_type());
    keys.ignore(&[
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "hidden_dropout_prob",
        "tie_word_embeddings",
    ]);
    read_base(&keys);
    keys.finish(IGNORED, allowed)?;
    let sentence = SentenceConfig::read(&folder, hidden_size, positions, allowed)?;
    Ok(NomicBertConfig {
        vocab_size,
        hidden_size,
        num_hidden_layers,
        num_attention_heads,
        intermediate_size,
        type_vocab_size,
        layer_norm_eps,
        rope,
        element,
        tie_word_embeddings: false,
        max_position_embeddings: sentence.max_tokens,
        sentence,
    })
}

impl<T: Float> NomicBert<T> {
    pub(crate) fn trace(config: &NomicBertConfig, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        sentence::trace(Self::record(config)?, &config.sentence, entry_points, |network, texts| {
            network.embed(texts.tokens, texts.count)
        })
    }
}
