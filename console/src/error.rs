//! Errors that every command line has, and how errors are printed.

use std::error::Error;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{Command, FromArgMatches};
use error_codes::{AnyCoded, Code, Coded, coded};
use hub::{HubError, ModelName};
use tracewright::PlanError;
use tracewright::errors::{FileError, LISTED, WithCauses};
use tracewright::irpa::ArchiveError;
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
    /// The name of a model on the Hugging Face hub that is not in the cache.
    #[error("`{name}` is not a folder or file here, and not in the cache of the Hugging Face hub")]
    NotDownloaded {
        /// The name.
        name: ModelName,
    },
    /// A name that does not lead to a model.
    #[error(transparent)]
    Hub(#[from] HubError),
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

/// Arguments that do not go together.
pub fn usage(what: impl Into<String>) -> ConsoleError {
    ConsoleError::Usage { what: what.into() }
}

coded! {
    ConsoleError: Hub NoModel File Config Plan Archive Own {
        TW0001: Usage;
        TW0003: Output;
        TW0212: NotDownloaded;
    }
}

/// An error that ends a command: one that only this command line has, or any that has a code.
pub trait CommandError: Error + 'static {
    fn code(&self) -> Code;

    /// Which option to give, which the library cannot know.
    fn help(&self) -> Vec<String>;

    /// The error that others have too, if it is one.
    fn library(&self) -> Option<&AnyCoded>;

    /// Whether Ctrl-C ended the command.
    fn is_interruption(&self) -> bool {
        false
    }
}

/// Which option helps in any command line.
pub fn help(error: &AnyCoded) -> Vec<String> {
    let help = if let Some(error) = error.find() {
        match error {
            ConfigError::Keys { problems, .. } => {
                let unknown = problems.iter().filter_map(|problem| match problem {
                    KeyProblem::Unknown { key, .. } => Some(key),
                    _ => None,
                });
                return unknown
                    .take(LISTED)
                    .map(|key| format!("`--allow-config-key {key}` proceeds without it"))
                    .collect();
            }
            ConfigError::Embeds { .. } => "only `tracewright embed` takes it, which makes vectors of texts",
            ConfigError::Generates { .. } => "use `tracewright generate`: it continues text with this model",
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
            Some(ConsoleError::NoModel(_)) => {
                "`trace-dump presets` lists the published sizes that have a name"
            }
            Some(ConsoleError::NotDownloaded { name }) => {
                return vec![format!("`tracewright models --fetch {name}` downloads it")];
            }
            _ => return Vec::new(),
        }
    };
    vec![help.to_owned()]
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
    source::show(&error.library().map_or_else(Vec::new, Coded::places));
}

/// Prints how a command ended, which Ctrl-C may have `interrupted`.
pub fn exit(result: Result<(), impl CommandError>, interrupted: bool) -> ExitCode {
    const INTERRUPTED: u8 = 130;
    let Err(error) = result else { return ExitCode::SUCCESS };
    match error.library().and_then(AnyCoded::find) {
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
