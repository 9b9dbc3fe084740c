//! BERT: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019). Field names follow the
//! Hugging Face checkpoint (`modeling_bert.py`). Norms follow the sums with the residual stream.

use dsl::nn::{Attend, Mask, attend, gelu};
use dsl::{EntryPoint, F32, Float, I32, Tensor, TraceError, Traced, model};
use ops::ElementType;
use trace::Ignorable;

use crate::config::{ConfigError, IGNORED, Keys, read_base};
use crate::family::Family;
use crate::sentence::{self, After, Head, HeadStep, KEYS, Pooling, SentenceConfig};
use crate::shape_check::DeclaredSize;

pub(crate) const FAMILY: Family = Family {
    about: "encoder of MiniLM, bge and e5, for embeddings and scores",
    prefixes: &[("bert.", "")],
    ignorable: &[
        Ignorable::Prefix("pooler."),
        Ignorable::Prefix("cls."),
        Ignorable::Suffix("embeddings.position_ids"),
    ],
    ..Family::of(&["BertModel", "BertForSequenceClassification"], &[], &["bert", "BertForMaskedLM"])
};

model! {
    /// Computes the features of all tokens of a text at once.
    pub Bert<T: Float>(BertConfig) {
        dims {
            V = vocab_size, P = positions, Y = type_vocab_size,
            D = hidden_size, L = num_hidden_layers, F = intermediate_size, H = num_attention_heads, E = D / H,
        }
        shard { H, F, V over model; B over data }

        words: Embedding[V, D] at "embeddings.word_embeddings",
        positions: Embedding[P, D] at "embeddings.position_embeddings",
        types: Embedding[Y, D] at "embeddings.token_type_embeddings",
        norm: LayerNorm[D](eps = layer_norm_eps) at "embeddings.LayerNorm",
        layers: [Layer; L] at "encoder.layer",
        after: After<T>,

        /// The first `count` tokens of a text are real. The tokens from `first` on have the type 1.
        fn hidden(tokens: i32[B, S], first: Option<Tensor<I32>>, count: i32[B]) -> T[B, S, D] {
            let length = tokens.extent(S);
            let token = Tensor::<I32>::iota(S, length);
            let types = match first {
                Some(first) => self.types(first.broadcast(token).less_equal(token.broadcast(first)).select(1.0, 0.0)),
                None => self.types(token.filled(0.0)),
            };
            let at = match self.config.first_position {
                0 => token,
                first => token + first as f64,
            };
            let x = self.words(tokens) + types + self.positions(at);
            let at = Attend::bidirectional(S, Mask::counted(KEYS, length, count));
            self.layers.iter().fold(self.norm(x), |x, layer| layer.forward(x, &at))
        }

        fn embed(tokens: i32[B, S], first: Option<Tensor<I32>>, count: i32[B]) -> Tensor<F32> {
            self.after.of(self.hidden(tokens, first, count), count)
        }
    }

    Layer {
        query: Linear[D -> H, E](bias) at "attention.self.query",
        key: Linear[D -> H, E](bias) at "attention.self.key",
        value: Linear[D -> H, E](bias) at "attention.self.value",
        out: Linear[H, E -> D](bias) at "attention.output.dense",
        out_norm: LayerNorm[D](eps = layer_norm_eps) at "attention.output.LayerNorm",
        up: Linear[D -> F](bias) at "intermediate.dense",
        down: Linear[F -> D](bias) at "output.dense",
        down_norm: LayerNorm[D](eps = layer_norm_eps) at "output.LayerNorm",

        fn forward(x: T[B, S, D], at: &Attend<T>) -> T[B, S, D] {
            let (k, v) = (self.key(x).rename(S, KEYS), self.value(x).rename(S, KEYS));
            let x = self.out_norm(x + self.out(attend(self.query(x), k, v, at)));
            self.down_norm(x + self.down(gelu(self.up(x))))
        }
    }
}

/// The configuration of a BERT, and of networks that differ from it in the first position.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
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
    /// The rows of the table of positions.
    pub positions: usize,
    /// The row of a text's first token.
    pub first_position: usize,
    /// The number of token types.
    pub type_vocab_size: usize,
    /// The ε of norms.
    pub layer_norm_eps: f64,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
    /// Always false: the network has no output head.
    pub tie_word_embeddings: bool,
    /// The most tokens of a text.
    pub max_position_embeddings: usize,
    /// The preparation of texts, and what follows the transformer.
    pub sentence: SentenceConfig,
}

impl BertConfig {
    /// The first position is that behind `padding`, or 0.
    pub(crate) fn shared(
        keys: Keys,
        allowed: &[String],
        padding: impl FnOnce(&Keys) -> Option<usize>,
        head: impl FnOnce(usize) -> Vec<HeadStep>,
    ) -> Result<Self, ConfigError> {
        let folder = keys.folder();
        keys.one_of("hidden_act", &["gelu"]);
        keys.one_of("position_embedding_type", &["absolute"]);
        keys.always("is_decoder", false);
        let (positions, hidden_size) = (keys.count("max_position_embeddings"), keys.count("hidden_size"));
        let first_position = padding(&keys).map_or(0, |padding| padding + 1);
        if first_position >= positions {
            keys.refuse("pad_token_id", first_position - 1, format!("less than {}", positions - 1));
        }
        let type_vocab_size = keys.optional_count("type_vocab_size").unwrap_or(2);
        let head = Head::read(&keys, Pooling::Cls, type_vocab_size > 1, || head(hidden_size));
        let (vocab_size, num_hidden_layers) = (keys.count("vocab_size"), keys.count("num_hidden_layers"));
        let (num_attention_heads, intermediate_size) =
            (keys.count("num_attention_heads"), keys.count("intermediate_size"));
        let (layer_norm_eps, element) = (keys.number_or("layer_norm_eps", 1e-12), keys.element_type());
        keys.ignore(&[
            "attention_probs_dropout_prob",
            "classifier_dropout",
            "directionality",
            "hidden_dropout_prob",
            "output_past",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
            "tie_word_embeddings",
        ]);
        read_base(&keys);
        keys.finish(IGNORED, allowed)?;
        let most = positions - first_position;
        let sentence = SentenceConfig::of(&folder, head, hidden_size, most, allowed)?;
        Ok(Self {
            vocab_size,
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            intermediate_size,
            positions,
            first_position,
            type_vocab_size,
            layer_norm_eps,
            element,
            tie_word_embeddings: false,
            max_position_embeddings: sentence.max_tokens,
            sentence,
        })
    }

    /// For comparison with the shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        const WORDS: &str = "embeddings.word_embeddings.weight";
        vec![
            DeclaredSize::numbers("num_hidden_layers", self.num_hidden_layers, "encoder.layer."),
            DeclaredSize::extent("vocab_size", self.vocab_size, &[(WORDS, 0)]),
            DeclaredSize::extent("hidden_size", self.hidden_size, &[(WORDS, 1)]),
            DeclaredSize::extent(
                "intermediate_size",
                self.intermediate_size,
                &[("encoder.layer.*.intermediate.dense.weight", 0)],
            ),
            DeclaredSize::extent(
                "max_position_embeddings",
                self.positions,
                &[("embeddings.position_embeddings.weight", 0)],
            ),
            DeclaredSize::extent(
                "type_vocab_size",
                self.type_vocab_size,
                &[("embeddings.token_type_embeddings.weight", 0)],
            ),
        ]
    }
}

impl dsl::Project<SentenceConfig> for BertConfig {
    fn project(&self) -> SentenceConfig {
        self.sentence.clone()
    }
}

pub(crate) fn read(keys: Keys, allowed: &[String]) -> Result<BertConfig, ConfigError> {
    BertConfig::shared(
        keys,
        allowed,
        |_| None,
        |features| vec![HeadStep::tanh("pooler.dense", features), HeadStep::linear("classifier", 1, true)],
    )
}

impl<T: Float> Bert<T> {
    pub(crate) fn trace(config: &BertConfig, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        sentence::trace(Self::record(config)?, &config.sentence, entry_points, |bert, texts| {
            bert.embed(texts.tokens, texts.first, texts.count)
        })
    }
}
