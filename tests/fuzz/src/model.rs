//! Fuzzes the tokens of `model!`. A valid declaration becomes Rust with unchanged bodies. Any other becomes errors.

use std::path::Path;

use proc_macro2::TokenStream;

use crate::{macros, said};

pub fn read(_: &Path, bytes: &[u8]) {
    let Ok(source) = str::from_utf8(bytes) else { return };
    // The compiler has made tokens of a source, and refused one that is nested too deep, before it calls a macro.
    if depth(source) > DEEP {
        return;
    }
    if let Some(tokens) = said(source.parse::<TokenStream>()) {
        assert!(!macros::expand::model(tokens).is_empty());
    }
}

/// The nesting depth of brackets.
const DEEP: usize = 64;

fn depth(source: &str) -> usize {
    let opened = source.bytes().scan(0usize, |depth, byte| {
        match byte {
            b'(' | b'[' | b'{' | b'<' => *depth += 1,
            b')' | b']' | b'}' | b'>' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    opened.max().unwrap_or_default()
}
