//! Fuzzes the `manifest.json` of an export.

use std::path::Path;

use tracewright::export::{IreeManifest, check_cpu};

use crate::{said, written};

pub fn read(folder: &Path, bytes: &[u8]) {
    written(folder, "manifest.json", bytes);
    if let Some(manifest) = said(IreeManifest::read(folder)).flatten() {
        said(check_cpu(&manifest));
        said(manifest.signatures(folder));
    }
}
