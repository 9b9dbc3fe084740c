//! [`HubError`] lists the errors of finding or downloading a model by name.

use std::path::PathBuf;

use errors::{FileError, Listed};

use crate::ModelName;

/// The reason why a model was not found or downloaded.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No environment variable sets the cache folder, and the user has no home folder.
    #[error(
        "Tracewright cannot find the folder of the Hugging Face cache, expected `HF_HOME`, `HF_HUB_CACHE` or a home folder"
    )]
    NoCache,
    #[error("`{name}` is not in the cache `{}`, and `HF_HUB_OFFLINE` forbids downloads", .cache.display())]
    Offline { name: Box<ModelName>, cache: PathBuf },
    /// Or hides it from you.
    #[error("the hub at {endpoint} does not list a model `{name}`")]
    NoModel { name: Box<ModelName>, endpoint: String },
    /// The hub gives the model only to some users, and the access token is missing or rejected.
    #[error("the hub at {endpoint} gives the model `{name}` only to users with access")]
    NoAccess { name: Box<ModelName>, endpoint: String, with_token: bool },
    #[error("the model `{}` has no revision `{}`", .name.repository, .name.revision())]
    NoRevision { name: Box<ModelName> },
    #[error("the model `{}` has no file `{file}`, expected one of:{}", .name.repository, Listed(.known))]
    NoFile { name: Box<ModelName>, file: String, known: Vec<String> },
    #[error("`{name}` matches {} GGUF files, expected one of:{}", .files.len(), Listed(.files))]
    SeveralFiles { name: Box<ModelName>, files: Vec<String> },
    #[error("the model `{name}` has no safetensors and no GGUF files, only:{}", Listed(.known))]
    NoWeights { name: Box<ModelName>, known: Vec<String> },
    #[error("{url} responded with the HTTP status {status}, expected 200")]
    Status { url: String, status: u16 },
    /// The hub did not answer the first request, so no download has begun.
    #[error("cannot ask the hub at {endpoint} for the model `{name}`")]
    Unreachable { name: Box<ModelName>, endpoint: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The connection failed, or was interrupted too often.
    #[error("cannot download {url}")]
    Connection { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the response of {url} does not describe a model: {what}")]
    Answer { url: String, what: String },
    #[error("`{file}` of `{name}` has the hash {found}, expected {expected}")]
    Hash { name: Box<ModelName>, file: String, found: String, expected: String },
    /// The next download continues with the first missing byte.
    #[error("the download was stopped")]
    Stopped,
    #[error(transparent)]
    File(#[from] FileError),
}

impl HubError {
    pub fn help(&self) -> Option<String> {
        Some(match self {
            Self::NoCache => "set `HF_HOME` to a folder".into(),
            Self::Offline { .. } => "unset `HF_HUB_OFFLINE`, or copy the model into the cache".into(),
            Self::NoModel { .. } => "check the spelling of the name; a private model needs `HF_TOKEN`".into(),
            Self::NoAccess { name, endpoint, with_token: true } => {
                format!("request access at {endpoint}/{}", name.repository)
            }
            Self::NoAccess { name, endpoint, with_token: false } => format!(
                "request access at {endpoint}/{}, create a token at {endpoint}/settings/tokens, and set `HF_TOKEN` to this token",
                name.repository
            ),
            Self::NoFile { name, .. } | Self::SeveralFiles { name, .. } => {
                format!(
                    "select one of the files with `{}:FILE`",
                    ModelName { file: None, ..(**name).clone() }
                )
            }
            Self::NoWeights { .. } => {
                "select another repository that contains safetensors or GGUF files".into()
            }
            Self::Unreachable { name, .. } => format!(
                "check the network connection; if you mean a local folder, check the path: there is no `{}` here",
                name.repository
            ),
            Self::Connection { .. } => {
                "run the command again: Tracewright continues the interrupted download".into()
            }
            Self::Hash { .. } => "run the command again: Tracewright has removed the damaged file".into(),
            _ => return None,
        })
    }
}
