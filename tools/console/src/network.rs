//! Reads a network from a path, or by the name of a preset.

use std::io::ErrorKind;
use std::path::Path;

use tracewright::irpa::ModelFiles;
use tracewright::models::config::ConfigError;
use tracewright::models::fit::OpenWarning;
use tracewright::models::presets::Preset;
use tracewright::models::{Opened, ReadModel};

use crate::error::ConsoleError;

/// Unless a file has the same name.
pub fn preset(model: &Path) -> Option<&'static Preset> {
    if model.exists() { None } else { model.to_str().and_then(Preset::named) }
}

/// At a path, or of a preset.
pub fn read_network(
    read: ReadModel,
    files: &ModelFiles,
    allowed_keys: &[String],
) -> Result<Opened, ConsoleError> {
    if let Some(preset) = preset(files.path()) {
        return Ok(preset.read()?.into());
    }
    read(files.clone(), allowed_keys).map_err(|error| match error {
        ConfigError::File(missing) if missing.source.kind() == ErrorKind::NotFound => {
            ConsoleError::NoModel(missing)
        }
        error => error.into(),
    })
}

/// Prints warnings that Tracewright found in a model's files.
pub fn warn(warnings: &[OpenWarning]) {
    for warning in warnings {
        say!("warning: {warning}");
        if let OpenWarning::UntiedHead(_) = warning {
            say!(
                "  help: set `tie_word_embeddings` to false in the configuration, or remove `lm_head.weight`"
            );
        }
    }
}

/// `demo` for `demo` and `demo/config.json`.
pub fn name_of(model: &Path) -> String {
    let whole = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let named = if whole.ends_with("config.json") { whole.parent().unwrap_or(&whole) } else { &whole };
    named.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
