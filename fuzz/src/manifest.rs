//! `manifest.json` of an export.

use std::path::Path;

use tracewright::export::Manifest;

use crate::{said, written};

pub fn read(folder: &Path, bytes: &[u8]) {
    written(folder, "manifest.json", bytes);
    if let Some(manifest) = said(Manifest::read(folder)).flatten() {
        said(manifest.check_cpu());
        said(manifest.signatures(folder));
    }
}
