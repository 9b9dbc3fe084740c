//! Fuzzes `tokenizer.json`, and texts that the tokenizer encodes.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use tracewright::generate::Tokenizer;

use crate::{said, written};

const TEXTS: &[&str] = &["", "a", "Hello, world! 123 \u{1f44d}\u{e9}\n\t x  y", "<s>aaaaaaaa</s>"];

pub fn read(folder: &Path, bytes: &[u8]) {
    written(folder, "tokenizer.json", bytes);
    look(folder);
}

/// Encodes texts with the tokenizer of a model. It runs on a thread of its own, because `tokenizers` caches
/// words in a thread-local table, with an entry for each tokenizer that ever existed.
pub fn look(model: &Path) {
    let made = thread::scope(|scope| scope.spawn(|| make(model)).join());
    made.unwrap_or_else(|panic| resume_unwind(panic));
}

fn make(model: &Path) {
    let Some(tokenizer) = said(Tokenizer::load(model)).flatten() else { return };
    for text in TEXTS {
        let tokens = said(tokenizer.encode(text));
        said(tokenizer.encode_within(text, 3));
        for tokens in tokens.into_iter().chain(said(tokenizer.encode_plain(text))) {
            said(tokenizer.decode(&tokens));
            let mut stream = tokenizer.stream();
            let pushed = tokens.iter().all(|&token| said(stream.push(token)).is_some());
            if pushed {
                said(stream.finish());
            }
        }
    }
}
