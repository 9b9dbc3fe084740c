//! Why a model does not open, or does not answer.

use std::fmt::{self, Display as _};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use errors::{FileError, WithCauses};
use generate::GenerateError;
use irpa::ArchiveError;
use models::config::ConfigError;
use models::{OtherSizes, UnknownPrompt};
use runtime::{CompileError, RuntimeError};
use targets::DeviceKind;

use crate::PlanError;
use crate::build::LoadError;
use crate::embed::EmbedError;
use crate::export::{ExportError, ManifestError};
use crate::tuning::TuningFileError;

/// Why a [`Model`](super::Model) does not open, or does not answer.
///
/// `Debug` shows the message and the causes behind it, since a `main` that returns an error prints it by `Debug`. For the same
/// reason the fields of a variant are not shown.
///
/// ```
/// use tracewright::Model;
///
/// let error = Model::open("no-such-folder").err().ok_or("there is no such folder")?;
/// let shown = format!("{error:?}");
/// assert!(shown.starts_with("cannot open the model directory `no-such-folder`\n  because: "), "{shown}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
pub enum ModelError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights have other sizes than the configuration.
    #[error(transparent)]
    Sizes(#[from] OtherSizes),
    /// The checkpoint.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The archive in the cache. Without it, it is baked again.
    #[error(transparent)]
    Cached(ArchiveError),
    /// The sizes asked for.
    #[error(transparent)]
    Plan(Box<PlanError>),
    /// Compiling, baking or loading.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The export.
    #[error(transparent)]
    Export(Box<ExportError>),
    /// What the tuner measured.
    #[error(transparent)]
    Tuning(#[from] TuningFileError),
    /// Tokenizer, chat template, sampling, or the network.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A call failed, which ended all texts that were being continued.
    #[error(transparent)]
    Failed(Arc<GenerateError>),
    /// The embedding.
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// The prompt in front of a text that is embedded.
    #[error(transparent)]
    Prompt(#[from] UnknownPrompt),
    /// The model does something else.
    #[error("`{}` {does}, and cannot {asked}", .path.display())]
    Kind {
        /// The model.
        path: PathBuf,
        /// What it does.
        does: &'static str,
        /// What was asked of it.
        asked: &'static str,
    },
    /// Text, for a model without a tokenizer.
    #[error("`{}` has no `tokenizer.json`; use token ids instead of text", .path.display())]
    NoTokenizer {
        /// The model.
        path: PathBuf,
    },
    /// A draft model whose tokens mean something else.
    #[error(
        "the draft model `{}` has another tokenizer than `{}`, so its tokens mean something else; expected a model of the \
         same family", .draft.display(), .path.display()
    )]
    DraftTokenizer {
        /// The draft model.
        draft: PathBuf,
        /// The model that it drafts for.
        path: PathBuf,
    },
    /// An option that an export has decided otherwise.
    #[error(
        "`{option}` is {asked}, but the model was exported with {exported}; leave the option out, or export again"
    )]
    AsExported {
        /// The option.
        option: &'static str,
        /// What was asked for.
        asked: String,
        /// What the export has.
        exported: String,
    },
    /// An option of compiling, for an export.
    #[error(
        "`{option}` is for what is compiled now, and an export is compiled; leave the option out, or export again with it"
    )]
    Compiled {
        /// The option.
        option: &'static str,
    },
    /// A target for another kind of device.
    #[error("the target is for {target} and the device is {device}; name a target of that device")]
    Target {
        /// The kind of device that the target is.
        target: DeviceKind,
        /// The kind of device that was named.
        device: DeviceKind,
    },
    /// No folder for what can be made again.
    #[error("there is no home folder for the cache; set `cache` to a folder")]
    NoCache,
    /// The program that renders chat templates does not start.
    #[error("the program that renders chat templates does not start")]
    Program(#[source] io::Error),
    /// The program that renders chat templates reported an error.
    #[error("{message}")]
    Template {
        /// What it wrote on stderr.
        message: String,
    },
    /// The program that renders chat templates was ended by the system.
    #[error("the model's chat template takes more memory or time than is allowed")]
    TemplateLimit,
    /// The engine has no thread.
    #[error("the engine's thread does not start")]
    Thread(#[source] io::Error),
    /// The engine's thread has ended.
    #[error("the engine has ended; open the model again")]
    Gone,
}

impl fmt::Debug for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        WithCauses(self).fmt(f)
    }
}

impl From<PlanError> for ModelError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error.into())
    }
}

impl From<ExportError> for ModelError {
    fn from(error: ExportError) -> Self {
        Self::Export(error.into())
    }
}

impl From<ManifestError> for ModelError {
    fn from(error: ManifestError) -> Self {
        ExportError::from(error).into()
    }
}

impl From<CompileError> for ModelError {
    fn from(error: CompileError) -> Self {
        Self::Load(error.into())
    }
}

impl From<RuntimeError> for ModelError {
    fn from(error: RuntimeError) -> Self {
        Self::Load(error.into())
    }
}
