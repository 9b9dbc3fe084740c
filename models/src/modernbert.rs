//! ModernBERT: Warner et al., "Smarter, Better, Faster, Longer" (2024). Field names follow the Hugging Face
//! checkpoint (`modeling_modernbert.py`). Most layers see a window, and have another rotary embedding.

use std::sync::Arc;

use dsl::nn::{Attend, Position, attend, gelu};
use dsl::{EntryPoint, F32, Float, Tensor, TraceError, Traced, model};
use ops::ElementType;
use trace::Ignorable;

use crate::config::{ConfigError, IGNORED, Keys, read_base};
use crate::family::Family;
use crate::rope::RopeParameters;
use crate::sentence::{self, Activation, After, Head, HeadStep, KEYS, Pooling, SentenceConfig, masked, seen};
use crate::shape_check::DeclaredSize;

pub(crate) const FAMILY: Family = Family {
    about: "encoder with windows to both sides, for embeddings and scores",
    prefixes: &[("model.", "")],
    ignorable: &[Ignorable::Prefix("head."), Ignorable::Prefix("decoder.")],
    ..Family::of(
        &["ModernBertModel", "ModernBertForSequenceClassification"],
        &[],
        &["modernbert", "ModernBertForMaskedLM"],
    )
};

model! {
    /// Computes the features of all tokens of a text at once.
    pub ModernBert<T: Float>(ModernBertConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers, H = num_attention_heads, E = D / H,
            P = H + H + H, F = intermediate_size, G = F + F,
        }
        shard { H, F, V over model; B over data }

        words: Embedding[V, D] at "embeddings.tok_embeddings",
        norm: LayerNorm[D](eps = norm_eps, bias if norm_bias) at "embeddings.norm",
        layers: [Layer; L],
        final_norm: LayerNorm[D](eps = norm_eps, bias if norm_bias),
        after: After<T>,

        /// The first `count` tokens of a text are real.
        fn hidden(tokens: i32[B, S], count: i32[B]) -> T[B, S, D] {
            let length = tokens.extent(S);
            let width = self.config.windows.iter().flatten().max().copied().unwrap_or(length);
            let [all, near] = seen(length, count, width);
            let at = Position { start: count.filled(0.0), count };
            let attention = |rope: &RopeParameters, seen| {
                let rotary = Attend::rotary_of_whole(at, S, length, &rope.frequencies(self.dim(E), length));
                masked(rotary, seen)
            };
            let (global, local) = (attention(&self.config.rope, all), attention(&self.config.local_rope, near));
            let mut x = self.norm(self.words(tokens));
            for (i, layer) in self.layers.iter().enumerate() {
                let at = if self.config.windows[i].is_some() { &local } else { &global };
                x = layer.forward(x, at, i == 0);
            }
            self.final_norm(x)
        }

        fn embed(tokens: i32[B, S], count: i32[B]) -> Tensor<F32> {
            self.after.of(self.hidden(tokens, count), count)
        }
    }

    /// The norm of the embeddings takes the place of the first layer's norm.
    Layer {
        attn_norm: LayerNorm[D](eps = norm_eps, bias if norm_bias),
        qkv: Linear[D -> P, E](bias if attention_bias) at "attn.Wqkv",
        out: Linear[H, E -> D](bias if attention_bias) at "attn.Wo",
        mlp_norm: LayerNorm[D](eps = norm_eps, bias if norm_bias),
        up: Linear[D -> G](bias if mlp_bias) at "mlp.Wi",
        down: Linear[F -> D](bias if mlp_bias) at "mlp.Wo",

        fn forward(x: T[B, S, D], at: &Attend<T>, is_first: bool) -> T[B, S, D] {
            let normed = if is_first { x } else { self.attn_norm(x) };
            let [q, k, v] = self.qkv(normed).split(P, [self.dim(H); 3]).map(|part| part.rename(P, H));
            let (k, v) = (at.rope(k).rename(S, KEYS), v.rename(S, KEYS));
            let x = x + self.out(attend(at.rope(q), k, v, at));
            let [input, gate] = self.up(self.mlp_norm(x)).split(G, [self.dim(F); 2]).map(|part| part.rename(G, F));
            x + self.down(gelu(input) * gate)
        }
    }
}

/// The configuration of a ModernBERT.
#[derive(Clone, Debug, PartialEq)]
pub struct ModernBertConfig {
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
    /// The ε of norms.
    pub norm_eps: f64,
    /// Whether norms have biases.
    pub norm_bias: bool,
    /// Whether the linear layers of the attention have biases.
    pub attention_bias: bool,
    /// Whether the linear layers of the feed-forward network have biases.
    pub mlp_bias: bool,
    /// In a layer with a window w, a token sees earlier and later tokens at a distance below w.
    pub windows: Arc<[Option<usize>]>,
    /// The rotary embedding of layers without a window.
    pub rope: RopeParameters,
    /// The rotary embedding of layers with a window.
    pub local_rope: RopeParameters,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
    /// Always false: the network has no output head.
    pub tie_word_embeddings: bool,
    /// The most tokens of a text.
    pub max_position_embeddings: usize,
    /// The preparation of texts, and what follows the transformer.
    pub sentence: SentenceConfig,
}

impl dsl::Project<SentenceConfig> for ModernBertConfig {
    fn project(&self) -> SentenceConfig {
        self.sentence.clone()
    }
}

impl ModernBertConfig {
    /// For comparison with the shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        const WORDS: &str = "embeddings.tok_embeddings.weight";
        vec![
            DeclaredSize::numbers("num_hidden_layers", self.num_hidden_layers, "layers."),
            DeclaredSize::extent("vocab_size", self.vocab_size, &[(WORDS, 0)]),
            DeclaredSize::extent("hidden_size", self.hidden_size, &[(WORDS, 1)]),
            DeclaredSize::extent(
                "intermediate_size",
                self.intermediate_size,
                &[("layers.*.mlp.Wo.weight", 1)],
            ),
        ]
    }
}

/// Keys of training, of other heads, and of older files.
const UNUSED: &[&str] = &[
    "classifier_dropout",
    "cls_token_id",
    "decoder_bias",
    "deterministic_flash_attn",
    "embedding_dropout",
    "initializer_cutoff_factor",
    "layer_norm_eps",
    "mlp_dropout",
    "position_embedding_type",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
    "tie_word_embeddings",
];

pub(crate) fn read(keys: Keys, allowed: &[String]) -> Result<ModernBertConfig, ConfigError> {
    let folder = keys.folder();
    keys.one_of("hidden_activation", &["gelu"]);
    keys.one_of("classifier_activation", &["gelu"]);
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let (hidden_size, num_hidden_layers) = (count("hidden_size", 768), count("num_hidden_layers", 22));
    let positions = count("max_position_embeddings", 8192);
    let (norm_eps, norm_bias) = (keys.number_or("norm_eps", 1e-5), keys.flag("norm_bias", false));
    let theta = [("local_rope_theta", 1e4), ("global_rope_theta", 16e4)];
    let theta = theta.map(|(key, default)| keys.optional_number(key).unwrap_or(default));
    let [local_rope, rope] = RopeParameters::by_layer_type(&keys, theta, positions);
    // Each side of a token gets half of the configured window, plus 1 for the token itself.
    let window = count("local_attention", 128) / 2 + 1;
    let period = count("global_attn_every_n_layers", 3);
    let windows = keys.windows(num_hidden_layers, Some(window), |layer| layer % period != 0);
    let classifier_bias = keys.flag("classifier_bias", false);
    keys.one_of("classifier_pooling", &["cls", "mean"]);
    let is_mean = keys.optional_text("classifier_pooling").as_deref() == Some("mean");
    let pooling = if is_mean { Pooling::Mean } else { Pooling::Cls };
    let head = Head::read(&keys, pooling, false, || {
        let (path, activation) = ("head.dense".into(), Activation::Gelu);
        vec![
            HeadStep::Linear { path, outputs: hidden_size, bias: classifier_bias, activation },
            HeadStep::LayerNorm { path: "head.norm".into(), epsilon: norm_eps, bias: norm_bias },
            HeadStep::linear("classifier", 1, true),
        ]
    });
    let num_attention_heads = count("num_attention_heads", 12);
    for rope in [&local_rope, &rope] {
        rope.check(&keys, hidden_size / num_attention_heads);
    }
    let (vocab_size, intermediate_size) = (count("vocab_size", 50_368), count("intermediate_size", 1152));
    let (attention_bias, mlp_bias) = (keys.flag("attention_bias", false), keys.flag("mlp_bias", false));
    let element = keys.element_type();
    keys.ignore(UNUSED);
    read_base(&keys);
    keys.finish(IGNORED, allowed)?;
    let sentence = SentenceConfig::of(&folder, head, hidden_size, positions, allowed)?;
    Ok(ModernBertConfig {
        vocab_size,
        hidden_size,
        num_hidden_layers,
        num_attention_heads,
        intermediate_size,
        norm_eps,
        norm_bias,
        attention_bias,
        mlp_bias,
        windows,
        rope,
        local_rope,
        element,
        tie_word_embeddings: false,
        max_position_embeddings: sentence.max_tokens,
        sentence,
    })
}

impl<T: Float> ModernBert<T> {
    pub(crate) fn trace(
        config: &ModernBertConfig,
        entry_points: &[EntryPoint],
    ) -> Result<Traced, TraceError> {
        sentence::trace(Self::record(config)?, &config.sentence, entry_points, |network, texts| {
            network.embed(texts.tokens, texts.count)
        })
    }
}
