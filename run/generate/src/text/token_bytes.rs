//! The bytes that each token adds to a text, as `tokenizers` decodes them with `ByteLevel` and
//! `ByteFallback`.

use std::collections::HashMap;
use std::slice;

use serde_json::Value;

/// The byte before the name of a special token. UTF-8 never contains this byte.
const SPECIAL: u8 = 0xff;

/// The bytes of each token id, with the byte [`SPECIAL`] and the name for a special token.
pub fn token_bytes(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<Vec<Vec<u8>>> {
    let spelling = Spelling::of(&serde_json::to_value(tokenizer.get_decoder())?)?;
    let mut bytes = Vec::new();
    for (token, id) in tokenizer.get_vocab(false) {
        *at(&mut bytes, id) = spelling.bytes(&token);
    }
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        let special = token.special.then_some(SPECIAL);
        let added: Vec<u8> = special.into_iter().chain(token.content.bytes()).collect();
        if !added.is_empty() {
            *at(&mut bytes, id) = added;
        }
    }
    Ok(bytes)
}

fn at(bytes: &mut Vec<Vec<u8>>, id: u32) -> &mut Vec<u8> {
    let index = id as usize;
    bytes.resize(bytes.len().max(index + 1), Vec::new());
    &mut bytes[index]
}

/// The way in which the names of tokens represent bytes.
enum Spelling {
    /// Each character represents one byte.
    ByteLevel(HashMap<char, u8>),
    /// A token is text or, for example `<0x0A>`, one byte. The listed characters represent spaces.
    ByteFallback(Vec<char>),
}

impl Spelling {
    fn of(decoder: &Value) -> tokenizers::Result<Self> {
        let parts = decoder["decoders"].as_array().map_or(slice::from_ref(decoder), Vec::as_slice);
        let has = |kind: &str| parts.iter().any(|part| part["type"] == kind);
        if has("ByteLevel") {
            return Ok(Self::ByteLevel(byte_characters().zip(0..=u8::MAX).collect()));
        }
        if has("ByteFallback") {
            return Ok(Self::ByteFallback(parts.iter().filter_map(space).collect()));
        }
        let kinds: Vec<_> = parts.iter().filter_map(|part| part["type"].as_str()).collect();
        Err(if kinds.is_empty() {
            "the tokenizer has no decoder".into()
        } else {
            format!("the type of the decoder is {}", kinds.join(", ")).into()
        })
    }

    /// Returns the bytes of a token, or its name if that does not represent bytes, as both decoders do.
    fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel(bytes) => {
                let known: Option<Vec<u8>> = token.chars().map(|c| bytes.get(&c).copied()).collect();
                known.unwrap_or_else(|| token.into())
            }
            Self::ByteFallback(spaces) => match byte(token) {
                Some(byte) => vec![byte],
                None => token.replace(&spaces[..], " ").into(),
            },
        }
    }
}

/// Returns the character that a decoder replaces with a space.
fn space(decoder: &Value) -> Option<char> {
    let pattern = decoder["pattern"]["String"].as_str().filter(|_| decoder["content"] == " ")?;
    let mut characters = pattern.chars();
    characters.next().filter(|_| characters.next().is_none())
}

/// Returns the byte that a token such as `<0x0A>` represents.
pub fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// The character of each byte from 0 to 255 in a byte-level tokenizer. As in `bytes_to_unicode` of GPT-2,
/// printable characters of Latin-1 stand for themselves, and others from U+0100 for the rest.
pub fn byte_characters() -> impl Iterator<Item = char> {
    let mut others = '\u{100}'..;
    (0..=u8::MAX).map(char::from).filter_map(move |character| match character {
        '!'..='~' | '¡'..='¬' | '®'..='ÿ' => Some(character),
        _ => others.next(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::*;
    use crate::Tokenizer;

    /// Adds the paths of the tokenizer files and of the GGUF files in a folder.
    fn find(folder: &Path, found: &mut Vec<PathBuf>) {
        for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                find(&path, found);
            } else if path.ends_with("tokenizer.json") {
                found.push(folder.into());
            } else if path.extension().is_some_and(|extension| extension == "gguf")
                && !path.ends_with("adapter.gguf")
            {
                found.push(path);
            }
        }
    }

    /// Loads all tokenizers in the repository, and the tokenizer of SmolLM2 if it is installed.
    fn tokenizers() -> Vec<(PathBuf, Tokenizer)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut paths = Vec::new();
        for folder in ["demo", "demo-gemma3", "tests/fixtures", ".tracewright/smollm2"] {
            find(&root.join(folder), &mut paths);
        }
        let loaded =
            paths.into_iter().filter_map(|path| Some((path.clone(), Tokenizer::load(&path).unwrap()?)));
        // Tokenizers of encoders have no decoder, because they never make texts.
        loaded.filter(|(_, tokenizer)| tokenizer.inner.get_decoder().is_some()).collect()
    }

    /// Compares the bytes with the texts that the library `tokenizers` decodes.
    #[test]
    fn the_bytes_of_a_token_are_what_the_decoder_adds_to_a_text() {
        let tokenizers = tokenizers();
        for (path, tokenizer) in &tokenizers {
            let bytes = tokenizer.bytes().unwrap();
            // A decoder can strip a space from the beginning of a text. The last token `a` is not `<0x61>`.
            let first = bytes.iter().rposition(|bytes| bytes == b"a").unwrap();
            for (token, added) in bytes.iter().enumerate() {
                let name = tokenizer.inner.id_to_token(token as u32).unwrap_or_default();
                if tokenizer.is_special(token as u32) {
                    assert_eq!(added, &[&[SPECIAL], name.as_bytes()].concat(), "{path:?}");
                    continue;
                }
                let text = tokenizer.decode(&[first as u32, token as u32]).unwrap();
                let expected = [b"a", &added[..]].concat();
                assert_eq!(text, String::from_utf8_lossy(&expected), "{path:?}: {token} {name:?}");
            }
        }
        assert!(tokenizers.len() > 10, "{}", tokenizers.len());
    }

    #[test]
    fn llguidance_determines_the_same_bytes() {
        for (path, tokenizer) in &tokenizers() {
            let file = serde_json::to_value(&*tokenizer.inner).unwrap();
            let expected = llguidance::token_bytes_from_tokenizer_json(&file).unwrap();
            assert!(tokenizer.bytes().unwrap() == expected, "{path:?}");
        }
    }

    #[test]
    fn the_decoder_decides_what_a_name_represents() {
        let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
        let of = |parts: &[Value]| json!({"type": "Sequence", "decoders": parts});
        let [level, fallback] = ["ByteLevel", "ByteFallback"].map(|kind| json!({ "type": kind }));
        let marked = of(&[replace("▁", " "), fallback.clone()]);
        let others = of(&[replace("▁▁", " "), replace("_", "-"), fallback.clone()]);
        for (decoder, name, expected) in [
            (&level, "Ġa", &b" a"[..]),
            (&level, "Ã©", "é".as_bytes()),
            (&level, "ĀŃ", &[0, 0xad]),
            (&of(&[level.clone(), json!({"type": "Fuse"})]), "Ċ", b"\n"),
            // A space represents no byte.
            (&level, "é ", "é ".as_bytes()),
            (&marked, "▁a▁", b" a "),
            (&marked, "<0x0A>", b"\n"),
            (&marked, "<0xé>", "<0xé>".as_bytes()),
            (&marked, "<0xAZ>", b"<0xAZ>"),
            (&marked, "<0x", b"<0x"),
            (&fallback, "▁", "▁".as_bytes()),
            (&others, "▁▁_", "▁▁_".as_bytes()),
        ] {
            let found = Spelling::of(decoder).unwrap().bytes(name);
            assert_eq!(found, expected, "{decoder} {name}");
        }
        for (decoder, expected) in [
            (Value::Null, "the tokenizer has no decoder"),
            (json!({"type": "WordPiece"}), "the type of the decoder is WordPiece"),
            (of(&[replace("▁", " "), json!({"type": "Fuse"})]), "the type of the decoder is Replace, Fuse"),
        ] {
            let error = Spelling::of(&decoder).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), Some(expected), "{decoder}");
        }
    }
}
