//! EmbeddingGemma: "EmbeddingGemma: Powerful and Lightweight Text Representations" (2025), §2. Field names
//! follow the names in the Hugging Face checkpoint. The transformer is a Gemma 3 network with bidirectional
//! attention. The modules after the transformer compute the embedding of a text: the mean over the tokens,
//! two linear layers and a normalization (`modules.json` of sentence-transformers).

use dsl::nn::{Attend, Kv, Mask, Position, Slots};
use dsl::{
    Axis, Bool, EntryInput, EntryPoint, F32, Float, I32, LogitsMode, Tensor, TraceError, TraceErrorKind,
    Traced, model,
};
use ops::ops::Sdpa;
use ops::{Literal, TensorType};
use trace::{Ignorable, Provenance, Role};

use crate::config::{ConfigError, IGNORED, Keys, read_base};
use crate::decoder::LlamaConfig;
use crate::family::Family;
use crate::gemma::{self, GemmaConfig};
use crate::gemma3;
use crate::rope::RopeParameters;
use crate::sentence::{self, DenseActivation, SentenceConfig};

const TEXTS: Axis = Axis("B");
const TOKENS: Axis = Axis("S");
/// Tokens of the same text.
const KEYS: Axis = Axis("N");

/// Lists the folders next to the transformer's checkpoint that contain further tensors of the network.
const FOLDERS: [&str; 2] = ["2_Dense", "3_Dense"];

pub(crate) const FAMILY: Family = Family {
    about: "EmbeddingGemma, which computes embeddings and needs the files of sentence-transformers",
    // A causal Gemma 3 network without an output head has the same class name. This key
    // distinguishes the two networks.
    is: |keys| keys.flag("use_bidirectional_attention", false),
    folders: &FOLDERS,
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
            M = inner_features, O = features,
        }
        shard { K, F, V over model; B over data }

        embed_tokens: Embedding[V, D],
        layers: [gemma::Layer<T>; L],
        norm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        inner: Linear[D -> M](bias if inner_bias) at "2_Dense.linear",
        outer: Linear[M -> O](bias if outer_bias) at "3_Dense.linear",

        /// Computes the hidden states after the last layer.
        fn hidden(tokens: i32[B, S], count: i32[B]) -> T[B, S, D] {
            let length = tokens.extent(S);
            let (query, key) = (Tensor::<I32>::iota(S, length), Tensor::<I32>::iota(KEYS, length));
            let distance = (query.broadcast(key) - key).abs(); // [S, N]
            // A padding token sees itself, because the softmax needs at least one key.
            let itself = distance.equals(0.0);
            let real = key.broadcast(count).less(count.broadcast(key)); // [B, N]
            let all = itself.or(real.broadcast(itself)); // [B, S, N]
            let width = self.config.windows.iter().flatten().max().copied().unwrap_or(length);
            let near = all.and(distance.less(width as f64));

            let at = Position { start: count.filled(0.0), count };
            let attention = |rope: &RopeParameters, seen: Tensor<Bool>| {
                let rotary = Attend::rotary_of_whole(at, S, length, &rope.frequencies(self.dim(E), length));
                let mask = Mask::additive(seen.select(0.0, Sdpa::HIDDEN));
                Attend { mask, ..rotary.scaled(self.config.query_pre_attn_scalar.powf(-0.5)) }
            };
            let global = attention(&self.config.rope, all);
            let local = attention(self.config.local_rope.as_ref().unwrap_or(&self.config.rope), near);

            // Calls share no state, so each layer begins with an empty cache.
            let shape = [tokens.extent(B), self.dim(K), length, self.dim(E)];
            let zeros = Literal::splat(TensorType::new(T::element(), shape), 0.0);
            let empty = Slots::Computed(Tensor::constant(zeros, &[B, K, KEYS, E]));
            let mut x = self.embed_tokens(tokens) * Tensor::scalar((self.dim(D) as f64).sqrt());
            for (i, layer) in self.layers.iter().enumerate() {
                let at = if self.config.window(i).is_some() { &local } else { &global };
                x = layer.forward(x, at, &mut Kv { k: empty, v: empty });
            }
            self.norm(x)
        }

        /// Computes the embeddings of the texts.
        fn embed(tokens: i32[B, S], count: i32[B]) -> f32[B, O] {
            let hidden = self.hidden(tokens, count).to::<F32>();
            let token = Tensor::<I32>::iota(S, tokens.extent(S));
            let real = token.broadcast(count).less(count.broadcast(token)); // [B, S]
            let sum = real.select(hidden, 0.0).sum(S);
            let mean = (sum / count.to::<F32>().broadcast(sum)).to();
            let x = self.config.inner_activation.apply(self.inner(mean));
            let x = self.config.outer_activation.apply(self.outer(x)).to::<F32>(); // [B, O]
            x / (x * x).sum(O).sqrt().maximum(1e-12)
        }
    }
}

/// Read from several files in the model's folder.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingGemmaConfig {
    /// In a layer with a window w, a token sees earlier and later tokens at a distance below w.
    pub tower: GemmaConfig,
    /// The number of features between the two linear layers.
    pub inner_features: usize,
    /// Whether the first linear layer has a bias.
    pub inner_bias: bool,
    /// The activation function after the first linear layer.
    pub inner_activation: DenseActivation,
    /// The number of features of an embedding.
    pub features: usize,
    /// Whether the second linear layer has a bias.
    pub outer_bias: bool,
    /// The activation function after the second linear layer.
    pub outer_activation: DenseActivation,
    /// The settings for the preparation of texts: the prompts and the maximum length.
    pub sentence: SentenceConfig,
}

descends!(EmbeddingGemmaConfig from tower: GemmaConfig, through tower.llama: LlamaConfig);

/// The last component of a module's type, and its folder.
const MODULES: [(&str, &str); 5] = [
    ("Transformer", ""),
    ("Pooling", "1_Pooling"),
    ("Dense", "2_Dense"),
    ("Dense", "3_Dense"),
    ("Normalize", "4_Normalize"),
];

pub(crate) fn read(keys: Keys, allowed: &[String]) -> Result<EmbeddingGemmaConfig, ConfigError> {
    let folder = keys.folder();
    let keys = keys.without("use_bidirectional_attention");
    let mut tower = gemma3::read(&keys);
    read_base(&keys);
    keys.finish(IGNORED, allowed)?;
    // Each side of a token gets half of the configured window, plus 1 for the token itself.
    let windows = tower.windows.iter().map(|window| window.map(|window| window / 2 + 1));
    tower.windows = windows.collect();
    tower.tie_word_embeddings = false;
    sentence::check_modules(&folder, &MODULES)?;
    sentence::check_pooling(Keys::within(&folder, "1_Pooling/config.json")?, tower.hidden_size)?;
    let [inner, outer] = FOLDERS.map(|name| Keys::within(&folder, &format!("{name}/config.json")));
    let (inner_features, inner_bias, inner_activation) = sentence::dense(inner?, tower.hidden_size)?;
    let (features, outer_bias, outer_activation) = sentence::dense(outer?, inner_features)?;
    let sentence = SentenceConfig::read(&folder, tower.max_position_embeddings, allowed)?;
    tower.max_position_embeddings = sentence.max_tokens;
    Ok(EmbeddingGemmaConfig {
        tower,
        inner_features,
        inner_bias,
        inner_activation,
        features,
        outer_bias,
        outer_activation,
        sentence,
    })
}

impl<T: Float> EmbeddingGemma<T> {
    /// Each computes the embeddings of B texts of up to S tokens: `tokens` (`i32[B,S]`) and `count`
    /// (`i32[B]`) to `embedding`.
    pub(crate) fn trace(
        config: &EmbeddingGemmaConfig,
        entry_points: &[EntryPoint],
    ) -> Result<Traced, TraceError> {
        let mut recording = Self::record(config)?;
        for point in entry_points {
            if (point.input, point.logits) != (EntryInput::Tokens, LogitsMode::None) {
                let kind = TraceErrorKind::NoFunction { name: point.name.clone(), function: "logits" };
                return Err(TraceError { kind: Box::new(kind), provenance: Provenance::new("", "", 0) });
            }
            let (rows, text) = (TEXTS.of(point.batch), TOKENS.of(point.chunk));
            recording = recording.entry_with(&point.name, |model, entry| {
                let tokens = entry.input("tokens", Role::Tokens, &[rows, text]);
                let count = entry.input("count", Role::Count, &[rows]);
                entry.output("embedding", Role::Embedding, model.embed(tokens, count));
            })?;
        }
        Ok(recording.finish())
    }
}
