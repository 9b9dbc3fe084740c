//! The networks: one file per architecture, and their configurations.

pub mod config;
pub mod gemma3;
pub mod llama;
mod rope;

use std::path::Path;

use bake::Ignorable;
use config::{ConfigError, Keys};
use dsl::{Bf16, CausalLm, EntryPoint, F16, F32, TraceError, Traced};
use ops::ElementType;

pub use gemma3::{Gemma3, Gemma3Config};
pub use llama::{Llama, LlamaConfig};
pub use rope::{RopeDefaults, RopeParameters, RopeScaling};

/// The architectures that [`ModelConfig::read`] knows, as `config.json` names them.
pub const ARCHITECTURES: &[&str] =
    &["LlamaForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"];

/// The configuration of any known architecture.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelConfig {
    /// `LlamaForCausalLM`
    Llama(LlamaConfig),
    /// `Gemma3ForCausalLM`, and the text of `Gemma3ForConditionalGeneration`
    Gemma3(Gemma3Config),
}

impl ModelConfig {
    /// Reads a `config.json`, or the one in the directory at `path`. `allowed` keys may be there although nothing
    /// reads them.
    ///
    /// # Errors
    /// An unknown architecture, a quantized checkpoint, or all keys that are missing, unknown or unusable.
    pub fn read(path: &Path, allowed: &[String]) -> Result<Self, ConfigError> {
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let keys = Keys::read(&file)?;
        if let Some(quantization) = keys.object("quantization_config") {
            let method = quantization.optional_text("quant_method").unwrap_or_else(|| "unknown".into());
            return Err(ConfigError::Quantized { path: file, method });
        }
        let first =
            |value: &serde_json::Value| value.get(0).and_then(|name| name.as_str()).map(str::to_owned);
        let named = keys.get("architectures").and_then(first);
        // A config.json that was written by hand may name the family only.
        let family = || match keys.optional_text("model_type").as_deref() {
            Some("llama") => Some("LlamaForCausalLM".to_owned()),
            Some("gemma3_text" | "gemma3") => Some("Gemma3ForCausalLM".to_owned()),
            other => other.map(str::to_owned),
        };
        match named.or_else(family).as_deref() {
            Some("LlamaForCausalLM") => LlamaConfig::read(keys, allowed).map(Self::Llama),
            Some("Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration") => {
                Gemma3Config::read(keys, allowed).map(Self::Gemma3)
            }
            found => {
                let found = found.unwrap_or("(none)").to_owned();
                Err(ConfigError::Architecture { path: file, found, known: ARCHITECTURES })
            }
        }
    }

    /// The trace of these entry points with weights and activations of type `element` (f32, f16 or bf16).
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        match (self, element) {
            (Self::Llama(config), ElementType::Bf16) => Llama::<Bf16>::trace(config, entry_points),
            (Self::Llama(config), ElementType::F16) => Llama::<F16>::trace(config, entry_points),
            (Self::Llama(config), _) => Llama::<F32>::trace(config, entry_points),
            (Self::Gemma3(config), ElementType::Bf16) => Gemma3::<Bf16>::trace(config, entry_points),
            (Self::Gemma3(config), ElementType::F16) => Gemma3::<F16>::trace(config, entry_points),
            (Self::Gemma3(config), _) => Gemma3::<F32>::trace(config, entry_points),
        }
    }

    /// Tensors that a checkpoint may have beside the parameters.
    pub fn ignorable(&self) -> Vec<Ignorable> {
        match self {
            Self::Llama(config) => config.ignorable(),
            Self::Gemma3(_) => Gemma3Config::ignorable(),
        }
    }

    /// How keys of a checkpoint begin, and how the parameters of the model do: where the network is one tower of
    /// several.
    pub fn prefixes(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Llama(_) => &[],
            Self::Gemma3(_) => gemma3::PREFIXES,
        }
    }

    /// The element type the checkpoint was made for.
    pub fn element(&self) -> Option<ElementType> {
        match self {
            Self::Llama(config) => config.element,
            Self::Gemma3(config) => config.element,
        }
    }

    /// The longest sequence.
    pub fn max_context(&self) -> usize {
        match self {
            Self::Llama(config) => config.max_position_embeddings,
            Self::Gemma3(config) => config.max_position_embeddings,
        }
    }

    /// The number of token ids.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Llama(config) => config.vocab_size,
            Self::Gemma3(config) => config.vocab_size,
        }
    }
}
