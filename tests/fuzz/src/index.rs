//! Fuzzes `model.safetensors.index.json`, beside two shards.

use std::path::Path;

use tracewright::irpa::Checkpoint;

use crate::{safetensors, said, written};

pub fn prepare(folder: &Path) {
    for (name, tensor) in [("a.safetensors", "a"), ("b.safetensors", "b")] {
        let header = format!(r#"{{"{tensor}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}"#);
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
        written(folder, name, &bytes);
    }
}

pub fn read(folder: &Path, bytes: &[u8]) {
    written(folder, "model.safetensors.index.json", bytes);
    said(Checkpoint::open(folder)).iter().for_each(safetensors::look);
}
