//! `tokenizer.json`, and texts that it makes tokens of.

use std::path::Path;

use tracewright::generate::Tokenizer;

use crate::{said, written};

const TEXTS: &[&str] = &["", "a", "Hello, world! 123 \u{1f44d}\u{e9}\n\t x  y", "<s>aaaaaaaa</s>"];

pub fn read(folder: &Path, bytes: &[u8]) {
    written(folder, "tokenizer.json", bytes);
    look(folder);
}

/// Makes tokens of texts, by the tokenizer of a model.
pub fn look(model: &Path) {
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
