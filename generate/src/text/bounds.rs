//! What the file of a tokenizer may ask for, looked at before the library makes a tokenizer of it: that already treats the
//! tokens that are added as texts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use files::limits;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::normalizers::{NormalizerWrapper, Precompiled};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{DecoderWrapper, PostProcessor as _, PostProcessorWrapper, Result};

/// The parts of the file that change a text, as they are written.
#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
}

/// Whether the parts of a tokenizer's file stay within [`limits::GROWTH`] and [`limits::ADDED_TOKENS`].
///
/// # Errors
/// The first that does not, or that the library does not read.
pub(super) fn check(text: &str) -> Result<()> {
    let Parts { normalizer, pre_tokenizer, post_processor, decoder } = serde_json::from_str(text)?;
    let part = |written: Option<&RawValue>| -> Result<Option<Value>> {
        let Some(written) = written else { return Ok(None) };
        files::check_json(written.get())?;
        Ok(serde_json::from_str(written.get())?)
    };
    let normalizer = part(normalizer)?;
    if let Some(normalizer) = &normalizer {
        check_charsmaps(normalizer)?;
    }
    let processor = part(post_processor)?.map(serde_json::from_value::<PostProcessorWrapper>).transpose()?;
    let added = processor.as_ref().map_or(0, |processor| processor.added_tokens(false));
    if added > limits::ADDED_TOKENS {
        let most = limits::ADDED_TOKENS;
        return Err(format!("it puts {added} tokens around a text, expected at most {most}").into());
    }
    // The library also reads older spellings, of which it writes the newest.
    let parts = [
        normalizer.map(newest::<NormalizerWrapper>),
        part(pre_tokenizer)?.map(newest::<PreTokenizerWrapper>),
        processor.map(serde_json::to_value),
        part(decoder)?.map(newest::<DecoderWrapper>),
    ];
    for part in parts.into_iter().flatten() {
        let times = growth(&part?)?;
        if times > limits::GROWTH {
            let most = limits::GROWTH;
            return Err(format!("it may make a text {times} times as long, expected at most {most}").into());
        }
    }
    Ok(())
}

fn newest<T: for<'a> Deserialize<'a> + serde::Serialize>(part: Value) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_value::<T>(part)?)
}

/// How many times longer a part may make a text: what replaces one text by another, puts one in front, or repeats it, one
/// after the other. The normal forms of Unicode, which are no longer for being applied twice, count as nothing.
fn growth(part: &Value) -> Result<usize> {
    let length = |name: &str| part[name].as_str().map_or(0, str::len);
    let list = |name: &str| part[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let own = match part["type"].as_str() {
        Some("Replace") => {
            let (pattern, content) = (&part["pattern"], length("content"));
            match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                // What matches nothing is inserted between any two characters.
                (Some(""), _) => 1 + content,
                (Some(text), _) => content.div_ceil(text.len()),
                (_, Some(regex)) if may_match_nothing(regex) => 1 + content,
                _ => content,
            }
        }
        // In front of each piece between two tokens that are added.
        Some("Prepend") => 1 + length("prepend"),
        Some("Metaspace") => 1 + length("replacement"),
        Some("Precompiled") => charsmap_growth(&charsmap(part)?)?,
        // A byte becomes a character of two; a character gets a space to each side; a token one in front.
        Some("ByteLevel" | "BertNormalizer" | "WordPiece" | "CTC" | "BPEDecoder") => 2,
        Some("TemplateProcessing") => {
            list("single").iter().filter(|piece| piece.get("Sequence").is_some()).count()
        }
        _ => 1,
    };
    let lists = ["normalizers", "pretokenizers", "processors", "decoders"];
    let mut parts = lists.iter().flat_map(|name| list(name));
    parts.try_fold(own.max(1), |times, part| Ok(times.saturating_mul(growth(part)?)))
}

/// Whether a pattern has what may match without a character: a choice, a repetition from none on, a place.
fn may_match_nothing(regex: &str) -> bool {
    let longer = ["\\b", "\\B", "\\A", "\\Z", "\\z", "\\G", "\\K", "\\y", "\\Y", "{0", "{,", "()"];
    regex.is_empty()
        || regex.contains(['*', '?', '|', '^', '$'])
        || longer.iter().any(|mark| regex.contains(mark))
}

/// The bytes of a `precompiled_charsmap`: the length of a trie, the trie, and the texts that it leads to, each with a zero
/// behind it.
fn charsmap(part: &Value) -> Result<Vec<u8>> {
    Ok(BASE64.decode(part["precompiled_charsmap"].as_str().unwrap_or_default())?)
}

/// Whether all such maps within a normalizer have the trie that they say: the library takes memory for it unseen.
fn check_charsmaps(normalizer: &Value) -> Result<()> {
    match normalizer {
        Value::Array(parts) => parts.iter().try_for_each(check_charsmaps),
        Value::Object(parts) => {
            if parts.contains_key("precompiled_charsmap") {
                texts(&charsmap(normalizer)?)?;
            }
            parts.values().try_for_each(check_charsmaps)
        }
        _ => Ok(()),
    }
}

/// The texts of a map.
fn texts(map: &[u8]) -> Result<&[u8]> {
    let (length, rest) = map.split_first_chunk().ok_or("`precompiled_charsmap` is empty")?;
    let length = u32::from_le_bytes(*length) as usize;
    let words = "`precompiled_charsmap` has a trie of";
    rest.get(length..)
        .ok_or_else(|| format!("{words} {length} bytes, expected at most {}", rest.len()).into())
}

/// How many times longer such a map makes a text. Only what begins with a character of ASCII is one byte that becomes a
/// whole text.
fn charsmap_growth(map: &[u8]) -> Result<usize> {
    let longest = texts(map)?.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or_default();
    let map = Precompiled::from(map).map_err(|error| error.to_string())?;
    let of_ascii =
        (1..0x80u8).filter_map(|byte| Some(map.transform(char::from(byte).encode_utf8(&mut [0]))?.len()));
    Ok(of_ascii.max().unwrap_or_default().max(longest.div_ceil(2)))
}
