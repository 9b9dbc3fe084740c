//! Stores executables as bytes. A later process can load the bytes of an executable without
//! compiling the module again.

use std::ops::Range;

use super::{Client, Executable};
use crate::error::PjrtError;
#[cfg(unix)]
use crate::stderr::without_wrong_messages;

impl Client {
    /// From bytes of the same plugin version. Pass only bytes that you trust, because XLA runs their machine
    /// code.
    pub fn deserialize(&self, bytes: &[u8], devices: Range<usize>) -> Result<Executable, PjrtError> {
        let failed = |status| PjrtError::failed("load a stored executable", status);
        let load = || self.0.raw.deserialize(bytes).ok_or_else(|| self.keeps_none());
        #[cfg(unix)]
        let raw = match self.platform() {
            "cpu" => without_wrong_messages(load),
            _ => load(),
        }?;
        #[cfg(not(unix))]
        let raw = load()?;
        self.loaded(raw.map_err(failed)?, devices, failed)
    }

    fn keeps_none(&self) -> PjrtError {
        PjrtError::NotStored { platform: self.0.platform.clone() }
    }
}

impl Executable {
    /// For [`Client::deserialize`].
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let bytes = self.raw.serialize().ok_or_else(|| self.client.keeps_none())?;
        bytes.map_err(|status| PjrtError::failed("store an executable", status))
    }
}
