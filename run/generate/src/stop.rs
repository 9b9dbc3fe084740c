//! Finds the end of a text: a stop token that the model chooses, or a stop string of the caller.

use files::limits;
use irpa::ModelFiles;
use serde_json::Value;

use crate::GenerateError;
use crate::model_file::read_keys;

/// Returns the tokens of `eos_token_id` in `generation_config.json`, or else in `config.json` or its
/// `text_config`. For a GGUF file, the metadata contain them.
pub fn stop_tokens(model: impl Into<ModelFiles>) -> Result<Vec<u32>, GenerateError> {
    let files = model.into();
    const KEY: &str = "eos_token_id";
    for name in ["generation_config.json", "config.json"] {
        let path = files.path().join(name);
        let Some(config) = read_keys(&files, name, |key| [KEY, "text_config"].contains(&key))? else {
            continue;
        };
        let within = config.get("text_config").and_then(|within| within.get(KEY));
        let found = [config.get(KEY), within].into_iter().flatten().find(|value| !value.is_null());
        let Some(found) = found else { continue };
        let ids = match found {
            Value::Array(ids) => ids.as_slice(),
            one => std::slice::from_ref(one),
        };
        let id = |id: &Value| id.as_u64().filter(|&id| id < limits::TOKENS as u64).map(|id| id as u32);
        let expected = "a token id or a list of token ids";
        return ids
            .iter()
            .map(|value| {
                id(value).ok_or_else(|| GenerateError::Key {
                    path: path.clone(),
                    key: KEY,
                    found: files::as_written(&found.to_string()),
                    expected,
                })
            })
            .collect();
    }
    Ok(Vec::new())
}

/// Finds stop strings in pieces of a text, and holds back the possible beginning of one.
#[derive(Debug, Clone)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
}

/// The result of searching a piece of text for stop strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopMatch {
    /// Text that is certainly not part of a stop string; the text can be empty.
    Text(String),
    /// A stop string was found after this text; nothing after it is returned.
    Stop(String),
}

impl StopStrings {
    /// Creates a search. Ignores empty strings, which would match everywhere.
    pub fn new(strings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let strings =
            strings.into_iter().map(Into::into).filter(|string: &String| !string.is_empty()).collect();
        StopStrings { strings, held: String::new() }
    }

    /// Searches the next piece of text. The stop string that is complete first wins, and then the longest
    /// one. The division into pieces does not matter.
    pub fn push(&mut self, piece: &str) -> StopMatch {
        self.held.push_str(piece);
        let found = |string: &String| self.held.find(string).map(|at| (at + string.len(), at));
        if let Some((_, at)) = self.strings.iter().filter_map(found).min() {
            self.held.truncate(at);
            return StopMatch::Stop(std::mem::take(&mut self.held));
        }
        let begins_stop =
            |at: &usize| self.strings.iter().any(|string| string.starts_with(&self.held[*at..]));
        let starts = self.held.char_indices().map(|(at, _)| at);
        let at = starts.into_iter().find(begins_stop).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        StopMatch::Text(std::mem::replace(&mut self.held, rest))
    }

    /// Returns the text that the search has held back. Call `finish` if the text ends without a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn tokens(files: &[(&str, &str)]) -> Result<Vec<u32>, GenerateError> {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
        stop_tokens(dir.path())
    }

    #[test]
    fn stop_tokens_are_one_or_many() {
        const GENERATION: &str = "generation_config.json";
        assert_eq!(tokens(&[(GENERATION, r#"{"eos_token_id": [5, 6]}"#)]).unwrap(), [5, 6]);
        let both = [(GENERATION, r#"{"eos_token_id": 5}"#), ("config.json", r#"{"eos_token_id": 7}"#)];
        assert_eq!(tokens(&both).unwrap(), [5]);
        let fallen_back =
            [(GENERATION, r#"{"eos_token_id": null}"#), ("config.json", r#"{"eos_token_id": 7}"#)];
        assert_eq!(tokens(&fallen_back).unwrap(), [7]);
        assert!(tokens(&[]).unwrap().is_empty());
        let within = [("config.json", r#"{"text_config": {"eos_token_id": 8}}"#)];
        assert_eq!(tokens(&within).unwrap(), [8]);
    }

    #[test]
    fn bad_stop_tokens_name_file_and_key() {
        let error = tokens(&[("config.json", r#"{"eos_token_id": [1, "x"]}"#)]).unwrap_err().to_string();
        assert!(error.starts_with("key `eos_token_id` of `"), "{error}");
        assert!(
            error.ends_with("config.json` is `[1,\"x\"]`, expected a token id or a list of token ids"),
            "{error}"
        );
        for large in ["1048576", "4294967295", "4294967296", "-1"] {
            let error = tokens(&[("config.json", &format!(r#"{{"eos_token_id": {large}}}"#))]).unwrap_err();
            assert!(error.to_string().contains(&format!("is `{large}`")), "{error}");
        }
        assert!(matches!(tokens(&[("config.json", "{")]), Err(GenerateError::Json { .. })));
    }

    #[test]
    fn a_stop_string_is_found_across_pieces() {
        let mut stop = StopStrings::new(["</s>", "END"]);
        assert_eq!(stop.push("a<"), StopMatch::Text("a".into()));
        assert_eq!(stop.push("/b<"), StopMatch::Text("</b".into()));
        assert_eq!(stop.push("/s"), StopMatch::Text("".into()));
        assert_eq!(stop.push("> more"), StopMatch::Stop("".into()));

        let mut stop = StopStrings::new(["aab"]);
        assert_eq!(stop.push("aaa"), StopMatch::Text("a".into()));
        assert_eq!(stop.push("b"), StopMatch::Stop("".into()));
        let mut stop = StopStrings::new(["é!", "ab", "abc"]);
        assert_eq!(stop.push("xé"), StopMatch::Text("x".into()));
        assert_eq!(stop.finish(), "é");
        assert_eq!(stop.push("zabc"), StopMatch::Stop("z".into()));
    }

    #[test]
    fn nothing_is_held_without_stop_strings() {
        let mut stop = StopStrings::new([""]);
        assert_eq!(stop.push("abc"), StopMatch::Text("abc".into()));
        assert_eq!(stop.finish(), "");
    }

    proptest! {
        /// For every division of the text into pieces, the output is the text before the stop
        /// string that is complete first.
        #[test]
        fn pieces_do_not_matter(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            strings in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let text = pieces.concat();
            let mut stop = StopStrings::new(strings.clone());
            let (mut out, mut stopped) = (String::new(), false);
            for piece in &pieces {
                match stop.push(piece) {
                    StopMatch::Text(text) => out.push_str(&text),
                    StopMatch::Stop(text) => {
                        out.push_str(&text);
                        stopped = true;
                        break;
                    }
                }
            }
            if !stopped {
                out.push_str(&stop.finish());
            }
            let ends = (1..=text.len()).filter(|&end| text.is_char_boundary(end));
            let stops = |end: usize| strings.iter().filter(|s| text[..end].ends_with(s.as_str())).map(|s| s.len()).max();
            let expected = ends.map(|end| (end, stops(end))).find(|(_, len)| len.is_some());
            prop_assert_eq!(stopped, expected.is_some());
            let until = expected.map_or(text.len(), |(end, len)| end - len.unwrap());
            prop_assert_eq!(out.as_str(), &text[..until]);
        }
    }
}
