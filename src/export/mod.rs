//! Writes and opens exports. An export is a folder with a compiled or lowered network, which IREE
//! or XLA can run on another machine.
//!
//! The module [`manifest`] declares the contents of `manifest.json`. The module [`xla`] writes exports for
//! XLA. With the feature `iree`, the crate `tracewright` writes, opens and verifies exports for IREE.

#[cfg(feature = "iree")]
mod iree;
pub mod manifest;
pub mod xla;

#[cfg(feature = "iree")]
pub use iree::{ExportError, Exported, check_cpu, export, open, put_model_files, verify};
pub use manifest::dir::{FolderError, names};
pub use manifest::{IreeManifest, Manifest, ManifestError};
#[cfg(feature = "iree")]
pub use program::commands;
