//! Fuzzes GGUF files: metadata as a configuration, tensors as those of a network, tokenizer and chat template.

use std::path::Path;

use tracewright::generate::{chat_template, generation_defaults, stop_tokens};
use tracewright::irpa::{Checkpoint, Gguf};
use tracewright::models;

use crate::{said, tokenizer, written};

/// Numbers of a tensor that are read.
const NUMBERS: usize = 300;

pub fn read(folder: &Path, bytes: &[u8]) {
    let path = written(folder, "model.gguf", bytes);
    if let Some(file) = said(Gguf::open(&path)) {
        for key in file.keys() {
            assert!(file.get(key).is_some(), "`{key}` is a key");
        }
    }
    said(models::gguf::config_json(&path));
    let network = said(models::read(&path, &[]));
    if let Some(checkpoint) = said(Checkpoint::open(&path)) {
        look(&checkpoint);
        if let Some(network) = network {
            look(&network.named(checkpoint));
        }
    }
    tokenizer::look(&path);
    said(chat_template(&path));
    said(stop_tokens(&path));
    said(generation_defaults(&path));
}

/// Reads everything in a checkpoint.
fn look(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        let Some(numbers) = said(checkpoint.numbers(&tensor.name)) else { continue };
        let count: usize = tensor.shape.iter().product();
        let mut first = vec![0.0; count.min(NUMBERS)];
        numbers.read(0, &mut first);
        let mut last = vec![0.0; count.min(NUMBERS)];
        numbers.read(count - last.len(), &mut last);
        numbers.quantized(0, count.saturating_sub(32));
    }
}
