//! Stores executables as bytes. A later process can load the bytes of an executable without
//! compiling the module again.

use std::ops::Range;

use super::{Client, Executable};
use crate::error::PjrtError;
#[cfg(unix)]
use crate::stderr::without_wrong_messages;

impl Client {
    /// Loads an executable from bytes that [`Executable::serialize`] returned, for the devices with the given
    /// indices. The version of the plugin must be the same as the version that created the bytes. Pass only
    /// bytes that you trust, because XLA runs the machine code that the bytes contain.
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
    /// Converts the executable to bytes, and returns the bytes. [`Client::deserialize`] loads an
    /// executable from the returned bytes.
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let bytes = self.raw.serialize().ok_or_else(|| self.client.keeps_none())?;
        bytes.map_err(|status| PjrtError::failed("store an executable", status))
    }
}
