//! The error of `trace-dump`'s commands.

use console::CommandError;
use error_codes::{AnyCoded, Code, Coded};
use instruments::profile::ProfileError;

#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error(transparent)]
    Library(AnyCoded),
    #[error("the network cannot be compiled for {}", .targets.join(", "))]
    Refused { targets: Vec<String> },
}

impl<E: Coded + Send + Sync + 'static> From<E> for InspectError {
    fn from(error: E) -> Self {
        Self::Library(AnyCoded::new(error))
    }
}

impl CommandError for InspectError {
    fn code(&self) -> Code {
        self.library().map_or(Code::TW1009, Coded::code)
    }

    fn help(&self) -> Vec<String> {
        let Some(error) = self.library() else { return Vec::new() };
        match error.find() {
            Some(ProfileError::Variant { .. }) => {
                vec!["without size options, `trace-dump` uses those of the profile".to_owned()]
            }
            _ => console::help(error),
        }
    }

    fn library(&self) -> Option<&AnyCoded> {
        match self {
            Self::Library(error) => Some(error),
            Self::Refused { .. } => None,
        }
    }
}
