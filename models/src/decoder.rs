//! What decoders have in common: embedding, layers, a norm and a head. A family brings its layers.

use std::ops::Deref;
use std::sync::Arc;

use dsl::nn::{Attend, Cache, Kv, Position};
use dsl::{Block, Call as _, Float, Project, Tensor, WeightStyle, model};
use ops::ElementType;

use crate::config::Keys;
use crate::rope::{RopeDefaults, RopeParameters};
use crate::shape_check::DeclaredSize;

/// A block that attends to other positions: a layer, or the attention within it.
pub trait AttentionBlock<T: Float>: Block {
    /// Features `[B, S, D]` of the next place in the network. `kv` caches the keys and values of other positions.
    fn forward(&self, x: Tensor<T>, at: &Attend<T>, kv: &mut Kv<T>) -> Tensor<T>;
}

/// A block that computes each position by itself.
pub trait FeedForward<T: Float>: Block {
    /// Features `[B, S, D]` of the next place in the network.
    fn forward(&self, x: Tensor<T>) -> Tensor<T>;
}

/// The configuration of a [`Decoder`]: Llama's keys, and how a family departs from Llama outside of its layers.
pub trait DecoderConfig: Deref<Target = LlamaConfig> + Clone + 'static {
    /// How the last norm applies its weight. Layers declare the style of their own.
    const NORM: WeightStyle = WeightStyle::Scale;

    /// The input of the first layer, made of the tokens' embeddings.
    fn embedded<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x
    }

    /// How a layer attends. `rotary` sees all positions, with the rotary embedding.
    fn attention<T: Float>(&self, layer: usize, rotary: &Attend<T>) -> Attend<T> {
        rotary.clone().windowed(self.window(layer))
    }

    /// The logits, made of the head's output.
    fn logits<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x
    }
}

/// The configuration of a network that departs from Llama in its layers alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain(LlamaConfig);

descends!(Plain from 0: LlamaConfig);

impl DecoderConfig for Plain {}

impl From<LlamaConfig> for Plain {
    fn from(config: LlamaConfig) -> Self {
        Self(config)
    }
}

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Decoder<T: Float, Y: AttentionBlock<T>, C: DecoderConfig + Project<Y::Config> = Plain>(C) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
        }
        cache { L of [K, E] within window }
        shard { K, F, V over model; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.config.logits(self.lm_head(x)).to()
        }
    }

    /// Embedding, layers, final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        layers: [Y; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.config.embedded(self.embed_tokens(tokens));
            for (i, layer) in self.layers.iter().enumerate() {
                x = layer.forward(x, &self.config.attention(i, &at), cache.state(i));
            }
            self.norm.clone().style(C::NORM).call(x)
        }
    }
}

/// The keys of Llama and of its descendants. Most descendants have no others.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Token ids.
    pub vocab_size: usize,
    /// Features of the residual stream.
    pub hidden_size: usize,
    /// Features of the feed-forward network.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key-value heads.
    pub num_key_value_heads: usize,
    /// Features of a head; `hidden_size / num_attention_heads` if not said.
    pub head_dim: Option<usize>,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// Rotary embedding.
    pub rope: RopeParameters,
    /// How many positions each layer sees, if not all; all see all if the list is empty. Shared: each layer has a configuration.
    pub windows: Arc<[Option<usize>]>,
    /// Whether `lm_head` is the embedding table.
    pub tie_word_embeddings: bool,
    /// Whether the attention's linear layers have biases.
    pub attention_bias: bool,
    /// Whether the feed-forward network's linear layers have biases.
    pub mlp_bias: bool,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// The element type the checkpoint was made for.
    pub element: Option<ElementType>,
}

/// What a family that descends from Llama takes where `config.json` is silent, and which of its keys have other values.
pub(crate) struct Defaults {
    /// Functions of the feed-forward network that the family has; none if there is no such key.
    pub hidden_act: &'static [&'static str],
    /// `vocab_size`, `hidden_size`, `intermediate_size`, `num_hidden_layers` and `num_attention_heads`; without, they are required.
    pub sizes: Option<[usize; 5]>,
    /// `None`: as many as query heads.
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    /// The key of what is added in norms.
    pub norm_key: &'static str,
    pub rms_norm_eps: f64,
    pub tie_word_embeddings: bool,
    pub rope: RopeDefaults,
}

impl Defaults {
    /// Those of Llama, for sequences of this length.
    pub fn new(max_position_embeddings: usize) -> Self {
        Self::of(RopeDefaults::new(max_position_embeddings))
    }

    /// Those of Llama, with another rotary embedding.
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
    /// Reads what all families that descend from Llama say: all but biases and what differs between layers.
    pub(crate) fn shared(keys: &Keys, defaults: Defaults) -> Self {
        Self::with_rope(keys, defaults, RopeParameters::read)
    }

    /// The same with a rotary embedding that is read in another way.
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
        let config = Self {
            vocab_size: size(0, "vocab_size"),
            hidden_size: size(1, "hidden_size"),
            intermediate_size: size(2, "intermediate_size"),
            num_hidden_layers: size(3, "num_hidden_layers"),
            num_attention_heads,
            num_key_value_heads: num_key_value_heads.unwrap_or(num_attention_heads),
            head_dim: keys.optional_count("head_dim").or(defaults.head_dim),
            rms_norm_eps: keys.number_or(defaults.norm_key, defaults.rms_norm_eps),
            rope: read(keys, &rope),
            windows: Arc::from([]),
            tie_word_embeddings: keys.flag("tie_word_embeddings", defaults.tie_word_embeddings),
            attention_bias: false,
            mlp_bias: false,
            max_position_embeddings,
            element: keys.element_type(),
        };
        let features = config.head_dim.unwrap_or(config.hidden_size / config.num_attention_heads);
        config.rope.check(keys, features);
        config
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// What a checkpoint's header shows of these sizes.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let head_dim = self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads);
        vec![
            DeclaredSize::numbers("num_hidden_layers", self.num_hidden_layers, "model.layers."),
            DeclaredSize::extent("vocab_size", self.vocab_size, &[("model.embed_tokens.weight", 0)]),
            DeclaredSize::extent("hidden_size", self.hidden_size, &[("model.embed_tokens.weight", 1)]),
            DeclaredSize::extent(
                "intermediate_size",
                self.intermediate_size,
                &[
                    ("model.layers.*.mlp.down_proj.weight", 1),
                    ("model.layers.*.feed_forward.w2.weight", 1),
                    ("model.layers.*.block_sparse_moe.experts.*.w2.weight", 1),
                ],
            ),
            DeclaredSize::extent(
                "num_attention_heads × head_dim",
                self.num_attention_heads.saturating_mul(head_dim),
                &[
                    ("model.layers.*.self_attn.o_proj.weight", 1),
                    ("model.layers.*.self_attn.out_proj.weight", 1),
                ],
            ),
            // The rows of one tensor are those of queries, keys and values, in a Phi-3.
            DeclaredSize::extent(
                "num_key_value_heads × head_dim",
                self.num_key_value_heads.saturating_mul(head_dim),
                &[("model.layers.*.self_attn.k_proj.weight", 0)],
            ),
        ]
    }
}
