//! Published sizes of the families, by name.
//!
//! The values are those of the `config.json` in the repository that is named beside each. What transformers makes of them
//! (names, shapes, totals) stands in `models/presets/parameters.txt`; the suite compares.

use std::path::Path;

use crate::ModelConfig;
use crate::config::{ConfigError, Keys};

/// A published configuration.
///
/// ```
/// use tracewright_models::Architecture as _;
/// use tracewright_models::presets::Preset;
///
/// let preset = Preset::named("llama-3.1-405b").ok_or("it has this name")?;
/// assert_eq!(preset.read()?.max_context(), 131_072);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name here.
    pub name: &'static str,
    /// The repository on Hugging Face whose `config.json` it is.
    pub repository: &'static str,
    /// The text of that file.
    pub config: &'static str,
}

macro_rules! presets {
    ($($name:literal: $repository:literal),+ $(,)?) => {
        /// All of them, by family.
        pub const PRESETS: &[Preset] = &[$(Preset {
            name: $name,
            repository: $repository,
            config: include_str!(concat!("../presets/", $name, ".json")),
        }),+];
    };
}

presets! {
    "functiongemma-270m": "google/functiongemma-270m-it",
    "gemma-2-2b": "google/gemma-2-2b",
    "gemma-2-9b": "google/gemma-2-9b",
    "gemma-3-1b": "google/gemma-3-1b-it",
    "gemma-3-4b": "google/gemma-3-4b-it",
    "gemma-3-12b": "google/gemma-3-12b-it",
    "gemma-3-27b": "google/gemma-3-27b-it",
    "gpt2": "openai-community/gpt2",
    "lfm2-1.2b": "LiquidAI/LFM2-1.2B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-405b": "meta-llama/Llama-3.1-405B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b-v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "olmo-2-1124-7b": "allenai/OLMo-2-1124-7B",
    "phi-3-mini-4k": "microsoft/Phi-3-mini-4k-instruct",
    "qwen2-0.5b": "Qwen/Qwen2-0.5B",
    "qwen2-7b": "Qwen/Qwen2-7B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B",
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B",
}

impl Preset {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// What it says.
    ///
    /// # Errors
    /// None, for those that are published here: the suite reads them all.
    pub fn read(&self) -> Result<ModelConfig, ConfigError> {
        ModelConfig::of(Keys::parse(Path::new(self.name), self.config)?, &[])
    }
}
