//! Checks the limits of a tokenizer file before the tokenizers library builds the tokenizer, because building
//! already encodes the added tokens.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use files::limits;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::normalizers::{NormalizerWrapper, Precompiled};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{DecoderWrapper, PostProcessor as _, PostProcessorWrapper, Result};

/// The unparsed sections of a tokenizer file that can change a text.
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

/// Checks that the sections of a file stay within [`limits::GROWTH`] and [`limits::ADDED_TOKENS`].
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
    // The library reads old formats of these sections, and writes the newest format.
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

/// The factor by which a section can lengthen a text, by replacing, prepending or repeating. Factors of
/// consecutive steps multiply. Unicode's normalization forms have 1, because they add nothing when applied
/// twice.
fn growth(part: &Value) -> Result<usize> {
    let length = |name: &str| part[name].as_str().map_or(0, str::len);
    let list = |name: &str| part[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let own = match part["type"].as_str() {
        Some("Replace") => {
            let (pattern, content) = (&part["pattern"], length("content"));
            match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                // A pattern that matches the empty text inserts its replacement between all characters.
                (Some(""), _) => 1 + content,
                (Some(text), _) => content.div_ceil(text.len()),
                (_, Some(regex)) if may_match_nothing(regex) => 1 + content,
                _ => content,
            }
        }
        // The prefix is added to each piece of text between two added tokens.
        Some("Prepend") => 1 + length("prepend"),
        Some("Metaspace") => 1 + length("replacement"),
        Some("Precompiled") => charsmap_growth(&charsmap(part)?)?,
        // A byte can become a character of two bytes. A character can get a space on each side, and a token
        // can get a space in front.
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

/// Whether a regular expression can match nothing, by an alternative, an optional repetition or an anchor.
fn may_match_nothing(regex: &str) -> bool {
    let longer = ["\\b", "\\B", "\\A", "\\Z", "\\z", "\\G", "\\K", "\\y", "\\Y", "{0", "{,", "()"];
    regex.is_empty()
        || regex.contains(['*', '?', '|', '^', '$'])
        || longer.iter().any(|mark| regex.contains(mark))
}

/// Decodes a `precompiled_charsmap`: the length of a trie, the trie, and its zero-terminated texts.
fn charsmap(part: &Value) -> Result<Vec<u8>> {
    Ok(BASE64.decode(part["precompiled_charsmap"].as_str().unwrap_or_default())?)
}

/// Checks the declared length of each trie, because the tokenizers library allocates it without a check.
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

/// Returns the zero-terminated texts of a character map.
fn texts(map: &[u8]) -> Result<&[u8]> {
    let (length, rest) = map.split_first_chunk().ok_or("`precompiled_charsmap` is empty")?;
    let length = u32::from_le_bytes(*length) as usize;
    let words = "`precompiled_charsmap` has a trie of";
    rest.get(length..)
        .ok_or_else(|| format!("{words} {length} bytes, expected at most {}", rest.len()).into())
}

/// The factor by which a character map lengthens a text, largest if a text replaces a single ASCII byte.
fn charsmap_growth(map: &[u8]) -> Result<usize> {
    let longest = texts(map)?.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or_default();
    let map = Precompiled::from(map).map_err(|error| error.to_string())?;
    let of_ascii =
        (1..0x80u8).filter_map(|byte| Some(map.transform(char::from(byte).encode_utf8(&mut [0]))?.len()));
    Ok(of_ascii.max().unwrap_or_default().max(longest.div_ceil(2)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn grows(part: &Value, times: usize) {
        assert_eq!(growth(part).unwrap(), times, "{part:.200}");
    }

    fn replace(pattern: &Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    fn charsmap_of(map: &[u8]) -> Value {
        json!({"type": "Precompiled", "precompiled_charsmap": BASE64.encode(map)})
    }

    /// Creates a character map with a trie and one text. If `letter` is given, the character map
    /// replaces only this letter by the text.
    fn trie(letter: Option<u8>, text: &str) -> Vec<u8> {
        let mut map = (256_u32 * 4).to_le_bytes().to_vec();
        let unit = |at: u8| match letter {
            Some(letter) if at == letter => {
                let letter = u32::from(letter);
                letter | 1 << 8 | (letter ^ 0x80) << 10
            }
            _ => 0,
        };
        map.extend((0..=u8::MAX).flat_map(|at| unit(at).to_le_bytes()));
        map.extend(text.bytes());
        map
    }

    #[test]
    fn a_pattern_may_match_nothing_where_it_has_a_choice_a_repetition_or_a_place() {
        for regex in [
            "", "()", "a()", "a*", "a|", "a?", "^", "$", "\\b", "\\B", "\\A", "\\Z", "\\z", "\\G", "\\K",
            "\\y", "\\Y", "a{0}", "a{0,}", "a{0,1}", "a{,1}", "(?=a)",
        ] {
            assert!(may_match_nothing(regex), "{regex}");
            grows(&replace(&json!({"Regex": regex}), "bc"), 3);
        }
        for regex in ["a", "a+", "[a-z]", "(a)", "a{2}", "a{1,3}", "\\s", "\\d", "."] {
            assert!(!may_match_nothing(regex), "{regex}");
            grows(&replace(&json!({"Regex": regex}), "bc"), 2);
        }
    }

    #[test]
    fn each_part_grows_a_text_by_what_it_puts_there() {
        let long = "b".repeat(65);
        let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
        let special = json!({"SpecialToken": {"id": "x", "type_id": 0}});
        let template = |single: &[&Value]| json!({"type": "TemplateProcessing", "single": single});
        for (part, times) in [
            (replace(&json!({"Regex": "a"}), &long), 65),
            (replace(&json!({"Regex": "a"}), ""), 1),
            (replace(&json!({"String": "a"}), &long), 65),
            (replace(&json!({"String": "aa"}), &long), 33),
            (replace(&json!({"String": long}), "a"), 1),
            (replace(&json!({"String": ""}), &long), 66),
            (json!({"type": "Prepend", "prepend": long}), 66),
            (json!({"type": "Metaspace", "replacement": "▁"}), 4),
            (json!({"type": "ByteLevel"}), 2),
            (json!({"type": "BertNormalizer"}), 2),
            (json!({"type": "WordPiece"}), 2),
            (json!({"type": "CTC"}), 2),
            (json!({"type": "BPEDecoder"}), 2),
            (json!({"type": "NFKD"}), 1),
            (template(&[&special, &sequence, &special]), 1),
            (template(&[&sequence, &special, &sequence, &sequence]), 3),
            (template(&[]), 1),
        ] {
            grows(&part, times);
        }
    }

    #[test]
    fn parts_of_a_sequence_multiply() {
        let four = json!({"type": "Prepend", "prepend": "bbb"});
        let three = replace(&json!({"String": "a"}), "bbb");
        for list in ["normalizers", "pretokenizers", "processors", "decoders"] {
            let of = |parts: &[&Value]| json!({"type": "Sequence", list: parts});
            grows(&of(&[]), 1);
            grows(&of(&[&four, &three]), 12);
            grows(&of(&[&of(&[&four, &three]), &json!({"type": "Fuse"}), &four]), 48);
            grows(&of(&[&four; 100]), usize::MAX);
        }
    }

    #[test]
    fn a_charsmap_grows_a_text_by_its_longest_one() {
        // Characters outside ASCII have at least two bytes.
        grows(&charsmap_of(&trie(None, &"b".repeat(200))), 100);
        grows(&charsmap_of(&trie(None, &format!("c\0{}\0c", "b".repeat(199)))), 100);
        grows(&charsmap_of(&trie(Some(b'a'), &"b".repeat(99))), 99);
        grows(&charsmap_of(&trie(Some(b'a'), &format!("bb\0{}", "b".repeat(99)))), 50);
        grows(&charsmap_of(&trie(None, "")), 1);
    }

    #[test]
    fn a_charsmap_without_its_trie_is_refused_wherever_it_stands() {
        let [bad, good] = [charsmap_of(&[0xff; 4]), charsmap_of(&trie(None, "b"))];
        let of = |parts: &[&Value]| json!({"type": "Sequence", "normalizers": parts});
        for normalizer in [
            bad.clone(),
            of(&[&good, &bad]),
            of(&[&of(&[&bad]), &good]),
            json!([bad]),
            json!({"a": {"b": bad}}),
        ] {
            let error = check_charsmaps(&normalizer).unwrap_err().to_string();
            assert!(
                error.contains("a trie of 4294967295 bytes, expected at most 0"),
                "{normalizer}: {error}"
            );
        }
        for short in [&[][..], &[0; 3]] {
            let error = check_charsmaps(&of(&[&charsmap_of(short)])).unwrap_err().to_string();
            assert!(error.contains("is empty"), "{error}");
        }
        check_charsmaps(&of(&[&good, &of(&[&good])])).unwrap();
        // The declared length of the trie equals the number of bytes.
        check_charsmaps(&charsmap_of(&[2, 0, 0, 0, 7, 7])).unwrap();
        check_charsmaps(&charsmap_of(&[3, 0, 0, 0, 7, 7])).unwrap_err();
    }
}
