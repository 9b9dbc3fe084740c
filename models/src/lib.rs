//! The networks: one file per architecture, and their configurations.

pub mod config;
pub mod llama;
mod rope;

use std::path::Path;

use bake::Ignorable;
use config::{ConfigError, Keys};
use dsl::{Bf16, CausalLm, EntryPoint, F16, F32, TraceError, Traced};
use ops::ElementType;

pub use llama::{Llama, LlamaConfig};
pub use rope::{RopeParameters, RopeScaling};

/// The architectures that [`ModelConfig::read`] knows, as `config.json` names them.
pub const ARCHITECTURES: &[&str] = &["LlamaForCausalLM"];

/// The configuration of any known architecture.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelConfig {
    /// `LlamaForCausalLM`
    Llama(LlamaConfig),
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
            other => other.map(str::to_owned),
        };
        match named.or_else(family).as_deref() {
            Some("LlamaForCausalLM") => LlamaConfig::read(keys, allowed).map(Self::Llama),
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
        }
    }

    /// Tensors that a checkpoint may have beside the parameters.
    pub fn ignorable(&self) -> Vec<Ignorable> {
        match self {
            Self::Llama(config) => config.ignorable(),
        }
    }

    /// The element type the checkpoint was made for.
    pub fn element(&self) -> Option<ElementType> {
        match self {
            Self::Llama(config) => config.element,
        }
    }

    /// The longest sequence.
    pub fn max_context(&self) -> usize {
        match self {
            Self::Llama(config) => config.max_position_embeddings,
        }
    }

    /// The number of token ids.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Llama(config) => config.vocab_size,
        }
    }
}
