//! Stores executables as bytes, so that a later process need not compile their modules again.

use std::ops::Range;

use super::{Client, Executable};
use crate::error::PjrtError;
#[cfg(unix)]
use crate::stderr::without_wrong_messages;

impl Client {
    /// Loads an executable from the bytes that [`Executable::serialize`] returned for the devices with these
    /// numbers, in the same version of the plugin. Pass only bytes that you trust: XLA runs the machine code in them.
    ///
    /// # Errors
    /// Returns an error if the plugin stores no executables, or if the bytes come from another version of the
    /// plugin or are for other devices.
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
    /// The executable as bytes, from which [`Client::deserialize`] loads the executable again.
    ///
    /// # Errors
    /// Returns an error if the plugin stores no executables, or cannot store this executable.
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let bytes = self.raw.serialize().ok_or_else(|| self.client.keeps_none())?;
        bytes.map_err(|status| PjrtError::failed("store an executable", status))
    }
}
