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
        crate::download::download(self, name, watch)
    }
}
