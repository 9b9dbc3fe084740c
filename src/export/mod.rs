//! Exports: a folder that runs elsewhere, for IREE or for XLA.
//!
//! [`manifest`] declares what `manifest.json` contains. [`xla`] writes exports for XLA. With the feature `iree` this module
//! writes, opens and verifies exports for IREE.

mod dir;
#[cfg(feature = "iree")]
mod iree;
pub mod manifest;
pub mod xla;

pub use dir::{FolderError, names};
#[cfg(feature = "iree")]
pub use iree::{ExportError, Exported, export, open, verify};
pub use manifest::{IreeManifest, Manifest, ManifestError};
