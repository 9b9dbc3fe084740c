//! Finds a model in the cache, or downloads the model into the cache.

use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::{Fetched, Hub, HubError, ModelName};

impl Hub {
    /// Returns the path in the cache. An interrupted download continues with the first missing byte, and a
    /// file appears in the cache only with the hub's hash.
    pub fn fetch(
        &self,
        name: &ModelName,
        watch: &mut dyn FnMut(Fetched<'_>) -> ControlFlow<()>,
    ) -> Result<PathBuf, HubError> {
        match self.find(name)? {
            Some(path) => Ok(path),
            None => self.update(name, watch),
        }
    }

    /// Like [`fetch`](Self::fetch), but asks for a newer commit.
    pub fn update(
        &self,
        name: &ModelName,
        watch: &mut dyn FnMut(Fetched<'_>) -> ControlFlow<()>,
    ) -> Result<PathBuf, HubError> {
        if self.offline {
            return Err(HubError::Offline { name: name.clone().into(), cache: self.cache.clone() });
        }
        #[cfg(feature = "download")]
        {
            crate::download::download(self, name, watch)
        }
        #[cfg(not(feature = "download"))]
        {
            let _ = watch;
            Err(HubError::NoDownload { name: name.clone().into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> ModelName {
        ModelName::parse("org/name").expect("a name of a model")
    }

    #[test]
    fn a_build_without_downloads_says_so() {
        let refused = HubError::NoDownload { name: name().into() };
        let expected =
            "`org/name` is not in the cache, and this program was built without the cargo feature `download`";
        assert_eq!(refused.to_string(), expected);
        assert!(refused.help().is_some());
    }

    #[cfg(not(feature = "download"))]
    #[test]
    fn a_build_without_downloads_refuses_the_public_hub() {
        let (cache, endpoint) = ("/no-such-cache".into(), Hub::ENDPOINT.to_owned());
        let hub = Hub { cache, endpoint, token: None, offline: false };
        let fetched = hub.fetch(&name(), &mut |_| ControlFlow::Continue(()));
        assert!(matches!(fetched, Err(HubError::NoDownload { .. })));
    }
}
