//! The error type of [`Model`](super::Model) and its requests.

use std::fmt::{self, Display as _};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use audio::AudioError;
use errors::{FileError, WithCauses};
use generate::GenerateError;
use hub::HubError;
use irpa::ArchiveError;
use models::config::ConfigError;
use models::fit::FitError;
use models::{LoraError, MtpError, OtherSizes, UnknownPrompt};
use pixels::ImageError;
use pjrt::PjrtError;
use program::AdapterError;
use runtime::{CompileError, RuntimeError};
use targets::{DeviceKind, DeviceName, Mesh, ShardRule};

use crate::PlanError;
use crate::build::LoadError;
use crate::embed::EmbedError;
use crate::export::xla::XlaError;
use crate::export::{ExportError, ManifestError};
use crate::tuning::TuningFileError;

/// The reason why a [`Model`](super::Model) cannot be opened, or cannot answer.
///
/// The `Debug` output shows the message and its causes, because a `main` function that returns an error
/// prints the error with `Debug`.
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
    /// The `config.json` cannot be read, or has invalid values.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An adapter cannot be added to the model.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// An adapter does not fit the places that the model has for adapters.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// Two adapters of a model have the same name.
    #[error("the model has an adapter `{name}` already; unload it first, or choose another name")]
    AdapterName {
        /// The name.
        name: String,
    },
    /// An option for adapters is out of its range.
    #[error("the option `{option}` is {found}, expected a number from 1 to {most}")]
    AdapterLimit {
        /// The name of the option.
        option: &'static str,
        /// The number.
        found: usize,
        /// The largest number.
        most: usize,
    },
    /// All places for adapters are taken.
    #[error(
        "the model has room for {count} adapters, and all are in use; unload an adapter, or open the model with room for \
         more"
    )]
    AdapterRoom {
        /// The number of places.
        count: usize,
    },
    /// The model has no adapter with the requested name.
    #[error("the model has no adapter `{name}`, expected one of {known:?}")]
    UnknownAdapter {
        /// The requested name.
        name: String,
        /// The adapters of the model.
        known: Vec<String>,
    },
    /// The name of a model on the Hugging Face hub could not be resolved.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The shapes of the weights differ from the shapes that the configuration declares.
    #[error(transparent)]
    Sizes(#[from] OtherSizes),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The archive in the cache is damaged. If you delete it, the next start writes a new one.
    #[error(transparent)]
    Cached(ArchiveError),
    /// The options set sizes that the model does not support, such as a context that is too long.
    #[error(transparent)]
    Plan(Box<PlanError>),
    /// Compiling the network, converting the weights or loading the network failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The network cannot be lowered for XLA, or the checkpoint does not fit the network.
    #[error(transparent)]
    Xla(Box<XlaError>),
    /// XLA or the PJRT plugin that contains XLA failed.
    #[error(transparent)]
    Plugin(#[from] PjrtError),
    /// The platform of the PJRT plugin and the selected device are different kinds of devices.
    #[error(
        "the plugin's platform is `{platform}`, but the device is `{device}`; name a plugin for this device"
    )]
    Platform {
        /// The kind of the selected device.
        device: DeviceKind,
        /// The platform that the plugin reports.
        platform: String,
    },
    /// The options set a mesh, but select no plugin of XLA.
    #[error(
        "the mesh is `{mesh}`, but IREE runs a network on one device; name a PJRT plugin, or leave out the mesh"
    )]
    MeshEngine {
        /// The mesh of devices that the options set.
        mesh: Mesh,
    },
    /// The options set a mesh, and also select a device with a number.
    #[error(
        "the device is `{device}`, but the mesh `{mesh}` begins at the first device; leave out the device's number"
    )]
    MeshDevice {
        /// The mesh of devices that the options set.
        mesh: Mesh,
        /// The device that the options select.
        device: DeviceName,
    },
    /// A sharding rule partitions axes, but the options set no mesh.
    #[error(
        "the sharding rule `{rule}` divides axes over a mesh, but no mesh is set; set a mesh, or leave out the rule"
    )]
    NoMesh {
        /// The first sharding rule that the options set.
        rule: ShardRule,
    },
    /// The exported model cannot be opened.
    #[error(transparent)]
    Export(Box<ExportError>),
    /// A file with the tuner's measurements cannot be read.
    #[error(transparent)]
    Tuning(#[from] TuningFileError),
    /// The tokenizer, the chat template, the sampling options or the network failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A call of the network failed. The failed call ended all running texts.
    #[error(transparent)]
    Failed(Arc<GenerateError>),
    /// An embedding cannot be computed.
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// The embedding model has no prompt with the requested name.
    #[error(transparent)]
    Prompt(#[from] UnknownPrompt),
    /// An audio file cannot be read, or the model's spectrogram has an invalid configuration.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// The tokenizer of a speech model lacks a token that asks for a transcript.
    #[error("the tokenizer of `{}` has no token `{token}`; use the tokenizer.json of a Whisper", .path.display())]
    SpeechToken {
        /// The path of the model.
        path: PathBuf,
        /// The missing token.
        token: String,
    },
    /// The model does not know the language.
    #[error("the language is `{found}`, expected one of {known:?}")]
    Language {
        /// The language that the caller asked for.
        found: String,
        /// The codes that the model knows.
        known: Vec<String>,
    },
    /// The model only transcribes English.
    #[error("`{}` transcribes English only, and cannot translate; use a multilingual model", .path.display())]
    EnglishOnly {
        /// The path of the model.
        path: PathBuf,
    },
    /// The model does not support the kind of request that the caller made.
    #[error("the model `{}` {does}, and cannot {asked}", .path.display())]
    Kind {
        /// The path of the model that does not support the request.
        path: PathBuf,
        /// The kind of request that the model supports.
        does: &'static str,
        /// The kind of request that the caller made.
        asked: &'static str,
    },
    /// A file is no image that can be read.
    #[error("the image `{}` cannot be read", .path.display())]
    Image {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: ImageError,
    },
    /// An image in a conversation cannot be read.
    #[error("image {number} of the conversation cannot be read")]
    ImagePart {
        /// From 1, in the order of the messages.
        number: usize,
        /// The reason.
        source: ImageError,
    },
    /// The chat template or the tokenizer gives another number of placeholders.
    #[error(
        "the conversation has {found} placeholders of images, expected {expected}\nhelp: use the chat template and \
        the tokenizer that the model was published with"
    )]
    Placeholders {
        /// In the rendered conversation.
        found: usize,
        /// The number that the images need.
        expected: usize,
    },
    /// The tokenizer lacks a token that stands around or in place of images.
    #[error(
        "the tokenizer of `{}` has no special token `{name}`{}\nhelp: use the tokenizer that the model was \
        published with", .path.display(), .token.map(|token| format!(" with the id {token}")).unwrap_or_default()
    )]
    ImageToken {
        /// The path of the model.
        path: PathBuf,
        /// The text of the token.
        name: &'static str,
        /// The id in `config.json`.
        token: Option<u32>,
    },
    /// The request contains text, but the model has no tokenizer.
    #[error("`{}` has no `tokenizer.json`; use token ids instead of text", .path.display())]
    NoTokenizer {
        /// The path of the model that has no tokenizer.
        path: PathBuf,
    },
    /// The tokenizer of the draft model differs from the tokenizer of the large model.
    #[error(
        "the draft model `{}` has another tokenizer than `{}`, so the two models use different token ids; \
        choose a draft model of the same family", .draft.display(), .path.display()
    )]
    DraftTokenizer {
        /// The path of the draft model.
        draft: PathBuf,
        /// The path of the large model, which verifies the draft tokens.
        path: PathBuf,
    },
    /// The model cannot propose draft tokens with a module for multi-token prediction.
    #[error(
        "`{}` cannot draft with multi-token prediction; use another drafting method, such as `lookup`",
        .path.display()
    )]
    Mtp {
        /// The path of the model.
        path: PathBuf,
        /// The reason why Tracewright cannot use a module for multi-token prediction.
        source: MtpError,
    },
    /// An option differs from the value in the export.
    #[error(
        "`{option}` is {asked}, but the model was exported with {exported}; leave the option out, or export \
        the model again"
    )]
    AsExported {
        /// The name of the option that differs, as in [`OpenOptions`](super::OpenOptions).
        option: &'static str,
        /// The value that the caller set for the option.
        asked: String,
        /// The value of the option in the exported model.
        exported: String,
    },
    /// The option affects the compilation, but the model is an export, whose network is already compiled.
    #[error(
        "`{option}` changes the compilation, but an export is already compiled; leave the option out, or \
        export the model again with this option"
    )]
    Compiled {
        /// The name of the option that affects the compilation, as in [`OpenOptions`](super::OpenOptions).
        option: &'static str,
    },
    /// The compilation target and the selected device are different kinds of devices.
    #[error("the target is for {target}, but the device is {device}; name a target for this device")]
    Target {
        /// The kind of device that the target describes.
        target: DeviceKind,
        /// The kind of the selected device.
        device: DeviceKind,
    },
    /// No cache folder is set, and the user has no home folder.
    #[error("the system has no home folder for the cache; set `cache` to a folder")]
    NoCache,
    /// The program that renders chat templates cannot be started.
    #[error("the system cannot start the program that renders chat templates")]
    Program(#[source] io::Error),
    /// The program that renders chat templates reported an error.
    #[error("{message}")]
    Template {
        /// The code of the error in the program.
        code: String,
        /// The error with its causes.
        message: String,
        /// Remedies.
        help: Vec<String>,
    },
    /// The chat template does not read a variable, which therefore has no effect.
    #[error("the chat template does not use `{name}`; leave it out")]
    UnreadVariable {
        /// The name of the variable, or `tools`.
        name: String,
        /// The variables that the template reads.
        variables: Vec<String>,
    },
    /// The chat template exceeded a limit of time or memory, so the system ended its program.
    #[error("the model's chat template takes more memory or time than the limit allows")]
    TemplateLimit,
    /// The thread of the engine cannot be started.
    #[error("the system cannot start the engine's thread")]
    Thread(#[source] io::Error),
    /// The engine thread, which runs the model, has ended.
    #[error("the engine's thread has ended; open the model again")]
    Gone,
}

impl fmt::Debug for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        WithCauses(self).fmt(f)
    }
}

impl From<FitError> for ModelError {
    fn from(error: FitError) -> Self {
        match error {
            FitError::Config(error) => Self::Config(error),
            FitError::Archive(error) => Self::Archive(error),
            FitError::Sizes(error) => Self::Sizes(error),
        }
    }
}

impl From<PlanError> for ModelError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error.into())
    }
}

impl From<XlaError> for ModelError {
    fn from(error: XlaError) -> Self {
        Self::Xla(error.into())
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
