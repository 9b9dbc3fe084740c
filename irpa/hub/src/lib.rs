//! Finds models on the Hugging Face hub by names such as `org/name`, and downloads missing models
//! into the Hugging Face cache.
//!
//! The cache has the same layout as the cache of the Python package `huggingface_hub`, so Tracewright and
//! Python programs share the downloaded files. A [`ModelName`] names a repository, a revision and a file. A
//! [`Hub`] finds a model by its name, and downloads only the files that Tracewright reads.

mod cache;
mod client;
mod download;
mod error;
mod fetch;
mod name;
mod near;
mod progress;
mod select;

pub use cache::{CachedModel, CachedSnapshot};
pub use error::HubError;
pub use name::ModelName;
pub use near::near_path;
pub use progress::Fetched;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The address of the Hugging Face hub, and the cache of its tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    /// Has a folder `models--org--name` for each model.
    pub cache: PathBuf,
    /// Without a final `/`.
    pub endpoint: String,
    /// For private and gated models.
    pub token: Option<String>,
    /// Use only the cache.
    pub offline: bool,
}

impl Hub {
    pub const ENDPOINT: &str = "https://huggingface.co";

    /// Reads `huggingface_hub`'s variables `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`. The default cache is in `home`, the user's cache folder.
    pub fn of_variables(
        variable: impl Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
    ) -> Result<Self, HubError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let folder = |name: &str| variable(name).map(PathBuf::from);
        let home = folder("HF_HOME").or_else(|| home.map(|home| home.join("huggingface")));
        let cache = folder("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub")));
        let token_file = folder("HF_TOKEN_PATH").or_else(|| home.as_ref().map(|home| home.join("token")));
        let token = match text("HF_TOKEN") {
            Some(token) => Some(token),
            None => token_file.filter(|file| file.exists()).map(|file| cache::token(&file)).transpose()?,
        };
        let is_set = |value: String| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str());
        Ok(Self {
            cache: cache.ok_or(HubError::NoCache)?,
            endpoint: text("HF_ENDPOINT").unwrap_or(Self::ENDPOINT.into()).trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: text("HF_HUB_OFFLINE").is_some_and(is_set),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_hubs_own_library() {
        let hub = |set: &[(&str, &str)]| {
            let of = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
            Hub::of_variables(of, Some(Path::new("/me/.cache"))).unwrap()
        };
        let plain = hub(&[]);
        assert_eq!(plain.cache, Path::new("/me/.cache/huggingface/hub"));
        assert_eq!((plain.endpoint.as_str(), plain.token, plain.offline), (Hub::ENDPOINT, None, false));
        assert_eq!(hub(&[("HF_HOME", "/hf")]).cache, Path::new("/hf/hub"));
        assert_eq!(hub(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]).cache, Path::new("/c"));
        let all =
            hub(&[("HF_ENDPOINT", "http://mirror/"), ("HF_TOKEN", " hf_x\n"), ("HF_HUB_OFFLINE", "true")]);
        assert_eq!(
            (all.endpoint.as_str(), all.token.as_deref(), all.offline),
            ("http://mirror", Some("hf_x"), true)
        );
        assert!(!hub(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert!(matches!(Hub::of_variables(|_| None, None), Err(HubError::NoCache)));

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(hub(&[("HF_HOME", folder.path().to_str().unwrap())]).token.as_deref(), Some("hf_file"));
    }
}
