//! The networks that Tracewright supports, and their configurations. Each model family has its own file.
#![warn(missing_docs)]

#[macro_use]
mod macros;

mod alignment;
pub mod config;
pub mod decoder;
pub mod delta_net;
pub mod experts;
mod family;
pub mod fit;
pub mod gemma;
pub mod gguf;
mod head;
mod hybrid;
pub mod latent;
mod lora;
pub mod mamba2;
mod mtp;
mod opened;
pub mod per_layer;
mod pixtral;
pub mod presets;
mod quantized;
mod rope;
pub mod sentence;
mod shape_check;
pub mod short_conv;
mod speech;
mod storage;
mod towers;
pub mod ungated;
pub mod vision;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use config::{ConfigError, IGNORED, Keys, read_base, read_storage};
use dsl::{AnyFloat, CausalLm, EntryPoint, TraceError, Traced, in_element};
use irpa::{Gguf, ModelFiles};
use ops::ElementType;
use storage::Storage;
use trace::{Ignorable, Quantization};

pub use alignment::Alignment;
pub use decoder::LlamaConfig;
pub use embedding_gemma::EmbeddingGemmaConfig;
pub use experts::ExpertsConfig;
pub use family::{Family, Stacks};
pub use gemma::{Gemma, GemmaConfig};
pub use gguf::GgufFamily;
pub use gpt2::Gpt2Config;
pub use head::UntiedHead;
pub use internvl::InternVlTower;
pub use lora::{LoraError, LoraFile, LoraMatrices, LoraProblem, NarrowMatrices};
pub use mtp::{MtpError, check_mtp};
pub use opened::{ModelKind, Naming, Opened};
pub use pixtral::PixtralTower;
pub use rope::{RopeDefaults, RopeParameters, RopeScaling};
pub use sentence::{Activation, HeadStep, Pairs, Pooling, SentenceConfig, UnknownPrompt};
pub use shape_check::{DeclaredSize, Evidence, OtherSize, OtherSizes, check_sizes};
pub use short_conv::ConvConfig;
pub use speech::SpeechConfig;
pub use vision::{Gemma3Tower, Siglip, SmolVlmTower, Vision, VisionFamily};

families! {
    llama::Llama(LlamaConfig);
    apertus::Apertus(LlamaConfig);
    bert::Bert(bert::BertConfig) embeds;
    cohere2::Cohere2(cohere2::Cohere2Config);
    deepseek_v3::DeepseekV3(latent::LatentConfig);
    embedding_gemma::EmbeddingGemma(EmbeddingGemmaConfig) embeds;
    ernie4_5::Ernie45(LlamaConfig);
    ernie4_5_moe::Ernie45Moe(ExpertsConfig);
    exaone4::Exaone4(smollm3::SmolLm3Config);
    gemma3::Gemma3(gemma3::Gemma3Config);
    gemma2::Gemma2(GemmaConfig);
    gemma4::Gemma4(per_layer::PerLayerConfig);
    gemma4_unified::Gemma4Unified(per_layer::PerLayerConfig);
    glm4_moe::Glm4Moe(glm4_moe::Glm4MoeConfig);
    glm4_moe_lite::Glm4MoeLite(latent::LatentConfig);
    gpt2::Gpt2(Gpt2Config);
    gpt_oss::GptOss(gpt_oss::GptOssConfig);
    granite::Granite(granite::GraniteConfig);
    granitemoehybrid::GraniteMoeHybrid(granitemoehybrid::GraniteMoeHybridConfig);
    internvl::InternVl(internvl::InternVlConfig);
    lfm2::Lfm2(ConvConfig);
    lfm2_moe::Lfm2Moe(ConvConfig);
    lfm3::Lfm3(lfm3::Lfm3Config);
    ministral3::Ministral3(ministral3::Ministral3Config);
    minimax_m2::MinimaxM2(olmoe::OlmoeConfig);
    mistral::Mistral(mistral::MistralConfig);
    mistral4::Mistral4(latent::LatentConfig);
    mixtral::Mixtral(ExpertsConfig);
    modernbert::ModernBert(modernbert::ModernBertConfig) embeds;
    nemotron_h::NemotronH(mamba2::Mamba2Config);
    nomic_bert::NomicBert(nomic_bert::NomicBertConfig) embeds;
    olmo2::Olmo2(LlamaConfig);
    olmo3::Olmo3(LlamaConfig);
    olmoe::Olmoe(olmoe::OlmoeConfig);
    phi3::Phi3(LlamaConfig);
    qwen2::Qwen2(LlamaConfig);
    qwen3_embedding::Qwen3Embedding(qwen3_embedding::Qwen3EmbeddingConfig) embeds;
    qwen3::Qwen3(LlamaConfig);
    qwen3_5::Qwen35(qwen3_5::Qwen35Config);
    qwen3_5_moe::Qwen35Moe(qwen3_5::Qwen35Config);
    qwen3_next::Qwen3Next(qwen3_5::Qwen35Config);
    qwen3_moe::Qwen3Moe(ExpertsConfig);
    seed_oss::SeedOss(LlamaConfig);
    smollm3::SmolLm3(smollm3::SmolLm3Config);
    smolvlm::SmolVlm(smolvlm::SmolVlmConfig);
    starcoder2::Starcoder2(LlamaConfig);
    whisper::Whisper(whisper::WhisperConfig) transcribes;
    xlm_roberta::XlmRoberta(bert::BertConfig) embeds;
}

/// Unread keys in the second argument are no error.
type ReadKeys = fn(Keys, &[String]) -> Result<ModelConfig, ConfigError>;

struct Facts {
    family: &'static Family,
    element: Option<ElementType>,
    max_context: usize,
    vocabulary: usize,
    tied: bool,
    layers: usize,
    /// The configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    sizes: Vec<DeclaredSize>,
}

/// The architectures that [`ModelConfig::read`] supports, by their name in `config.json`.
pub fn architectures() -> Vec<&'static str> {
    // Several families share an architecture if `text_config` selects the family.
    let mut seen = BTreeSet::new();
    let names = FAMILIES.iter().flat_map(|family| family.architectures).copied();
    names.filter(|name| seen.insert(*name)).collect()
}

impl ModelConfig {
    /// For a file or a directory. Keys in `allowed` may be unknown.
    pub fn read(files: impl Into<ModelFiles>, allowed: &[String]) -> Result<Self, ConfigError> {
        Ok(Self::of(Keys::read(files)?, allowed)?.0)
    }

    /// With how the weights of the checkpoint are stored.
    pub(crate) fn of(keys: Keys, allowed: &[String]) -> Result<(Self, Storage), ConfigError> {
        let (found, path) = (architecture(&keys), keys.path().to_owned());
        let Some((family, read)) = Self::reader(&found, &keys) else {
            return Err(ConfigError::Architecture { path, found, known: architectures() });
        };
        let storage = read_storage(&keys, family.quantized, allowed)?;
        Ok((read(keys, allowed)?, storage))
    }

    /// The family that the network belongs to.
    pub fn family(&self) -> &'static Family {
        self.facts().family
    }
}

impl ModelConfig {
    /// Tensors that a checkpoint may contain in addition to the network's parameters.
    pub fn ignorable(&self) -> Vec<Ignorable> {
        let Facts { family, tied, layers, .. } = self.facts();
        let head = || Ignorable::EqualTo { key: head::HEAD.into(), other: family.embedding.into() };
        let further = || Ignorable::LayersFrom { prefix: "model.layers.", from: layers };
        let (head, further) = (tied.then(head), family.further_layers.then(further));
        let unread = match self {
            Self::Gemma4(config) => config.unread(),
            _ => Vec::new(),
        };
        let unread = unread.into_iter().map(Ignorable::Unread);
        family.ignorable.iter().cloned().chain(head).chain(further).chain(unread).collect()
    }

    /// The names of the network's weights in a checkpoint of the family.
    pub fn naming(&self) -> Naming {
        let Facts { family, tied, .. } = self.facts();
        let folders = self.kind().sentence().map(|sentence| sentence.weights.clone());
        Naming::of(family, tied, folders.unwrap_or_default())
    }

    /// The vision tower, for a family whose tower is supported.
    pub fn vision(&self) -> Option<&Vision> {
        match self {
            Self::SmolVlm(config) => config.vision.as_ref(),
            Self::Gemma3(config) => config.vision.as_ref(),
            Self::InternVl(config) => config.vision.as_ref(),
            Self::Mistral(config) => config.vision.as_ref(),
            Self::Ministral3(config) => config.vision.as_ref(),
            _ => None,
        }
    }

    /// The network whose attention tells the times of words, for a family that transcribes speech.
    pub fn aligned(&self) -> Option<&whisper::WhisperConfig> {
        match self {
            Self::Whisper(config) => Some(config),
            _ => None,
        }
    }

    /// The key of the embedding table, if the output head is tied to it.
    fn tied(&self) -> Option<&'static str> {
        let Facts { family, tied, .. } = self.facts();
        tied.then_some(family.embedding)
    }

    /// The storage format of the weights of matmuls that the configuration declares.
    pub fn stored(&self) -> Quantization {
        match self {
            Self::GptOss(config) => config.stored(),
            _ => Quantization::Computed,
        }
    }
}

impl Architecture for ModelConfig {
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        in_element(element, || self.recorded(entry_points))
    }

    fn check_mtp(&self) -> Result<(), MtpError> {
        match self {
            Self::Qwen35(config) | Self::Qwen35Moe(config) | Self::Qwen3Next(config) => config.check_mtp(),
            _ => Err(MtpError::Family),
        }
    }

    fn element(&self) -> Option<ElementType> {
        self.facts().element
    }

    fn max_context(&self) -> usize {
        self.facts().max_context
    }

    fn vocabulary(&self) -> usize {
        self.facts().vocabulary
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        self.facts().sizes
    }
}

/// Opens a Hugging Face folder, a `config.json` or a GGUF file. Keys in the second argument may be unknown.
pub type ReadModel = fn(ModelFiles, &[String]) -> Result<Opened, ConfigError>;

/// Opens the network of a model: a GGUF file, a directory with a `config.json`, or a `config.json`.
/// If the directory contains weights, the function also reads their formats. Unknown configuration
/// keys in the list `allowed` cause no error.
///
/// # Errors
/// Returns the same errors as [`ModelConfig::read`]. Returns an error if a GGUF file is invalid or
/// has an unsupported architecture.
///
/// ```no_run
/// # use std::path::Path;
/// let model = tracewright_models::read(Path::new("model.gguf"), &[])?;
/// println!("{} token ids, {} positions", model.vocabulary(), model.max_context());
/// # Ok::<(), tracewright_models::config::ConfigError>(())
/// ```
pub fn read(files: impl Into<ModelFiles>, allowed: &[String]) -> Result<Opened, ConfigError> {
    let files = files.into();
    if files.is_gguf() {
        return Opened::of_gguf(&files, allowed);
    }
    let (config, storage) = ModelConfig::of(Keys::read(&files)?, allowed)?;
    Opened::of_folder(config, storage, &files)
}

/// The questions that only the network can answer; [`Opened`] has the rest. No method has a default, because
/// a network that wraps another one could forget to forward it.
pub trait Architecture: Send + Sync {
    /// With weights and activations of type `element` (f32, f16 or bf16).
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError>;

    /// The largest number of tokens in a sequence that the network supports.
    fn max_context(&self) -> usize;

    /// The number of token ids in the vocabulary.
    fn vocabulary(&self) -> usize;

    /// The element type of the checkpoint's weights, or `None` if the type is unknown.
    fn element(&self) -> Option<ElementType>;

    /// Whether [`trace`](Self::trace) records [`EntryPoint::drafts`], for multi-token prediction.
    fn check_mtp(&self) -> Result<(), MtpError>;

    /// For [`check_sizes`]. With an empty list, only recorded parameters are compared.
    fn sizes(&self) -> Vec<DeclaredSize>;
}

/// Fails for a network that does not continue text. `path` is that of the model.
pub fn check_generates(kind: &ModelKind, path: &Path) -> Result<(), ConfigError> {
    match kind {
        ModelKind::Text | ModelKind::Tower(_) | ModelKind::Alignment => Ok(()),
        ModelKind::Speech(_) => Err(transcribes(path)?),
        ModelKind::Embedding(sentence) if sentence.pairs.is_some() => Err(scores(path)?),
        ModelKind::Embedding(_) => {
            let (found, path) = declared(path)?;
            Err(ConfigError::Embeds { found, path })
        }
    }
}

fn scores(path: &Path) -> Result<ConfigError, ConfigError> {
    let (found, path) = declared(path)?;
    Ok(ConfigError::Scores { found, path })
}

fn transcribes(path: &Path) -> Result<ConfigError, ConfigError> {
    let (found, path) = declared(path)?;
    Ok(ConfigError::Transcribes { found, path })
}

/// Fails for a network that does not transcribe speech. `path` is that of the model.
pub fn check_transcribes<'a>(kind: &'a ModelKind, path: &Path) -> Result<&'a SpeechConfig, ConfigError> {
    match kind {
        ModelKind::Speech(speech) => Ok(speech),
        _ => {
            let (found, path) = declared(path)?;
            Err(ConfigError::NoSpeech { found, path })
        }
    }
}

/// Fails for a network that predicts tokens or scores pairs of texts. `path` is that of the model.
pub fn check_embeds<'a>(kind: &'a ModelKind, path: &Path) -> Result<&'a SentenceConfig, ConfigError> {
    match kind {
        ModelKind::Embedding(sentence) if sentence.pairs.is_some() => Err(scores(path)?),
        ModelKind::Embedding(sentence) => Ok(sentence),
        ModelKind::Speech(_) => Err(transcribes(path)?),
        ModelKind::Text | ModelKind::Tower(_) | ModelKind::Alignment => {
            let (found, path) = declared(path)?;
            Err(ConfigError::Generates { found, path })
        }
    }
}

/// Fails for a network that does not score pairs of texts. `path` is that of the model.
pub fn check_reranks<'a>(kind: &'a ModelKind, path: &Path) -> Result<&'a SentenceConfig, ConfigError> {
    match kind {
        ModelKind::Embedding(sentence) if sentence.pairs.is_some() => Ok(sentence),
        _ => {
            let (found, path) = declared(path)?;
            Err(ConfigError::Unranked { found, path })
        }
    }
}

/// With the path of the file.
fn declared(path: &Path) -> Result<(String, PathBuf), ConfigError> {
    if Gguf::is_at(path) {
        Ok((gguf::architecture(path)?, path.to_owned()))
    } else {
        let keys = Keys::read(path)?;
        Ok((architecture(&keys), keys.path().to_owned()))
    }
}

/// Or the model type, if `architectures` is missing.
fn architecture(keys: &Keys) -> String {
    // The value is usually a list. An error message shows any other value unchanged.
    let named =
        keys.get("architectures").and_then(|names| names.as_array().map_or(Some(names), |all| all.first()));
    let named = named.map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
    let named = named.or_else(|| keys.optional_text("model_type"));
    named.unwrap_or_else(|| "(none)".into())
}
