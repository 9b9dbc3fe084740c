//! Fuzzes `config.json`: the configuration of any family, and the network that it declares.

use std::path::Path;

use tracewright::EntryPoint;
use tracewright::models::{Architecture as _, ModelConfig, SentenceConfig};
use tracewright::ops::ElementType;

use crate::{said, written};

pub fn read(folder: &Path, bytes: &[u8]) {
    let path = written(folder, "config.json", bytes);
    if let Some(config) = said(ModelConfig::read(&path, &[])) {
        let context = config.max_context().min(64);
        said(config.trace(ElementType::Bf16, &EntryPoint::steps(1, 8, context)));
        said(config.trace(ElementType::F32, &config.kind().entry_points(1, 8, context)));
    }
    said(SentenceConfig::read(folder, 16, 64, &[]));
    said(tracewright::generate::stop_tokens(folder));
}
