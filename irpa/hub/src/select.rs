//! Selects the files of a repository that Tracewright reads.

use crate::{HubError, ModelName};

/// Additional files of sentence-transformers.
const SENTENCE_FILES: [&str; 3] =
    ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"];

pub const INDEX: &str = "model.safetensors.index.json";

pub const WHOLE: &str = "model.safetensors";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole model.
    Gguf(String),
    /// With an index, shards (further weight files) are still to be downloaded.
    Folder { files: Vec<String>, has_index: bool },
}

pub fn select(name: &ModelName, files: &[String]) -> Result<Selection, HubError> {
    let has = |file: &str| files.iter().any(|known| known == file);
    let is_gguf = |file: &&String| file.to_lowercase().ends_with(".gguf");
    match &name.file {
        Some(wanted) => {
            if has(wanted) {
                return Ok(Selection::Gguf(wanted.clone()));
            }
            let lower = wanted.to_lowercase();
            let fits = |file: &&String| is_gguf(file) && is_tagged(&file.to_lowercase(), &lower);
            one_gguf(name, files.iter().filter(fits).cloned().collect())?.ok_or_else(|| HubError::NoFile {
                name: name.clone().into(),
                file: wanted.clone(),
                known: files.to_vec(),
            })
        }
        None if has("config.json") && (has(INDEX) || has(WHOLE)) => {
            let of_module = |file: &str| {
                // A sentence-transformers model has one configuration file per module, such as
                // `1_Pooling/config.json`.
                let (folder, file) = file.split_once('/').unwrap_or_default();
                folder.starts_with(|c: char| c.is_ascii_digit())
                    && folder.contains('_')
                    && (file == "config.json" || file == WHOLE)
            };
            let weights = if has(INDEX) { INDEX } else { WHOLE };
            let is_read = |file: &&String| {
                ::files::TOKENIZER_FILES.contains(&file.as_str())
                    || SENTENCE_FILES.contains(&file.as_str())
                    || *file == weights
                    || (has("modules.json") && of_module(file))
            };
            let files = files.iter().filter(is_read).cloned().collect();
            Ok(Selection::Folder { files, has_index: weights == INDEX })
        }
        None => one_gguf(name, files.iter().filter(is_gguf).cloned().collect())?
            .ok_or_else(|| HubError::NoWeights { name: name.clone().into(), known: files.to_vec() }),
    }
}

/// `tag` as a whole word: `model-Q4_K.gguf` contains `Q4_K`, but `model-Q4_K_M.gguf` does not.
fn is_tagged(file: &str, tag: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| !(c.is_ascii_alphanumeric() || c == '_'));
    file.match_indices(tag).any(|(at, _)| {
        is_end(file[..at].chars().next_back()) && is_end(file[at + tag.len()..].chars().next())
    })
}

fn one_gguf(name: &ModelName, mut found: Vec<String>) -> Result<Option<Selection>, HubError> {
    match found.len() {
        0 | 1 => Ok(found.pop().map(Selection::Gguf)),
        _ => Err(HubError::SeveralFiles { name: name.clone().into(), files: found }),
    }
}

/// Without duplicates; `None` if the index is not valid.
pub fn shards(index: &[u8]) -> Option<Vec<String>> {
    let index: serde_json::Value = serde_json::from_slice(::files::unmarked(index)).ok()?;
    let map = index.get("weight_map")?.as_object()?;
    let shards: Option<std::collections::BTreeSet<_>> =
        map.values().map(|file| file.as_str().map(str::to_owned)).collect();
    Some(shards?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(name: &str, files: &[&str]) -> Result<Selection, HubError> {
        let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        select(&ModelName::parse(name).unwrap(), &files)
    }

    #[test]
    fn only_what_is_read_is_chosen() {
        let folder = |files: &[&str], has_index| {
            let files = files.iter().map(|&file| file.to_owned()).collect();
            Selection::Folder { files, has_index }
        };
        let files = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model.safetensors",
            "onnx/model.onnx",
            "original/params.json",
            "pytorch_model.bin",
            "tokenizer.json",
        ];
        let expected = folder(&["config.json", "model.safetensors", "tokenizer.json"], false);
        assert_eq!(chosen("o/n", &files).unwrap(), expected);
        // If a repository contains both an index and a single weight file, Tracewright uses the index.
        let files = ["config.json", "model-00001-of-00002.safetensors", WHOLE, INDEX];
        assert_eq!(chosen("o/n", &files).unwrap(), folder(&["config.json", INDEX], true));
        let files = ["1_Pooling/config.json", "2_Dense/model.safetensors", "config.json", WHOLE];
        assert_eq!(chosen("o/n", &files).unwrap(), folder(&["config.json", WHOLE], false));
        let files =
            ["1_Pooling/config.json", "2_Dense/model.safetensors", "config.json", WHOLE, "modules.json"];
        assert_eq!(chosen("o/n", &files).unwrap(), folder(&files, false));
    }

    #[test]
    fn a_gguf_file_is_named_or_the_only_one() {
        let gguf = |file: &str| Selection::Gguf(file.into());
        let files = ["a-Q4_K.gguf", "a-Q4_K_M.gguf", "sub/a-q8_0.gguf", "config.json"];
        assert_eq!(chosen("o/n:a-Q4_K_M.gguf", &files).unwrap(), gguf("a-Q4_K_M.gguf"));
        assert_eq!(chosen("o/n:Q4_K", &files).unwrap(), gguf("a-Q4_K.gguf"));
        assert_eq!(chosen("o/n:q8_0", &files).unwrap(), gguf("sub/a-q8_0.gguf"));
        assert_eq!(chosen("o/n", &["only.gguf", "README.md"]).unwrap(), gguf("only.gguf"));
        assert!(matches!(chosen("o/n:Q5_0", &files), Err(HubError::NoFile { .. })));
        let several = chosen("o/n", &files).unwrap_err().to_string();
        assert!(several.contains("matches 3 GGUF files") && several.contains("a-Q4_K_M.gguf"), "{several}");
        let none = chosen("o/n", &["pytorch_model.bin"]).unwrap_err().to_string();
        assert!(none.contains("pytorch_model.bin"), "{none}");
    }
}
