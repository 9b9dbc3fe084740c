//! Presets, which are published configurations of the model families. Each preset has a name. A preset
//! contains the `config.json` of a Hugging Face repository. The file `models/presets/parameters.txt` lists
//! the names and shapes of the parameters that HF transformers creates from the `config.json` of each preset,
//! and the total number of parameters. A test compares the parameters in `parameters.txt` with the network in
//! this crate.

use std::path::Path;

use crate::config::{ConfigError, Keys};
use crate::{FAMILIES, ModelConfig};

/// A published configuration. You can build a network from a preset without any files or weights.
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
    /// The name of the preset in Tracewright, such as `llama-3.1-405b`.
    pub name: &'static str,
    /// The repository on Hugging Face that publishes the preset's `config.json`.
    pub repository: &'static str,
    /// The text of the preset's `config.json`.
    pub config: &'static str,
}

/// Their files are in `models/presets`.
macro_rules! presets {
    ($($name:literal: $repository:literal),+ $(,)?) => {
        &[$($crate::presets::Preset {
            name: $name,
            repository: $repository,
            config: include_str!(concat!("../presets/", $name, ".json")),
        }),+]
    };
}
pub(crate) use presets;

impl Preset {
    /// All presets, sorted by family.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        FAMILIES.iter().flat_map(|family| family.presets)
    }

    /// The preset with this name, or `None` if no preset has this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().find(|preset| preset.name == name)
    }

    /// Never fails for presets of this crate, which a test reads.
    pub fn read(&self) -> Result<ModelConfig, ConfigError> {
        Ok(ModelConfig::of(Keys::parse(Path::new(self.name), self.config)?, &[])?.0)
    }
}
