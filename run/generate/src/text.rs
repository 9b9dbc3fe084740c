//! [`Tokenizer`] converts text to tokens and back, as the model's `tokenizer.json` defines.

mod bounds;
mod declared;
mod pair;
mod token_bytes;

use std::cell::Cell;
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use files::limits;
use irpa::ModelFiles;
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::{ModelWrapper, NormalizerWrapper, PostProcessor as _, TruncationDirection};

pub use pair::EncodedPair;

use crate::GenerateError;
use crate::model_file::{found, gguf_text};
use declared::Declared;

/// A tokenizer that gives the same tokens as Hugging Face transformers.
///
/// ```no_run
/// use std::path::Path;
///
/// use tracewright_generate::{GenerateError, Tokenizer};
///
/// if let Some(tokenizer) = Tokenizer::load(Path::new("Llama-3.2-1B"))? {
///     let tokens = tokenizer.encode("Once upon a time")?;
///     println!("{tokens:?} is `{}`", tokenizer.decode(&tokens)?);
/// }
/// # Ok::<(), GenerateError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    special: Arc<HashSet<u32>>,
}

fn lowercases(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::Lowercase(_) => true,
        NormalizerWrapper::BertNormalizer(bert) => bert.lowercase,
        NormalizerWrapper::Sequence(all) => all.as_ref().iter().any(lowercases),
        _ => false,
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` and the tokens that files beside it declare, or a GGUF file's tokenizer.
    pub fn load(model: impl Into<ModelFiles>) -> Result<Option<Self>, GenerateError> {
        const NAME: &str = "tokenizer.json";
        let files = model.into();
        let dir = files.path();
        let text = match files.gguf()? {
            Some(_) => gguf_text(&files, NAME)?,
            None => found(files::json_text(&dir.join(NAME), limits::TOKENIZER))?,
        };
        let Some(text) = text else { return Ok(None) };
        let path = if dir.is_file() { dir.to_path_buf() } else { dir.join(NAME) };
        let bad = |source| GenerateError::Tokenizer { path: path.clone(), source };
        let declared = Declared::read(&files)?;
        let mut inner = unpanicked(|| {
            bounds::check(&text)?;
            let mut tokenizer = text.parse::<tokenizers::Tokenizer>()?;
            declared.add_to(&mut tokenizer)?;
            if let ModelWrapper::BPE(model) = tokenizer.get_model()
                && model.dropout.is_some_and(|share| share > 0.0)
            {
                return Err("`model.dropout` leaves out merges at random; set it to null".into());
            }
            // Tables of tokens have one element per token id, so the largest token id must stay
            // below the limit.
            match tokenizer.get_vocab(true).into_iter().max_by_key(|(_, id)| *id) {
                Some((token, id)) if id as usize >= limits::TOKENS => {
                    let most = limits::TOKENS;
                    Err(format!("its token {token:?} has the id {id}, expected less than {most}").into())
                }
                _ => Ok(tokenizer),
            }
        })
        .map_err(bad)?;
        // A tokenizer file can request truncation and padding. transformers applies truncation and padding
        // only if a call requests them.
        inner.with_truncation(None).map_err(bad)?;
        inner.with_padding(None);
        Ok(Some(Self::new(inner)))
    }

    fn new(inner: tokenizers::Tokenizer) -> Self {
        let added = inner.get_added_tokens_decoder().into_iter();
        let special = added.filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        Tokenizer { inner: Arc::new(inner), special: Arc::new(special) }
    }

    /// Encodes a text, and adds the special tokens of the tokenizer, such as the token that begins a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, GenerateError> {
        self.encoded(text, true)
    }

    fn encoded(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, GenerateError> {
        let encoding = unpanicked(|| self.inner.encode_fast(text, add_special_tokens));
        Ok(encoding.map_err(tokenize("encode this text"))?.get_ids().to_vec())
    }

    /// Encodes to at most `limit` tokens: cuts the end of the text, but keeps the special tokens around it.
    /// Also returns the number of tokens of the whole text.
    pub fn encode_within(&self, text: &str, limit: usize) -> Result<(Vec<u32>, usize), GenerateError> {
        let encoded = unpanicked(|| {
            let mut encoding = self.inner.encode_fast(text, false)?;
            let added = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
            let whole = encoding.len() + added;
            encoding.truncate(limit.saturating_sub(added), 0, TruncationDirection::Right);
            let encoding = self.inner.post_process(encoding, None, true)?;
            Ok((encoding.get_ids().to_vec(), whole))
        });
        encoded.map_err(tokenize("encode this text"))
    }

    /// Converts texts to lower case before they become tokens, unless the tokenizer does so itself.
    pub fn lowercasing(self) -> Result<Self, GenerateError> {
        if self.inner.get_normalizer().is_some_and(lowercases) {
            return Ok(self);
        }
        let mut inner = (*self.inner).clone();
        let own = inner.get_normalizer().cloned();
        let all = std::iter::once(Lowercase.into()).chain(own).collect();
        inner.with_normalizer(Some(Sequence::new(all))).map_err(tokenize("lower texts"))?;
        Ok(Self::new(inner))
    }

    /// Encodes a text with its own special tokens, such as a rendered chat template, and adds none.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, GenerateError> {
        self.encoded(text, false)
    }

    /// Decodes tokens to text, and omits special tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, GenerateError> {
        unpanicked(|| self.inner.decode(tokens, true)).map_err(tokenize("decode these tokens"))
    }

    /// Creates a decoder for tokens that arrive one by one.
    pub fn stream(&self) -> Stream<'_> {
        Stream {
            tokenizer: self,
            tokens: Vec::new(),
            context: 0,
            fresh: 0,
            emitted: String::new(),
            shown: Vec::new(),
        }
    }

    /// Returns the number of tokens in the vocabulary, including special tokens.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The bytes that each token id adds to a text. A special token has a byte that never occurs in a text,
    /// and its name. An unused id has no bytes.
    pub(crate) fn bytes(&self) -> Result<Vec<Vec<u8>>, GenerateError> {
        token_bytes::token_bytes(&self.inner).map_err(|source| GenerateError::NoBytes { source })
    }

    /// The bytes of each token id, or the names of special tokens. If bytes cannot be determined, all are
    /// names.
    pub fn pieces(&self) -> Vec<Vec<u8>> {
        let name = |token| self.inner.id_to_token(token).unwrap_or_default().into_bytes();
        let Ok(mut pieces) = self.bytes() else { return (0..self.vocab_size() as u32).map(name).collect() };
        for &token in self.special.iter() {
            if let Some(piece) = pieces.get_mut(token as usize) {
                *piece = name(token);
            }
        }
        pieces
    }

    /// Whether each token id represents the same text in this tokenizer and in another tokenizer.
    pub fn has_tokens_of(&self, other: &Self) -> bool {
        self.special == other.special && self.inner.get_vocab(true) == other.inner.get_vocab(true)
    }

    /// Whether a token is a special token without text.
    pub fn is_special(&self, token: u32) -> bool {
        self.special.contains(&token)
    }

    /// Returns the id of the special token with the given name.
    pub fn special_token(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(name).filter(|&token| self.is_special(token))
    }

    /// Whether a token is one byte, such as `<0x0A>`. Several together can represent one character.
    fn is_byte(&self, token: u32) -> bool {
        self.inner.id_to_token(token).is_some_and(|text| token_bytes::byte(&text).is_some())
    }
}

/// Decodes tokens one by one; the pieces together equal [`Tokenizer::decode`]. A piece is returned as soon as
/// no later token can change it, and never ends within a character or between two byte tokens. As most
/// decoders drop the first token's leading space, the stream decodes new tokens with the previous piece, and
/// then removes its text.
#[derive(Debug, Clone)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens that the stream has received, except special tokens, which have no text.
    tokens: Vec<u32>,
    /// The index of the first token of the previous piece of text.
    context: usize,
    /// The index of the first token whose text has not been returned yet.
    fresh: usize,
    emitted: String,
    /// The special tokens whose names are part of the text.
    shown: Vec<(u32, String)>,
}

impl Stream<'_> {
    /// Includes the names of the given special tokens in the text.
    #[must_use]
    pub fn showing(mut self, special_tokens: &[String]) -> Self {
        let known = |name: &String| Some((self.tokenizer.special_token(name)?, name.clone()));
        self.shown = special_tokens.iter().filter_map(known).collect();
        self
    }

    /// Takes a token, and returns the text that no later token can change. The returned text can be empty.
    pub fn push(&mut self, token: u32) -> Result<String, GenerateError> {
        if self.tokenizer.is_special(token) {
            let name = self.shown.iter().find(|(shown, _)| *shown == token).map(|(_, name)| name.clone());
            return match name {
                Some(name) => Ok(self.next_piece()? + &name),
                None => Ok(String::new()),
            };
        }
        self.tokens.push(token);
        if self.tokenizer.is_byte(token) {
            return Ok(String::new());
        }
        self.next_piece()
    }

    /// Returns the text of the pending tokens, unless the last character is incomplete.
    fn next_piece(&mut self) -> Result<String, GenerateError> {
        let before = self.tokenizer.decode(&self.tokens[self.context..self.fresh])?;
        let now = self.tokenizer.decode(&self.tokens[self.context..])?;
        match now.strip_prefix(&before) {
            // U+FFFD at the end means that the last character is incomplete.
            Some(piece) if !piece.is_empty() && !piece.ends_with(char::REPLACEMENT_CHARACTER) => {
                self.context = self.fresh;
                self.fresh = self.tokens.len();
                self.emitted.push_str(piece);
                Ok(piece.to_string())
            }
            _ => Ok(String::new()),
        }
    }

    /// Returns the remaining text, with U+FFFD for incomplete characters. It is an error if the pieces differ
    /// from the whole text, on which some decoders depend.
    pub fn finish(self) -> Result<String, GenerateError> {
        let all = self.tokenizer.decode(&self.tokens)?;
        let rest = all.strip_prefix(&self.emitted).map(str::to_string);
        rest.ok_or_else(|| {
            let words = "the text of all of them does not begin with that of the first ones";
            tokenize("decode these tokens one by one")(words.into())
        })
    }
}

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Whether the current thread converts panics to errors; a panic hook should then print nothing.
pub fn catches_panics() -> bool {
    CATCHES.get()
}

/// Converts panics of the tokenizers library to errors: it reads some invalid files and panics later.
fn unpanicked<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    let outside = CATCHES.replace(true);
    // After a panic, only the library's caches of words can be inconsistent. The library locks a
    // cache while changing it, and does not use the cache after a panic.
    let caught = std::panic::catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(outside);
    caught.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why");
        Err(format!("the tokenizers library gave up: {words}").into())
    })
}

fn tokenize(what: &'static str) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> GenerateError {
    move |source| GenerateError::Tokenize { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use errors::WithCauses;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::fs;
    use std::sync::LazyLock;

    static BYTE_LEVEL: LazyLock<Tokenizer> = LazyLock::new(byte_level);
    static BYTE_FALLBACK: LazyLock<Tokenizer> = LazyLock::new(byte_fallback);

    fn load(tokenizer: &Value) -> Tokenizer {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        Tokenizer::load(dir.path()).unwrap().unwrap()
    }

    /// Creates a tokenizer with a token for every byte in GPT-2's spelling, two merges and two
    /// special tokens.
    fn byte_level() -> Tokenizer {
        let mut tokens: Vec<String> = token_bytes::byte_characters().map(String::from).collect();
        tokens.extend(["Ġa".into(), "Ã©".into()]);
        let vocab: serde_json::Map<_, _> = tokens.into_iter().zip(0..).map(|(t, i)| (t, json!(i))).collect();
        let special = |id: u32, content: &str| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        };
        load(&json!({
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            "padding": null,
            "added_tokens": [special(258, "<s>"), special(259, "</s>")],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}}},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocab, "merges": [["Ġ", "a"], ["Ã", "©"]]},
        }))
    }

    /// Creates a tokenizer like SentencePiece, with byte tokens such as `<0x00>` and words that
    /// begin with `▁`.
    fn byte_fallback() -> Tokenizer {
        let mut tokens: Vec<_> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.extend(["▁", "a", "b", "▁a", "▁b", "▁▁", "é", "ab"].map(String::from));
        let vocab: serde_json::Map<_, _> = tokens.into_iter().zip(0..).map(|(t, i)| (t, json!(i))).collect();
        load(&json!({
            "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [{"id": 264, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false}],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "vocab": vocab, "merges": [["▁", "a"], ["▁", "b"]], "byte_fallback": true},
        }))
    }

    fn streamed(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
        let mut stream = tokenizer.stream();
        let pieces: Vec<_> = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
        pieces.concat() + &stream.finish().unwrap()
    }

    #[test]
    fn special_tokens_are_added_to_prompts_only() {
        let tokenizer = &*BYTE_LEVEL;
        assert_eq!(tokenizer.encode(" a").unwrap(), [258, 256]);
        assert_eq!(tokenizer.encode_plain("<s> a</s>").unwrap(), [258, 256, 259]);
        assert_eq!(tokenizer.decode(&[258, 256, 259]).unwrap(), " a");
        assert_eq!(tokenizer.vocab_size(), 260);
    }

    #[test]
    fn a_file_cannot_ask_for_truncation() {
        assert_eq!(BYTE_LEVEL.encode("zzzzzzzz").unwrap().len(), 9);
    }

    #[test]
    fn a_long_text_loses_its_end_and_keeps_the_special_tokens() {
        let mut file: Value = serde_json::to_value(&*BYTE_LEVEL.inner).unwrap();
        let single = file["post_processor"]["single"].as_array_mut().unwrap();
        single.push(json!({"SpecialToken": {"id": "</s>", "type_id": 0}}));
        file["post_processor"]["special_tokens"]["</s>"] =
            json!({"id": "</s>", "ids": [259], "tokens": ["</s>"]});
        let tokenizer = load(&file);
        let [a, b, c] = [97, 98, 99]; // A byte's token is its number.
        let whole = [258, a, b, c, 259];
        assert_eq!(tokenizer.encode("abc").unwrap(), whole);
        for (limit, expected) in [(9, &whole[..]), (5, &whole), (4, &[258, a, b, 259])] {
            assert_eq!(tokenizer.encode_within("abc", limit).unwrap(), (expected.to_vec(), 5), "{limit}");
        }
        // The special tokens alone can exceed the limit.
        assert_eq!(tokenizer.encode_within("abc", 1).unwrap(), (vec![258, 259], 5));
    }

    #[test]
    fn a_piece_is_never_half_a_character() {
        let tokenizer = &*BYTE_LEVEL;
        let tokens = tokenizer.encode_plain("x👍é").unwrap();
        let mut stream = tokenizer.stream();
        let pieces: Vec<_> = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
        assert_eq!(pieces, ["x", "", "", "", "👍", "é"]);
    }

    #[test]
    fn a_special_token_does_not_swallow_the_next_space() {
        let tokenizer = &*BYTE_FALLBACK;
        let tokens = [264, 259, 264, 260, 264, 256, 264, 260];
        assert_eq!(tokenizer.decode(&tokens).unwrap(), "a b  b");
        assert_eq!(streamed(tokenizer, &tokens), "a b  b");
    }

    /// Checks that Tracewright rejects a tokenizer with dropout, because equal texts must have equal tokens.
    #[test]
    fn nothing_is_left_to_chance() {
        let with = |dropout: Value| {
            let mut tokenizer: Value =
                serde_json::from_str(&BYTE_LEVEL.inner.to_string(false).unwrap()).unwrap();
            tokenizer["model"]["dropout"] = dropout;
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
            Tokenizer::load(dir.path()).map(drop)
        };
        with(json!(null)).unwrap();
        with(json!(0.0)).unwrap();
        let error = with(json!(0.5)).unwrap_err();
        assert!(WithCauses(&error).to_string().contains("`model.dropout` leaves out merges"), "{error}");
    }

    /// Tracewright limits token ids, because its tables for constraints and probabilities have one
    /// element per token id.
    #[test]
    fn ids_are_bounded() {
        let with = |id: usize| {
            let dir = tempfile::tempdir().unwrap();
            let mut file: Value = serde_json::to_value(&*BYTE_LEVEL.inner).unwrap();
            file["model"]["vocab"]["zz"] = id.into();
            fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
            Tokenizer::load(dir.path())
        };
        with(limits::TOKENS - 1).unwrap();
        for id in [limits::TOKENS, 4_000_000_000] {
            let error = WithCauses(&with(id).unwrap_err()).to_string();
            let said = format!("its token \"zz\" has the id {id}, expected less than 1048576");
            assert!(error.contains(&said), "{error}");
        }
    }

    #[test]
    fn a_decoder_that_changes_what_was_given_out_is_an_error() {
        let mut file: Value = serde_json::to_value(&*BYTE_LEVEL.inner).unwrap();
        let replace = json!({"type": "Replace", "pattern": {"String": "xy"}, "content": "z"});
        file["decoder"] =
            json!({"type": "Sequence", "decoders": [file["decoder"], {"type": "Fuse"}, replace]});
        let tokenizer = load(&file);
        let mut stream = tokenizer.stream();
        let pieces: Vec<_> = [120, 121].map(|token| stream.push(token).unwrap()).into();
        assert_eq!(pieces, ["x", ""]);
        let error = WithCauses(&stream.finish().unwrap_err()).to_string();
        assert!(error.contains("does not begin with that of the first ones"), "{error}");
    }

    #[test]
    fn a_panic_that_becomes_an_error_is_known_to_a_hook() {
        assert!(!catches_panics());
        let seen = unpanicked(|| Ok(catches_panics()));
        assert!(seen.unwrap() && !catches_panics());
    }

    #[test]
    fn a_broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Tokenizer::load(dir.path()).unwrap().is_none());
        fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        let error = Tokenizer::load(dir.path()).unwrap_err();
        let error = WithCauses(&error).to_string();
        assert!(error.contains("tokenizer.json` is not a valid tokenizer file\n  because: "), "{error}");
    }

    /// Changes a tokenizer file, and returns the error message from reading the file or from encoding `text`.
    fn refused(change: impl FnOnce(&mut Value), text: &str) -> String {
        let mut file: Value = serde_json::to_value(&*BYTE_LEVEL.inner).unwrap();
        change(&mut file);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
        let used = Tokenizer::load(dir.path()).and_then(|tokenizer| {
            let tokenizer = tokenizer.unwrap();
            let tokens = tokenizer.encode_plain(text)?;
            tokenizer.encode_within(text, 4)?;
            tokenizer.decode(&tokens)
        });
        WithCauses(&used.unwrap_err()).to_string()
    }

    #[test]
    fn a_file_that_the_library_does_not_expect_is_an_error() {
        let merge = |file: &mut Value| file["model"]["merges"] = json!([["Ġa", "Ã©"]]);
        assert!(
            refused(merge, "a")
                .contains("tokenizer.json` is not a valid tokenizer file\n  because: the tokenizers library")
        );
        let length = |file: &mut Value| file["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0});
        assert!(refused(length, "a").contains("cannot encode this text\n  because: the tokenizers library"));
        let mut file: Value = serde_json::to_value(&*BYTE_LEVEL.inner).unwrap();
        length(&mut file);
        let error = load(&file).encode_within("a", 4).unwrap_err();
        let error = WithCauses(&error).to_string();
        assert!(error.contains("cannot encode this text\n  because: the tokenizers library"), "{error}");
        let strip = |file: &mut Value| {
            file["decoder"] = json!({"type": "Strip", "content": "a", "start": 0, "stop": 9});
        };
        assert!(
            refused(strip, "a").contains("cannot decode these tokens\n  because: the tokenizers library")
        );
    }

    #[test]
    fn a_text_does_not_grow_without_end() {
        let replace =
            |content: &str| json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
        let chain = |count: usize| {
            move |file: &mut Value| {
                let all = vec![replace("aaaaaaaa"); count];
                file["normalizer"] = json!({"type": "Sequence", "normalizers": all});
            }
        };
        let said = refused(chain(12), "a");
        assert!(said.contains("may make a text 68719476736 times as long, expected at most 64"), "{said}");
        let repeat = |file: &mut Value| {
            let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
            file["post_processor"]["single"] = json!(vec![sequence; 1000]);
        };
        assert!(refused(repeat, "a").contains("may make a text 1000 times as long"));
        let insert = |file: &mut Value| {
            let between = json!({"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "a"});
            file["normalizer"] = json!({"type": "Sequence", "normalizers": vec![between; 20]});
        };
        assert!(refused(insert, "a").contains("may make a text 1048576 times as long"));
        let decode = |file: &mut Value| {
            file["decoder"] = json!({"type": "Sequence", "decoders": vec![replace("aaaaaaaa"); 12]});
        };
        assert!(refused(decode, "a").contains("may make a text 68719476736 times as long"));
        let mut two: Value = serde_json::to_value(&*BYTE_LEVEL.inner).unwrap();
        chain(2)(&mut two);
        assert_eq!(load(&two).encode_plain("a").unwrap().len(), 64);
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole_of_random_bytes(tokens in prop::collection::vec(0u32..260, 0..40)) {
            let tokenizer = &*BYTE_LEVEL;
            prop_assert_eq!(streamed(tokenizer, &tokens), tokenizer.decode(&tokens).unwrap());
        }

        #[test]
        fn pieces_are_the_whole_of_random_fallback(
            tokens in prop::collection::vec(prop_oneof![0u32..265, 256u32..265, Just(0xC3), Just(0xA9)], 0..40),
        ) {
            let tokenizer = &*BYTE_FALLBACK;
            prop_assert_eq!(streamed(tokenizer, &tokens), tokenizer.decode(&tokens).unwrap());
        }

        #[test]
        fn pieces_are_the_whole_of_random_text(text in "\\PC{0,30}") {
            for tokenizer in [&*BYTE_LEVEL, &*BYTE_FALLBACK] {
                let tokens = tokenizer.encode_plain(&text).unwrap();
                prop_assert_eq!(streamed(tokenizer, &tokens), tokenizer.decode(&tokens).unwrap());
            }
        }
    }
}
