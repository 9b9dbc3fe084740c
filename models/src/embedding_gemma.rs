//! EmbeddingGemma: "EmbeddingGemma: Powerful and Lightweight Text Representations" (2025), §2. Names follow the HF
//! checkpoint. The network is a Gemma 3 with bidirectional attention, followed by the modules that compute a text's
//! embedding: mean, two linear layers, normalization (`modules.json` of sentence-transformers).

use std::path::Path;

use bake::Ignorable;
use dsl::nn::{Attend, Kv, Mask, Position, Slots};
use dsl::{
    Axis, Bf16, Bool, EntryInput, EntryPoint, F16, F32, Float, I32, LogitsMode, Tensor, TraceError,
    TraceErrorKind, Traced, model,
};
use ops::ops::Sdpa;
use ops::{ElementType, Literal, TensorType};
use trace::{Provenance, Role};

use crate::Architecture;
use crate::config::{ConfigError, IGNORED, Keys, check_storage, read_base};
use crate::decoder::LlamaConfig;
use crate::gemma3::{self, GemmaConfig};
use crate::rope::RopeParameters;
use crate::sentence::SentenceConfig;
use crate::shape_check::DeclaredSize;

/// The axis that counts texts.
const TEXTS: Axis = Axis("B");
/// The axis that counts the tokens of a text.
const TOKENS: Axis = Axis("S");
/// The axis of the tokens that attention looks at.
const KEYS: Axis = Axis("N");

model! {
    /// Texts to embeddings of length 1. The first `count` tokens of each text are real, the others are
    /// padding.
    pub EmbeddingGemma<T: Float>(EmbeddingGemmaConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
            M = inner_features, O = features,
        }

        embed_tokens: Embedding[V, D],
        layers: [gemma3::Layer<T>; L],
        norm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        inner: Linear[D -> M](bias if inner_bias) at "2_Dense.linear",
        outer: Linear[M -> O](bias if outer_bias) at "3_Dense.linear",

        /// The hidden states of the last layer.
        fn hidden(tokens: i32[B, S], count: i32[B]) -> T[B, S, D] {
            let length = tokens.extent(S);
            let (query, key) = (Tensor::<I32>::iota(S, length), Tensor::<I32>::iota(KEYS, length));
            let distance = (query.broadcast(key) - key).abs(); // [S, N]
            // A token that pads sees itself, so that it sees something.
            let itself = distance.equals(0.0);
            let real = key.broadcast(count).less(count.broadcast(key)); // [B, N]
            let all = itself.or(real.broadcast(itself)); // [B, S, N]
            let width = self.config.windows.iter().flatten().max().copied().unwrap_or(length);
            let near = all.and(distance.less(width as f64));

            let at = Position { start: count.filled(0.0), count };
            let attention = |rope: &RopeParameters, seen: Tensor<Bool>| {
                let rotary = Attend::rotary(at, S, length, &rope.frequencies(self.dim(E), length), length);
                let mask = Mask::additive(seen.select(0.0, Sdpa::HIDDEN));
                Attend { mask, ..rotary.scaled(self.config.query_pre_attn_scalar.powf(-0.5)) }
            };
            let global = attention(&self.config.rope, all);
            let local = attention(self.config.rope_local.as_ref().unwrap_or(&self.config.rope), near);

            // Nothing is remembered from one call to the next: each layer begins with an empty cache.
            let shape = [tokens.extent(B), self.dim(K), length, self.dim(E)];
            let zeros = Literal::splat(TensorType::new(T::TYPE, shape), 0.0);
            let empty = Slots::Computed(Tensor::constant(zeros, &[B, K, KEYS, E]));
            let mut x = self.embed_tokens(tokens) * Tensor::scalar((self.dim(D) as f64).sqrt());
            for (i, layer) in self.layers.iter().enumerate() {
                let at = if self.config.window(i).is_some() { &local } else { &global };
                x = layer.forward(x, at, &mut Kv { k: empty, v: empty });
            }
            self.norm(x)
        }

        /// The embeddings of the texts.
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

/// The activation after a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseActivation {
    /// No activation: the layer is linear.
    Identity,
    /// The hyperbolic tangent of each feature.
    Tanh,
}

impl DenseActivation {
    #[track_caller]
    fn apply<T: Float>(self, x: Tensor<T>) -> Tensor<T> {
        match self {
            Self::Identity => x,
            Self::Tanh => x.tanh(),
        }
    }
}

/// The configuration of an EmbeddingGemma, from several files of its folder.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingGemmaConfig {
    /// The transformer. In a layer with a window w, a token sees the tokens less than w positions away on
    /// both sides.
    pub tower: GemmaConfig,
    /// The number of features between the linear layers.
    pub inner_features: usize,
    /// Whether the first linear layer has a bias.
    pub inner_bias: bool,
    /// The activation after the first linear layer.
    pub inner_activation: DenseActivation,
    /// The number of features of an embedding.
    pub features: usize,
    /// Whether the second linear layer has a bias.
    pub outer_bias: bool,
    /// The activation after the second linear layer.
    pub outer_activation: DenseActivation,
    /// The preparation of texts: prompts and the longest length.
    pub sentence: SentenceConfig,
}

descends!(EmbeddingGemmaConfig from tower: GemmaConfig);

impl dsl::Project<LlamaConfig> for EmbeddingGemmaConfig {
    fn project(&self) -> LlamaConfig {
        self.tower.llama.clone()
    }
}

/// The architectures that `config.json` may name.
pub(crate) const ARCHITECTURES: &[&str] = &["Gemma3TextModel"];

/// Whether a `config.json` with this architecture is an embedding's. A Gemma 3 saved without its head has the
/// same architecture, but its attention is causal.
pub(crate) fn is_embedding(keys: &Keys, architecture: &str) -> bool {
    ARCHITECTURES.contains(&architecture) && keys.flag("use_bidirectional_attention", false)
}

/// The modules of the network: the last part of their type, and their folder.
const MODULES: [(&str, &str); 5] = [
    ("Transformer", ""),
    ("Pooling", "1_Pooling"),
    ("Dense", "2_Dense"),
    ("Dense", "3_Dense"),
    ("Normalize", "4_Normalize"),
];

impl EmbeddingGemmaConfig {
    /// The folders beside the transformer's checkpoint that contain tensors of the network.
    pub const FOLDERS: [&str; 2] = ["2_Dense", "3_Dense"];

    /// Reads the files of the folder at `path`. The keys in `allowed` may be in `config.json` although no
    /// code reads them.
    ///
    /// # Errors
    /// If a file is missing, the modules differ, or keys of a file are missing, unknown or invalid. The error
    /// lists all such keys.
    pub fn read(path: &Path, allowed: &[String]) -> Result<Self, ConfigError> {
        let keys = Keys::read(path)?;
        let found = crate::architecture(&keys);
        let both_ways = keys.flag("use_bidirectional_attention", false);
        // One that was a language model may still be called so.
        if !both_ways && !ARCHITECTURES.contains(&&*found) {
            let path = keys.path().to_owned();
            return Err(match crate::architectures().contains(&&*found) {
                true => ConfigError::Generates { path, found },
                false => ConfigError::Architecture { path, found, known: ARCHITECTURES.to_vec() },
            });
        }
        if !both_ways {
            keys.refuse("use_bidirectional_attention", "false", "true: an embedding looks both ways");
        }
        check_storage(&keys)?;
        let keys = keys.without("use_bidirectional_attention");
        let mut tower = gemma3::read(&keys);
        read_base(&keys);
        keys.finish(IGNORED, allowed)?;
        // Half of what is said to each side, and the token itself.
        let windows = tower.llama.windows.iter();
        tower.llama.windows = windows.map(|window| window.map(|window| window / 2 + 1)).collect();
        check_modules(&path.join("modules.json"))?;
        check_pooling(Keys::read(&path.join("1_Pooling"))?, tower.hidden_size)?;
        let [inner, outer] = Self::FOLDERS.map(|folder| Keys::read(&path.join(folder)));
        let (inner_features, inner_bias, inner_activation) = dense(inner?, tower.hidden_size)?;
        let (features, outer_bias, outer_activation) = dense(outer?, inner_features)?;
        let sentence = SentenceConfig::read(path, tower.max_position_embeddings, allowed)?;
        Ok(Self {
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

    fn trace_in<T: Float>(&self, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        let mut recording = EmbeddingGemma::<T>::record(self)?;
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

    /// Prefixes of keys in checkpoints, each with the network's prefix. A checkpoint that was a language
    /// model has a prefix.
    pub fn prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[("model.", "")]
    }

    /// Tensors that a checkpoint may contain in addition to the parameters: the head of the original language
    /// model.
    pub fn ignorable(&self) -> Vec<Ignorable> {
        vec![Ignorable::Prefix("lm_head.")]
    }
}

impl Architecture for EmbeddingGemmaConfig {
    /// Each entry point takes `tokens: i32[B,S]` and `count: i32[B]` of B texts with up to S tokens, and
    /// returns `embedding`.
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        match element {
            ElementType::Bf16 => self.trace_in::<Bf16>(entry_points),
            ElementType::F16 => self.trace_in::<F16>(entry_points),
            _ => self.trace_in::<F32>(entry_points),
        }
    }

    /// The only entry point is `embed`.
    fn entry_points(&self, batch: usize, chunk: usize, context: usize) -> Vec<EntryPoint> {
        vec![EntryPoint::new("embed", batch, chunk, context, LogitsMode::None)]
    }

    fn folders(&self) -> &'static [&'static str] {
        &Self::FOLDERS
    }

    fn max_context(&self) -> usize {
        self.sentence.max_tokens
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn element(&self) -> Option<ElementType> {
        self.tower.element
    }

    fn ignorable(&self) -> Vec<Ignorable> {
        self.ignorable()
    }

    fn prefixes(&self) -> &'static [(&'static str, &'static str)] {
        self.prefixes()
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        self.tower.sizes()
    }
}

/// Checks that the file at `path` lists the network's modules.
fn check_modules(path: &Path) -> Result<(), ConfigError> {
    let text = files::read_json(path)?;
    let modules: serde_json::Value = files::parse_json(&text)
        .map_err(|error| ConfigError::Syntax { path: path.to_owned(), reason: error.to_string() })?;
    let found: Vec<(&str, &str)> =
        modules.as_array().map_or(&[][..], Vec::as_slice).iter().map(module).collect();
    match found == MODULES {
        true => Ok(()),
        false => {
            let show = |(kind, folder): &(&str, &str)| format!("{kind} at `{folder}`");
            let [found, expected] =
                [&found[..], &MODULES].map(|list| list.iter().map(show).collect::<Vec<_>>());
            let (found, expected) = (found.join(", "), expected.join(", "));
            Err(ConfigError::Modules { path: path.to_owned(), found, expected })
        }
    }
}

/// The type and the folder of a module.
fn module(module: &serde_json::Value) -> (&str, &str) {
    let text = |key: &str| module.get(key).and_then(|text| text.as_str()).unwrap_or("nothing");
    let kind = text("type");
    (kind.rsplit_once('.').map_or(kind, |(_, last)| last), text("path"))
}

/// Checks that the embedding is the mean over the tokens.
fn check_pooling(keys: Keys, features: usize) -> Result<(), ConfigError> {
    for key in ["embedding_dimension", "word_embedding_dimension"] {
        if let Some(found) = keys.optional_count(key).filter(|&found| found != features) {
            keys.refuse(key, found, format!("{features}, the `hidden_size`"));
        }
    }
    keys.one_of("pooling_mode", &["mean"]);
    keys.always("pooling_mode_mean_tokens", true);
    for other in [
        "pooling_mode_cls_token",
        "pooling_mode_max_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens",
        "pooling_mode_lasttoken",
    ] {
        keys.always(other, false);
    }
    keys.always("include_prompt", true);
    keys.finish(&[], &[])
}

/// The outputs of a linear layer with `inputs` inputs, whether it has a bias, and its activation.
fn dense(keys: Keys, inputs: usize) -> Result<(usize, bool, DenseActivation), ConfigError> {
    const IDENTITY: &str = "torch.nn.modules.linear.Identity";
    const TANH: &str = "torch.nn.modules.activation.Tanh";
    let found = keys.count("in_features");
    if found != inputs {
        keys.refuse("in_features", found, format!("{inputs}, the features that come in"));
    }
    keys.one_of("activation_function", &[IDENTITY, TANH]);
    let activation = match keys.optional_text("activation_function").as_deref() {
        Some(IDENTITY) => DenseActivation::Identity,
        _ => DenseActivation::Tanh,
    };
    keys.always("use_residual", false);
    let layer = (keys.count("out_features"), keys.flag("bias", true), activation);
    keys.finish(&["module_input_name", "module_output_name"], &[])?;
    Ok(layer)
}
