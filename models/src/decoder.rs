//! [`Decoder`] is a language model that consists of an embedding, layers, a norm and an output
//! head. Each model family declares its own layers.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

use dsl::nn::{Attend, Cache, Kv, Mask, Position};
use dsl::{
    Axis, Block, BuildError, Call as _, Float, LayerNorm, Project, RmsNorm, Scope, Tensor, WeightStyle, model,
};
use ops::ElementType;

use crate::config::{IGNORED, Keys, read_base};
use crate::rope::{RopeDefaults, RopeParameters};
use crate::shape_check::DeclaredSize;

/// A block that attends to other positions, such as a layer or the attention of a layer.
pub trait AttentionBlock<T: Float>: Block {
    /// Features `[B, S, D]` to features `[B, S, D]`. `kv` has the keys and values of other positions.
    fn forward(&self, x: Tensor<T>, at: &Attend<T>, kv: &mut Kv<T>) -> Tensor<T>;
}

/// A block that processes each position independently.
pub trait FeedForward<T: Float>: Block {
    /// Computes new features `[B, S, D]` from the features `x` `[B, S, D]`.
    fn forward(&self, x: Tensor<T>) -> Tensor<T>;
}

/// Llama's keys, and functions that change a Llama network outside of its layers.
pub trait DecoderConfig: Deref<Target = LlamaConfig> + Clone + 'static {
    /// The kind of norm after the last layer. Layers declare their own norms.
    const NORM: Norm = Norm::Rms(WeightStyle::Scale);

    /// The input of the first layer, by default the embeddings.
    fn embedded<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x
    }

    /// `rotary` allows all earlier positions. By default, this adds the layer's window.
    fn attention<T: Float>(&self, layer: usize, rotary: &Attend<T>) -> Attend<T> {
        rotary.clone().windowed(self.window(layer))
    }

    /// The keys that positions with features see, such as those of an image. By default, these are their own
    /// key and earlier ones.
    fn features_mask<T: Float>(&self, _at: Position) -> Mask<T> {
        Mask::causal()
    }

    /// By default, the output of the head.
    fn logits<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x
    }
}

/// The configuration of a network that differs from Llama only in the layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain(LlamaConfig);

descends!(Plain from 0: LlamaConfig);

impl DecoderConfig for Plain {}

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub Decoder<T: Float, Y: AttentionBlock<T>, C: DecoderConfig + Project<Y::Config> = Plain>(C) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
        }
        cache { L of [K, E] within window }
        shard { K, F, V over model; X over expert; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn forward_features(x: T[B, S, D], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model.layered(x, at, self.config.features_mask(at), cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.config.logits(self.lm_head(x)).to()
        }
    }

    /// The network without the output head: the embedding, the layers and the final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        layers: [Y; L],
        norm: LastNorm<T, C>,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.layered(self.config.embedded(self.embed_tokens(tokens)), at, Mask::causal(), cache)
        }

        /// From the input of the first layer, such as the features of an image.
        fn layered(x: T[B, S, D], at: Position, mask: Mask<T>, cache: &mut Cache<T>) -> T[B, S, D] {
            let rotary = |rope: &RopeParameters| {
                let rope = rope.frequencies(self.dim(E), cache.context);
                Attend { mask: mask.clone(), ..Attend::rotary(at, S, x.extent(S), &rope, cache.context) }
            };
            let (global, local) = (rotary(&self.config.rope), self.config.local_rope.as_ref().map(rotary));
            let mut x = x;
            for (i, layer) in self.layers.iter().enumerate() {
                let rotary = local.as_ref().filter(|_| self.config.window(i).is_some()).unwrap_or(&global);
                x = layer.forward(x, &self.config.attention(i, rotary), cache.state(i));
            }
            self.norm.forward(x)
        }
    }
}

impl From<LlamaConfig> for Plain {
    fn from(config: LlamaConfig) -> Self {
        Self(config)
    }
}

/// The kind of norm after the last layer.
#[derive(Clone, Copy, Debug)]
pub enum Norm {
    /// An [`RmsNorm`] that applies its weight in the given style.
    Rms(WeightStyle),
    /// A [`LayerNorm`] with or without a bias.
    Layer {
        /// Whether the norm has a bias.
        bias: bool,
    },
}

/// The norm after the last layer. [`DecoderConfig::NORM`] selects the kind of norm.
#[derive(Clone, Debug)]
pub struct LastNorm<T: Float, C> {
    norm: Built<T>,
    features: dsl::Dim,
    of: PhantomData<C>,
}

#[derive(Clone, Debug)]
enum Built<T: Float> {
    Rms(RmsNorm<T>),
    Layer(LayerNorm<T>),
}

impl<T: Float, C: DecoderConfig> Block for LastNorm<T, C> {
    type Config = C;

    fn build(scope: Scope, config: &Rc<C>) -> Result<Self, BuildError> {
        let (features, eps) = (Axis("D").of(config.hidden_size), config.rms_norm_eps);
        let norm = match C::NORM {
            Norm::Rms(style) => Built::Rms(RmsNorm::build(scope, &[features]).eps(eps).style(style)),
            Norm::Layer { bias } => Built::Layer(LayerNorm::build(scope, &[features]).eps(eps).bias(bias)),
        };
        Ok(Self { norm, features, of: PhantomData })
    }

    fn declared_axes(&self) -> Vec<dsl::Dim> {
        vec![self.features]
    }
}

impl<T: Float, C: DecoderConfig> LastNorm<T, C> {
    #[track_caller]
    fn forward(&self, x: Tensor<T>) -> Tensor<T> {
        match &self.norm {
            Built::Rms(norm) => norm.call(x),
            Built::Layer(norm) => norm.call(x),
        }
    }
}

/// Reads a text network, from `text_config` if there is a vision tower, with the keys `beside` next to it.
pub(crate) fn read_text_tower<C: DerefMut<Target = LlamaConfig>>(
    keys: &Keys,
    is_tied: bool,
    beside: &[&'static str],
    read: impl FnOnce(&Keys) -> C,
) -> C {
    let Some(text) = keys.object("text_config") else { return read(keys) };
    let mut config = read(&text);
    config.element = config.element.or(keys.element_type());
    // The key outside `text_config` has priority, because `lm_head` is a part of the whole model.
    config.tie_word_embeddings = keys.flag("tie_word_embeddings", is_tied);
    read_base(&text);
    keys.close_ignoring(text, IGNORED);
    keys.ignore(beside);
    config
}

/// Most families that are derived from Llama have no other keys.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// The number of token ids in the vocabulary.
    pub vocab_size: usize,
    /// The number of features of the residual stream.
    pub hidden_size: usize,
    /// The number of features between the linear layers of the feed-forward network.
    pub intermediate_size: usize,
    /// The number of layers of the network.
    pub num_hidden_layers: usize,
    /// The number of query heads.
    pub num_attention_heads: usize,
    /// The number of key-value heads.
    pub num_key_value_heads: usize,
    /// The number of features of a head. `None` selects `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// The ε that norms add to the mean square.
    pub rms_norm_eps: f64,
    /// The parameters of the rotary embedding.
    pub rope: RopeParameters,
    /// For layers with a window, if they do not use `rope`.
    pub local_rope: Option<RopeParameters>,
    /// The window of each layer, `None` for all positions. An empty list has no windows.
    pub windows: Arc<[Option<usize>]>,
    /// Whether the output head shares its weight with the embedding table.
    pub tie_word_embeddings: bool,
    /// Whether the linear layers of queries, keys and values have biases.
    pub attention_bias: bool,
    /// Whether the linear layer after attention has a bias.
    pub attention_out_bias: bool,
    /// Whether the feed-forward network's linear layers have biases.
    pub mlp_bias: bool,
    /// In a sequence. With a dynamic rotary embedding, the configured number times its factor.
    pub max_position_embeddings: usize,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
}

/// A family's defaults for missing keys, and its names and values of some keys.
pub(crate) struct Defaults {
    /// Accepted values; empty for a family without the key.
    pub hidden_act: &'static [&'static str],
    /// `vocab_size`, `hidden_size`, `intermediate_size`, `num_hidden_layers`, `num_attention_heads`. Required
    /// if `None`.
    pub sizes: Option<[usize; 5]>,
    /// The default number of key-value heads. `None` selects the number of query heads.
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    /// The key of the ε that norms add to the mean square.
    pub norm_key: &'static str,
    pub rms_norm_eps: f64,
    pub tie_word_embeddings: bool,
    pub rope: RopeDefaults,
}

impl Defaults {
    /// The defaults of Llama for sequences of at most `max_position_embeddings` tokens.
    pub fn new(max_position_embeddings: usize) -> Self {
        Self::of(RopeDefaults::new(max_position_embeddings))
    }

    /// Returns Llama's defaults, but with the given defaults of the rotary embedding.
    pub fn of(rope: RopeDefaults) -> Self {
        Self {
            hidden_act: &["silu"],
            sizes: None,
            num_key_value_heads: None,
            head_dim: None,
            norm_key: "rms_norm_eps",
            rms_norm_eps: 1e-6,
            tie_word_embeddings: false,
            rope,
        }
    }
}

impl LlamaConfig {
    /// The caller reads the keys about biases and about differences between layers.
    pub(crate) fn shared(keys: &Keys, defaults: Defaults) -> Self {
        Self::with_rope(keys, defaults, RopeParameters::read)
    }

    /// Like [`shared`](Self::shared), but `read` reads the rotary embedding.
    pub(crate) fn with_rope(
        keys: &Keys,
        defaults: Defaults,
        read: impl FnOnce(&Keys, &RopeDefaults) -> RopeParameters,
    ) -> Self {
        if !defaults.hidden_act.is_empty() {
            keys.one_of("hidden_act", defaults.hidden_act);
        }
        let size = |index: usize, key| match defaults.sizes {
            Some(sizes) => keys.optional_count(key).unwrap_or(sizes[index]),
            None => keys.count(key),
        };
        let num_attention_heads = size(4, "num_attention_heads");
        let num_key_value_heads = keys.nullable_count("num_key_value_heads", defaults.num_key_value_heads);
        let max_position_embeddings = keys.optional_count("max_position_embeddings");
        let max_position_embeddings =
            max_position_embeddings.unwrap_or(defaults.rope.max_position_embeddings);
        let rope = RopeDefaults { max_position_embeddings, ..defaults.rope };
        let rope = read(keys, &rope);
        let config = Self {
            vocab_size: size(0, "vocab_size"),
            hidden_size: size(1, "hidden_size"),
            intermediate_size: size(2, "intermediate_size"),
            num_hidden_layers: size(3, "num_hidden_layers"),
            num_attention_heads,
            num_key_value_heads: num_key_value_heads.unwrap_or(num_attention_heads),
            head_dim: keys.optional_count("head_dim").or(defaults.head_dim),
            rms_norm_eps: keys.number_or(defaults.norm_key, defaults.rms_norm_eps),
            max_position_embeddings: rope.longest(max_position_embeddings),
            rope,
            local_rope: None,
            windows: Arc::from([]),
            tie_word_embeddings: keys.flag("tie_word_embeddings", defaults.tie_word_embeddings),
            attention_bias: false,
            attention_out_bias: false,
            mlp_bias: false,
            element: keys.element_type(),
        };
        let features = config.head_dim.unwrap_or(config.hidden_size / config.num_attention_heads);
        config.rope.check(keys, features);
        config
    }

    /// The attention window of a layer, or `None` if the layer sees all positions.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let head_dim = self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads);
        vec![
            DeclaredSize::numbers("num_hidden_layers", self.num_hidden_layers, "model.layers."),
            DeclaredSize::extent(
                "vocab_size",
                self.vocab_size,
                &[("model.embed_tokens.weight", 0), ("model.embeddings.weight", 0)],
            ),
            DeclaredSize::extent(
                "hidden_size",
                self.hidden_size,
                &[("model.embed_tokens.weight", 1), ("model.embeddings.weight", 1)],
            ),
            DeclaredSize::extent(
                "intermediate_size",
                self.intermediate_size,
                &[
                    ("model.layers.*.mlp.down_proj.weight", 1),
                    ("model.layers.*.mlp.c_proj.weight", 1),
                    ("model.layers.*.feed_forward.w2.weight", 1),
                    ("model.layers.*.mixer.down_proj.weight", 1),
                ],
            ),
            DeclaredSize::extent(
                "num_attention_heads × head_dim",
                self.num_attention_heads.saturating_mul(head_dim),
                &[
                    ("model.layers.*.self_attn.o_proj.weight", 1),
                    ("model.layers.*.self_attn.out_proj.weight", 1),
                    ("model.layers.*.mixer.o_proj.weight", 1),
                ],
            ),
            // A Phi-3 checkpoint stores the query, key and value matrices in one tensor, so this
            // tensor is missing there.
            DeclaredSize::extent(
                "num_key_value_heads × head_dim",
                self.num_key_value_heads.saturating_mul(head_dim),
                &[("model.layers.*.self_attn.k_proj.weight", 0), ("model.layers.*.mixer.k_proj.weight", 0)],
            ),
        ]
    }
}
