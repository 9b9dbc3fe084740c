//! Why a command of `trace-dump` fails.

use console::{CommandError, ConsoleError};
use error_codes::{Code, Coded};
use instruments::profile::ProfileError;
use tracewright::PlanError;
use tracewright::errors::{FileError, Place};
use tracewright::lower::LowerError;
use tracewright::output_guard::OverwritesModel;
use tracewright::simplify::ExplainError;

#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error(transparent)]
    Console(#[from] ConsoleError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Some target has no program for a network.
    #[error("{} refuses the network", .targets.join(", "))]
    Refused { targets: Vec<String> },
}

console::from_console!(InspectError: FileError LowerError OverwritesModel PlanError);

impl Coded for InspectError {
    fn code(&self) -> Code {
        match self {
            Self::Console(error) => error.code(),
            Self::Explain(error) => error.code(),
            Self::Profile(error) => error.code(),
            Self::Refused { .. } => Code::TW1009,
        }
    }

    fn places(&self) -> Vec<Place> {
        self.console().map_or_else(Vec::new, Coded::places)
    }
}

impl CommandError for InspectError {
    fn help(&self) -> Vec<String> {
        match self {
            Self::Console(error) => error.help(),
            Self::Profile(ProfileError::Variant { .. }) => {
                vec!["without size options, `trace-dump` uses those of the profile".to_owned()]
            }
            _ => Vec::new(),
        }
    }

    fn console(&self) -> Option<&ConsoleError> {
        match self {
            Self::Console(error) => Some(error),
            _ => None,
        }
    }
}
