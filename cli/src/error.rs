//! Everything that ends a command, and which flag helps.

use std::io;
use std::path::PathBuf;
#[cfg(feature = "iree")]
use std::sync::Arc;

#[cfg(feature = "iree")]
use console::usage;
use console::{CommandError, ConsoleError};
use error_codes::{Code, Coded, UnknownCode};
#[cfg(feature = "iree")]
use instruments::{bench::BenchError, bisect::BisectError, tune::TuneError};
use tracewright::PlanError;
use tracewright::bake::BakeError;
use tracewright::errors::{FileError, LISTED, Place, escaped};
use tracewright::export::xla::XlaError;
use tracewright::files::limits;
use tracewright::footprint::{Phase, TooLarge};
use tracewright::irpa::ArchiveError;
use tracewright::lower::LowerError;
use tracewright::models::OtherSizes;
use tracewright::models::config::ConfigError;
use tracewright::output_guard::OverwritesModel;
use tracewright::random::RandomError;
use tracewright::tuning::TuningFileError;
#[cfg(feature = "iree")]
use tracewright::{
    ModelError,
    build::LoadError,
    embed::EmbedError,
    export::{ExportError, ManifestError},
    generate,
    models::UnknownPrompt,
    runtime::{self, CompileError},
};

#[cfg(feature = "iree")]
use crate::limit::Limit;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(
    not(feature = "iree"),
    allow(dead_code, reason = "some errors are those of `generate`, `embed` and `export`")
)]
pub enum Error {
    /// This binary has no runtime.
    #[cfg(not(feature = "iree"))]
    #[error(
        "`{command}` needs the IREE runtime, and this binary was built without it; \
         build with `cargo build --release --features iree` after `cargo xtask setup`, \
         or run `cargo xtask demo`, which does both"
    )]
    WithoutIree {
        /// The command.
        command: &'static str,
    },
    /// What every command line may have.
    #[error(transparent)]
    Console(#[from] ConsoleError),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Two forms of one network give different numbers.
    #[cfg(feature = "iree")]
    #[error("the two differ, first at `{path}`")]
    Differs {
        /// The field path.
        path: String,
    },
    /// What should be verified does not say what it should be.
    #[error("`{}` carries no hashes: there is nothing to compare it with", .path.display())]
    WithoutHashes {
        /// The archive.
        path: PathBuf,
    },
    /// This program cannot be started once more.
    #[error("cannot start a process for the chat template")]
    Program(#[source] io::Error),
    /// What another process of this program said, with its causes.
    #[error("{what}")]
    Said {
        /// The code of its error.
        code: Code,
        /// Its message.
        what: String,
    },
    /// Not everything is there that is needed.
    #[cfg(feature = "iree")]
    #[error("{missing} of {looked_at} checks failed")]
    Missing {
        /// How many are not.
        missing: usize,
        /// How many were looked at.
        looked_at: usize,
    },
    /// A file of messages that is none.
    #[error("`{}` is not a JSON list of messages", .path.display())]
    Messages {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file of tools or of documents that is no list.
    #[error("`{}` is not a JSON list of {what}", .path.display())]
    NoList {
        /// The file.
        path: std::path::PathBuf,
        /// `tools` or `documents`.
        what: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A tool or a document that is none.
    #[error("{place} in `{}` is {found}, expected {expected}", .path.display())]
    Entry {
        /// The file.
        path: std::path::PathBuf,
        /// `tools` or `documents`.
        what: &'static str,
        /// Which key of which entry.
        place: String,
        /// What is there.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
    /// A variable that the chat template has no use for.
    #[error("`{}` has no effect: the chat template does not use `{name}`", option(.name))]
    Unread {
        /// The variable.
        name: String,
        /// Those that the template reads.
        variables: Vec<String>,
    },
    /// What is typed cannot be read.
    #[cfg(feature = "iree")]
    #[error("cannot read from the terminal")]
    Typed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The chat template was stopped.
    #[error(
        "the chat template was stopped: it takes more than {} s or {} MiB, nests too deep, or writes more \
         than {} MiB",
        limits::TEMPLATE_SECONDS, limits::TEMPLATE_MEMORY >> 20, limits::PROMPT >> 20
    )]
    Template,
    /// The system gives no thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// More tokens than a network takes.
    #[cfg(feature = "iree")]
    #[error("{what} has {found} tokens, expected at most {limit}")]
    TooLong {
        /// What has them: `the prompt`.
        what: String,
        /// How many they are.
        found: usize,
        /// How many there may be.
        limit: Limit,
    },
    #[error(transparent)]
    Sizes(#[from] OtherSizes),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error(transparent)]
    Code(#[from] UnknownCode),
    /// An archive of the cache.
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Cached(ArchiveError),
    #[error(transparent)]
    Bake(#[from] BakeError),
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error(transparent)]
    Xla(XlaError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Export(ExportError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Load(#[from] LoadError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Generate(#[from] generate::GenerateError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// What only a model that is open says.
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Model(Box<ModelError>),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Bench(BenchError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Quality(instruments::quality::QualityError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Tune(TuneError),
    #[error(transparent)]
    TuningFile(#[from] TuningFileError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Bisect(BisectError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Prompt(#[from] UnknownPrompt),
    /// A schema or a grammar that an answer cannot follow.
    #[cfg(feature = "iree")]
    #[error("no answer can follow `{}`", .path.display())]
    Followed {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: generate::GenerateError,
    },
    #[cfg(feature = "iree")]
    #[error("cannot write `{}`", .path.display())]
    Logits {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: safetensors::SafeTensorError,
    },
}

impl From<XlaError> for Error {
    fn from(error: XlaError) -> Self {
        match error {
            XlaError::Plan(error) => error.into(),
            XlaError::Bake(error) => Self::Bake(error),
            XlaError::Archive(error) => error.into(),
            XlaError::File(error) => error.into(),
            error => Self::Xla(error),
        }
    }
}

#[cfg(feature = "iree")]
impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::File(error) => error.into(),
            ModelError::Config(error) => error.into(),
            ModelError::Sizes(error) => error.into(),
            ModelError::Archive(error) => error.into(),
            ModelError::Cached(error) => Self::Cached(error),
            ModelError::Plan(error) => (*error).into(),
            ModelError::Load(error) => error.into(),
            ModelError::Export(error) => (*error).into(),
            ModelError::Tuning(error) => error.into(),
            ModelError::Generate(error) => error.into(),
            ModelError::Failed(error) => match Arc::try_unwrap(error) {
                Ok(error) => error.into(),
                Err(shared) => Self::Model(ModelError::Failed(shared).into()),
            },
            ModelError::Embed(error) => error.into(),
            ModelError::Prompt(error) => error.into(),
            ModelError::Program(error) => Self::Program(error),
            ModelError::Thread(error) => Self::Thread(error),
            ModelError::Template { message } => said(&message).unwrap_or(Self::Template),
            ModelError::TemplateLimit => Self::Template,
            ModelError::AsExported { option, asked, exported } => usage(format!(
                "`--{option}` is {asked}, but the model was exported with {exported}; leave the option out, or export again"
            ))
            .into(),
            ModelError::Compiled { option } => usage(format!(
                "`--{option}` changes the compilation, and an export is compiled already; leave the option \
                 out, or export again with it"
            ))
            .into(),
            ModelError::NoCache => usage("there is no home folder for the cache; name a folder with \
                `--cache`").into(),
            error => Self::Model(error.into()),
        }
    }
}

console::from_console!(Error: ArchiveError ConfigError FileError LowerError OverwritesModel PlanError);

#[cfg(feature = "iree")]
impl From<generate::TemplateError> for Error {
    fn from(error: generate::TemplateError) -> Self {
        Self::Generate(error.into())
    }
}

#[cfg(feature = "iree")]
impl From<ManifestError> for Error {
    fn from(error: ManifestError) -> Self {
        Self::Export(error.into())
    }
}

#[cfg(feature = "iree")]
impl From<runtime::RuntimeError> for Error {
    fn from(error: runtime::RuntimeError) -> Self {
        Self::Load(error.into())
    }
}

#[cfg(feature = "iree")]
impl From<ExportError> for Error {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Plan(error) => error.into(),
            ExportError::Load(error) => Self::Load(error),
            ExportError::Compile(error) => error.into(),
            error => Self::Export(error),
        }
    }
}

#[cfg(feature = "iree")]
impl From<CompileError> for Error {
    fn from(error: CompileError) -> Self {
        Self::Load(error.into())
    }
}

#[cfg(feature = "iree")]
impl From<BenchError> for Error {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Plan(error) => error.into(),
            BenchError::Load(error) => error.into(),
            BenchError::Random(error) => error.into(),
            BenchError::Generate(error) => error.into(),
            BenchError::Stopped => Self::Interrupted,
            error => Self::Bench(error),
        }
    }
}

#[cfg(feature = "iree")]
impl From<BisectError> for Error {
    fn from(error: BisectError) -> Self {
        match error {
            BisectError::Lower(error) => error.into(),
            BisectError::Load(error) => error.into(),
            BisectError::Runtime(error) => error.into(),
            BisectError::File(error) => error.into(),
            BisectError::Stopped => Self::Interrupted,
            error => Self::Bisect(error),
        }
    }
}

#[cfg(feature = "iree")]
impl From<TuneError> for Error {
    fn from(error: TuneError) -> Self {
        match error {
            TuneError::Plan(error) => error.into(),
            TuneError::Compile(error) => error.into(),
            TuneError::File(error) => error.into(),
            TuneError::Bench(error) => (*error).into(),
            TuneError::Stopped => Self::Interrupted,
            error => Self::Tune(error),
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            #[cfg(not(feature = "iree"))]
            Self::WithoutIree { .. } => Code::TW0002,
            Self::Console(error) => error.code(),
            Self::Interrupted => Code::TW0005,
            #[cfg(feature = "iree")]
            Self::Differs { .. } => Code::TW1001,
            Self::WithoutHashes { .. } => Code::TW0304,
            Self::Program(_) | Self::Thread(_) => Code::TW0004,
            Self::Said { code, .. } => *code,
            Self::Messages { .. } => Code::TW0810,
            Self::NoList { .. } | Self::Entry { .. } => Code::TW0820,
            Self::Unread { .. } => Code::TW0821,
            #[cfg(feature = "iree")]
            Self::Missing { .. } => Code::TW1005,
            #[cfg(feature = "iree")]
            Self::Typed(_) => Code::TW0006,
            #[cfg(feature = "iree")]
            Self::Followed { source, .. } => source.code(),
            Self::Template => Code::TW0809,
            #[cfg(feature = "iree")]
            Self::TooLong { .. } => Code::TW0816,
            Self::Sizes(error) => error.code(),
            Self::TooLarge(error) => error.code(),
            Self::Code(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Cached(error) => error.code(),
            Self::Xla(error) => error.code(),
            Self::Bake(error) => error.code(),
            Self::Random(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Export(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Load(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Generate(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Embed(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Model(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Bench(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Quality(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Tune(error) => error.code(),
            Self::TuningFile(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Bisect(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Prompt(error) => error.code(),
            #[cfg(feature = "iree")]
            Self::Logits { .. } => Code::TW0006,
        }
    }

    fn places(&self) -> Vec<Place> {
        match self {
            Self::Console(error) => error.places(),
            Self::Bake(error) => error.places(),
            #[cfg(feature = "iree")]
            Self::Load(error) => error.places(),
            #[cfg(feature = "iree")]
            Self::Export(error) => error.places(),
            #[cfg(feature = "iree")]
            Self::Bench(error) => error.places(),
            #[cfg(feature = "iree")]
            Self::Tune(error) => error.places(),
            #[cfg(feature = "iree")]
            Self::Bisect(error) => error.places(),
            _ => Vec::new(),
        }
    }
}

impl CommandError for Error {
    fn help(&self) -> Vec<String> {
        let flag = match self {
            Self::Console(error) => return error.help(),
            Self::NoList { what, .. } | Self::Entry { what, .. } => match *what {
                "tools" => {
                    r#"a tool is `{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}`"#
                }
                _ => r#"a document is an object, such as `{"title": …, "text": …}`"#,
            },
            Self::Unread { name, variables } => return unread(name, variables),
            Self::WithoutHashes { .. } => "`bake` without `--no-metadata` writes them",
            Self::Xla(XlaError::Shard(_)) => {
                "`--shard AXES=MESH_AXIS` divides axes along one of `--mesh`, `--shard AXES=none` leaves them whole"
            }
            Self::Xla(XlaError::Quantized) => "leave out `--quant`",
            #[cfg(feature = "iree")]
            Self::Bench(BenchError::Chunks { .. }) => "`--tokens N` and `--chunk N` set them",
            #[cfg(feature = "iree")]
            Self::Bench(BenchError::NotWatched) => "leave out `--device`",
            #[cfg(feature = "iree")]
            Self::Bench(BenchError::Depth { .. }) => {
                "`--depth N` sets the depth, `--context N` the context, up to the model's own limit"
            }
            Self::TooLarge(error) => return smaller(error),
            #[cfg(feature = "iree")]
            Self::Load(LoadError::TooLarge(error)) => return smaller(error),
            #[cfg(feature = "iree")]
            Self::TooLong { limit, .. } => {
                return vec![limit.raised().unwrap_or_else(|| "shorten the text".into())];
            }
            #[cfg(feature = "iree")]
            Self::Generate(generate::GenerateError::Setting { name, .. }) => {
                return setting(name).map(|flag| format!("`{flag}` sets it")).into_iter().collect();
            }
            #[cfg(feature = "iree")]
            Self::Export(ExportError::Architecture { .. } | ExportError::Cpu { .. }) => {
                "`export` it here, or elsewhere with `--target` for this machine"
            }
            #[cfg(feature = "iree")]
            Self::Cached(ArchiveError::Content { .. }) => "remove that file: Tracewright bakes it again",
            #[cfg(feature = "iree")]
            Self::Load(LoadError::Compile(error)) => match error {
                CompileError::NotFound { .. } => {
                    "`--iree-compile PATH` names it; `cargo xtask setup` installs it into the checkout"
                }
                CompileError::TimedOut { .. } => "`--compile-timeout SECONDS` gives it longer",
                _ => return Vec::new(),
            },
            _ => return Vec::new(),
        };
        vec![flag.to_owned()]
    }

    fn console(&self) -> Option<&ConsoleError> {
        match self {
            Self::Console(error) => Some(error),
            _ => None,
        }
    }

    fn is_interruption(&self) -> bool {
        matches!(self, Self::Interrupted)
    }
}

/// The flag of a setting of the sampling.
#[cfg(feature = "iree")]
fn setting(name: &str) -> Option<&'static str> {
    const FLAGS: [(&str, &str); 14] = [
        ("temperature", "--temp"),
        ("top_p", "--top-p"),
        ("min_p", "--min-p"),
        ("typical_p", "--typical"),
        ("top_n_sigma", "--top-nsigma"),
        ("penalties.repeat", "--repeat-penalty"),
        ("penalties.frequency", "--frequency-penalty"),
        ("penalties.presence", "--presence-penalty"),
        ("dry.multiplier", "--dry-multiplier"),
        ("dry.base", "--dry-base"),
        ("xtc.probability", "--xtc-probability"),
        ("xtc.threshold", "--xtc-threshold"),
        ("mirostat.target", "--mirostat-ent"),
        ("mirostat.rate", "--mirostat-lr"),
    ];
    FLAGS.iter().find(|(known, _)| *known == name).map(|(_, flag)| *flag)
}

/// The option that sets a variable.
fn option(name: &str) -> String {
    match name {
        "tools" | "documents" => format!("--{name}"),
        "enable_thinking" => "--thinking".to_owned(),
        name => format!("--template-var {name}"),
    }
}

/// What to do about a variable that the chat template does not read.
fn unread(name: &str, variables: &[String]) -> Vec<String> {
    let others =
        variables.iter().filter(|name| !matches!(name.as_str(), "messages" | "add_generation_prompt"));
    let others: Vec<_> = others.take(LISTED).map(|name| format!("`{}`", escaped(name))).collect();
    let leave_out = format!("leave out `{}`", option(name));
    match others.is_empty() {
        true => vec![leave_out],
        false => vec![leave_out, format!("the template uses {}", others.join(", "))],
    }
}

/// Which flags make a network smaller.
fn smaller(error: &TooLarge) -> Vec<String> {
    match error.state + error.activations > error.weights {
        true => vec!["`--context N` sets a shorter context, `--chunk N` a smaller chunk".to_owned()],
        false if error.what == Phase::Device => {
            vec!["`--mesh` with more devices gives each a smaller part".to_owned()]
        }
        false => vec!["`--quant q8` or `--quant q4` stores weights in fewer bits".to_owned()],
    }
}

/// The error that this program printed in another process.
#[cfg(feature = "iree")]
fn said(text: &str) -> Option<Error> {
    let (code, what) = console::told(text)?;
    Some(Error::Said { code, what: what.to_owned() })
}
