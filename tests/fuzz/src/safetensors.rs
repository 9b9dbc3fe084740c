//! Fuzzes safetensors files: header, tensors, renamed tensors and split tensors.

use std::path::Path;

use tracewright::irpa::Checkpoint;

use crate::{said, written};

/// Tensors with the weights of several experts, and others.
const STACKS: &[(&str, &[&str])] = &[
    ("experts.gate_up_proj", &["experts.*.w1.weight", "experts.*.w3.weight"]),
    ("qweight", &["q.weight", "k.weight"]),
    ("w", &["*.w"]),
];

pub fn read(folder: &Path, bytes: &[u8]) {
    let path = written(folder, "model.safetensors", bytes);
    let open = || said(Checkpoint::open(&path));
    if let Some(checkpoint) = open() {
        look(&checkpoint);
        let renamed = checkpoint.renamed(&[("model.", "language_model."), ("", "model.")]);
        look(&renamed);
        look(&renamed.apart(STACKS));
    }
}

/// Reads everything in a checkpoint.
pub fn look(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        let name = &tensor.name;
        let (data, ty) = (said(checkpoint.data(name)), said(checkpoint.ty(name)));
        if let (Some(data), Some(ty)) = (data, ty) {
            assert_eq!(data.len(), ty.bytes(), "`{name}` is {ty}");
        }
    }
}
