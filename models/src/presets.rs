//! Published sizes of the families, by name.
//!
//! The values are those of the `config.json` in the repository that is named beside each. `models/presets/parameters.txt` lists
//! what transformers makes of them (names, shapes, totals); the suite compares.

use std::path::Path;

use crate::config::{ConfigError, Keys};
use crate::{FAMILIES, ModelConfig};

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

/// Presets of a family, whose texts are in `models/presets`.
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
    /// All of them, by family.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        FAMILIES.iter().flat_map(|family| family.presets)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().find(|preset| preset.name == name)
    }

    /// What it says.
    ///
    /// # Errors
    /// None, for those that are published here: the suite reads them all.
    pub fn read(&self) -> Result<ModelConfig, ConfigError> {
        ModelConfig::of(Keys::parse(Path::new(self.name), self.config)?, &[])
    }
}
