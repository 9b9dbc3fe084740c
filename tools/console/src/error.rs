//! Defines the errors that the command lines `tracewright` and `trace-dump` share, and prints errors.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use error_codes::{AnyCoded, Code, Coded, coded};
use hub::{HubError, ModelName};
use tracewright::PlanError;
use tracewright::errors::{FileError, LISTED, WithCauses};
use tracewright::irpa::{ArchiveError, GgufPart, UnsupportedFormat};
use tracewright::models::config::{ConfigError, KeyProblem};
use tracewright::output_guard::OverwritesModel;

use crate::source;
use crate::variables::variables_help;

/// The reason why a command of `tracewright` or `trace-dump` failed.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    #[error("{what}")]
    Usage {
        /// The text explains which arguments contradict each other, and how to fix the contradiction.
        what: String,
    },
    #[error("cannot write to stdout")]
    Output(#[source] io::Error),
    /// The path is the name of a model on the Hugging Face hub, but the model is not in the cache.
    #[error("`{name}` is not a local folder or file, and not a model in the cache of the Hugging Face hub")]
    NotDownloaded { name: ModelName },
    /// The path of a model does not exist, but resembles an existing path.
    #[error("`{}` does not exist, expected a model", .path.display())]
    Misspelled { path: PathBuf, near: PathBuf },
    /// The Hugging Face hub's cache cannot resolve the name of a model.
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    NoModel(FileError),
    /// A file that a command needs cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The network cannot be built with the given options.
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Own(#[from] OverwritesModel),
}

pub fn usage(what: impl Into<String>) -> ConsoleError {
    ConsoleError::Usage { what: what.into() }
}

coded! {
    ConsoleError: Hub NoModel File Config Plan Archive Own {
        TW0001: Usage;
        TW0003: Output;
        TW0006: Misspelled;
        TW0212: NotDownloaded;
    }
}

/// From the command line or from the library.
pub trait CommandError: Error + 'static {
    fn code(&self) -> Code;

    /// Names options, which the library does not know.
    fn help(&self) -> Vec<String>;

    fn library(&self) -> Option<&AnyCoded>;

    fn is_interruption(&self) -> bool {
        false
    }
}

/// Returns help texts for an error, which name only options that `tracewright` and `trace-dump` share.
pub fn help(error: &AnyCoded) -> Vec<String> {
    let help = if let Some(ArchiveError::Foreign {
        format: UnsupportedFormat::GgufPart(GgufPart::Imatrix),
        ..
    }) = error.find()
    {
        "`tracewright quantize MODEL --imatrix FILE -o DIR` quantizes a model with an importance matrix"
    } else if let Some(ArchiveError::Foreign {
        format: UnsupportedFormat::GgufPart(GgufPart::Adapter { .. }) | UnsupportedFormat::Adapter { .. },
        ..
    }) = error.find()
    {
        "`tracewright generate MODEL --lora PATH` adds a LoRA adapter to a model"
    } else if let Some(error) = error.find() {
        match error {
            ConfigError::Keys { problems, .. } => {
                let unknown = problems.iter().filter_map(|problem| match problem {
                    KeyProblem::Unknown { key, .. } => Some(key),
                    _ => None,
                });
                return unknown
                    .take(LISTED)
                    .map(|key| format!("`--allow-config-key {key}` ignores this key"))
                    .collect();
            }
            ConfigError::Embeds { .. } => "use `tracewright embed` to compute embeddings with this model",
            ConfigError::Scores { .. } => "use `tracewright rerank` to score texts with this model",
            ConfigError::Transcribes { .. } => {
                "use `tracewright transcribe` to transcribe speech with this model"
            }
            ConfigError::Generates { .. } => "use `tracewright generate` to generate text with this model",
            _ => return Vec::new(),
        }
    } else if let Some(error) = error.find() {
        match error {
            PlanError::Length { .. } => "`--length N` sets the length",
            PlanError::Context { .. } => "`--context N` sets the context",
            PlanError::Chunk { .. } => "`--chunk N` sets the chunk",
            PlanError::Element(_) => "`--dtype TYPE` sets the element type",
            _ => return Vec::new(),
        }
    } else if let Some(error) = error.find::<HubError>() {
        return error.help().into_iter().collect();
    } else {
        match error.find() {
            Some(ConsoleError::NoModel(_)) => "`trace-dump presets` lists the names of published models",
            Some(ConsoleError::Misspelled { path, near }) => {
                let name = ModelName::parse(&path.to_string_lossy());
                let hub = name.map(|name| format!("`hf://{name}` names a model on the Hugging Face hub"));
                return [format!("did you mean `{}`?", near.display())].into_iter().chain(hub).collect();
            }
            Some(ConsoleError::Usage { .. }) => return variables_help(),
            Some(ConsoleError::NotDownloaded { name }) => {
                return vec![format!("`tracewright models --fetch {name}` downloads the model")];
            }
            _ => return Vec::new(),
        }
    };
    vec![help.to_owned()]
}

/// Prints the code of an error, the message with all causes, the option that can fix the error, and
/// the relevant lines of Rust code.
pub fn tell(error: &impl CommandError) {
    say!("error[{}]: {}", error.code(), WithCauses(error));
    error.help().iter().for_each(|help| say!("  help: {help}"));
    source::show(&error.library().map_or_else(Vec::new, Coded::places));
}

/// `stopped` is the exit code for the signal that stopped the command.
pub fn exit(result: Result<(), impl CommandError>, stopped: Option<u8>) -> u8 {
    // The exit code after Ctrl-C, which another program can also request without a signal.
    const INTERRUPTED: u8 = 130;
    let Err(error) = result else { return 0 };
    match error.library().and_then(AnyCoded::find) {
        // A reader such as `head` closes the pipe early, which is no failure.
        Some(ConsoleError::Output(closed)) if closed.kind() == ErrorKind::BrokenPipe => 0,
        _ if error.is_interruption() => {
            say!("interrupted");
            stopped.unwrap_or(INTERRUPTED)
        }
        console => match stopped {
            Some(stopped) => {
                say!("interrupted: {error}");
                stopped
            }
            None => {
                tell(&error);
                match console {
                    Some(ConsoleError::Usage { .. }) => 2,
                    // The command line asks for a part of Tracewright that this binary lacks.
                    _ if error.code() == Code::TW0002 => 2,
                    _ => 1,
                }
            }
        },
    }
}
