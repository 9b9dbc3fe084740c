//! Errors that every command line has, and how errors are printed.

use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, FromArgMatches};
use error_codes::{Code, Coded};
use tracewright::PlanError;
use tracewright::errors::{FileError, LISTED, Place, WithCauses};
use tracewright::irpa::ArchiveError;
use tracewright::lower::LowerError;
use tracewright::models::config::{ConfigError, KeyProblem};
use tracewright::output_guard::OverwritesModel;

use crate::source;

/// Why a command of any command line failed.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// Arguments that do not go together.
    #[error("{what}")]
    Usage {
        /// What is wrong, and what to do.
        what: String,
    },
    /// stdout is closed.
    #[error("cannot write to stdout")]
    Output(#[source] io::Error),
    /// The name of a model on the Hugging Face hub, where a path is expected.
    #[error(
        "`{name}` is not a folder or file here, but looks like a name on the Hugging Face hub; Tracewright downloads nothing"
    )]
    HubName {
        /// The name.
        name: String,
        /// The folder of its download, if there is one.
        downloaded: Option<PathBuf>,
    },
    /// Neither a model nor the name of one.
    #[error(transparent)]
    NoModel(FileError),
    /// A file that cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A configuration that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A network that cannot be built as asked.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Weights that cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// An output that would replace a file of the model.
    #[error(transparent)]
    Own(#[from] OverwritesModel),
}

impl From<LowerError> for ConsoleError {
    fn from(error: LowerError) -> Self {
        Self::Plan(error.into())
    }
}

/// Arguments that do not go together.
pub fn usage(what: impl Into<String>) -> ConsoleError {
    ConsoleError::Usage { what: what.into() }
}

impl Coded for ConsoleError {
    fn code(&self) -> Code {
        match self {
            Self::Usage { .. } => Code::TW0001,
            Self::Output(_) => Code::TW0003,
            Self::HubName { .. } => Code::TW0212,
            Self::File(error) | Self::NoModel(error) => error.code(),
            Self::Config(error) => error.code(),
            Self::Plan(error) => error.code(),
            Self::Archive(error) => error.code(),
            Self::Own(error) => error.code(),
        }
    }

    fn places(&self) -> Vec<Place> {
        match self {
            Self::Plan(error) => error.places(),
            _ => Vec::new(),
        }
    }
}

/// An error that ends a command.
pub trait CommandError: Coded + 'static {
    /// What the library cannot know: which option to give.
    fn help(&self) -> Vec<String>;

    /// The error of all command lines that it is, if it is one.
    fn console(&self) -> Option<&ConsoleError>;

    /// Whether Ctrl-C ended the command.
    fn is_interruption(&self) -> bool {
        false
    }
}

impl CommandError for ConsoleError {
    fn help(&self) -> Vec<String> {
        let help = match self {
            Self::Config(ConfigError::Keys { problems, .. }) => {
                let unknown = problems.iter().filter_map(|problem| match problem {
                    KeyProblem::Unknown { key, .. } => Some(key),
                    _ => None,
                });
                return unknown
                    .take(LISTED)
                    .map(|key| format!("`--allow-config-key {key}` proceeds without it"))
                    .collect();
            }
            Self::Config(ConfigError::Embeds { .. }) => {
                "only `tracewright embed` takes it, which computes embeddings"
            }
            Self::Config(ConfigError::Generates { .. }) => {
                "use `tracewright generate`: it continues text with this model"
            }
            Self::NoModel(_) => "`trace-dump presets` lists the published sizes that have a name",
            Self::Plan(PlanError::Length { .. }) => "`--length N` sets the length",
            Self::Plan(PlanError::Context { .. }) => "`--context N` sets the context",
            Self::Plan(PlanError::Chunk { .. }) => "`--chunk N` sets the chunk",
            Self::Plan(PlanError::Element(_)) => "`--dtype TYPE` sets the element type",
            Self::HubName { downloaded: Some(folder), .. } => {
                return vec![format!("name the folder of its download: `{}`", folder.display())];
            }
            Self::HubName { name, downloaded: None } => {
                return vec![format!("`hf download {name}` downloads it, and prints the folder to name")];
            }
            _ => return Vec::new(),
        };
        vec![help.to_owned()]
    }

    fn console(&self) -> Option<&ConsoleError> {
        Some(self)
    }
}

/// The beginning of a printed error, in front of its code.
const BEGINNING: &str = "error[";

/// The code and the message of an error that [`exit`] printed in another process.
pub fn told(text: &str) -> Option<(Code, &str)> {
    let (code, what) = text.strip_prefix(BEGINNING)?.split_once("]: ")?;
    Some((code.parse().ok()?, what.trim_end()))
}

/// The arguments of this process. Where they are wrong it ends here, as an error does.
pub fn parsed<A: FromArgMatches>(command: Command) -> A {
    let read = command.try_get_matches().and_then(|matches| A::from_arg_matches(&matches));
    read.unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        let text = error.render().ansi().to_string();
        let coded = format!("error[{}]:", Code::TW0001);
        // Where stderr is full, the exit code still reports the error.
        let _ = write!(anstream::stderr(), "{}", text.replacen("error:", &coded, 1));
        std::process::exit(error.exit_code())
    })
}

/// Prints an error: its code, its message with its causes, which option helps, the lines of Rust that it is about.
pub fn tell(error: &impl CommandError) {
    say!("{BEGINNING}{}]: {}", error.code(), WithCauses(error));
    error.help().iter().for_each(|help| say!("  help: {help}"));
    source::show(&error.places());
}

/// Prints how a command ended, which Ctrl-C may have `interrupted`.
pub fn exit(result: Result<(), impl CommandError>, interrupted: bool) -> ExitCode {
    const INTERRUPTED: u8 = 130;
    let Err(error) = result else { return ExitCode::SUCCESS };
    match error.console() {
        // A reader that has seen enough, as `head`, is no failure.
        Some(ConsoleError::Output(closed)) if closed.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        _ if error.is_interruption() => {
            say!("interrupted");
            ExitCode::from(INTERRUPTED)
        }
        _ if interrupted => {
            say!("interrupted: {error}");
            ExitCode::from(INTERRUPTED)
        }
        console => {
            tell(&error);
            match console {
                Some(ConsoleError::Usage { .. }) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
