//! Prepares texts like sentence-transformers: puts a prompt before each text, and cuts a text that is too long.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::{ConfigError, Keys};

/// The preparation of texts for an embedding model.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceConfig {
    /// Texts that can be put before a text, by name.
    pub prompts: BTreeMap<String, String>,
    /// The name of the default prompt, which applies unless you select another prompt. `None` means no prompt.
    pub default_prompt: Option<String>,
    /// The largest number of tokens in a text, including special tokens.
    pub max_tokens: usize,
}

/// No prompt of the model has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model has no prompt `{name}`; the model's prompts are {known:?}")]
pub struct UnknownPrompt {
    /// The requested name of a prompt.
    pub name: String,
    /// The names of the model's prompts.
    pub known: Vec<String>,
}

impl SentenceConfig {
    /// Reads the files in `folder` that describe the text preparation. Each file may be missing. If no file
    /// limits the length of a text, the limit is `positions`, the network's own limit. The keys in `allowed`
    /// may be in a file although no code reads them.
    ///
    /// # Errors
    /// Returns an error if keys of a file are unknown or invalid. The error lists all of these keys.
    pub fn read(folder: &Path, positions: usize, allowed: &[String]) -> Result<Self, ConfigError> {
        let keys = |name: &str| {
            let path = folder.join(name);
            files::is_there(&path).then(|| Keys::read(&path)).transpose()
        };
        let (mut prompts, mut default_prompt) = (BTreeMap::new(), None);
        if let Some(keys) = keys("config_sentence_transformers.json")? {
            prompts = read_prompts(&keys);
            default_prompt = keys.optional_text("default_prompt_name");
            if let Some(name) = default_prompt.as_ref().filter(|name| !prompts.contains_key(*name)) {
                let known: Vec<&String> = prompts.keys().collect();
                keys.refuse("default_prompt_name", format!("\"{name}\""), format!("one of {known:?}"));
            }
            keys.finish(&["__version__", "model_type", "similarity_fn_name"], allowed)?;
        }
        let mut max_tokens = None;
        if let Some(keys) = keys("sentence_bert_config.json")? {
            max_tokens = keys.optional_count("max_seq_length");
            if let Some(longest) = max_tokens.filter(|longest| *longest > positions) {
                let expected = format!("at most {positions}, the positions of the network");
                keys.refuse("max_seq_length", longest, expected);
            }
            keys.always("do_lower_case", false);
            keys.one_of("transformer_task", &["feature-extraction"]);
            keys.one_of("module_output_name", &["token_embeddings"]);
            keys.finish(&["modality_config", "unpad_inputs"], allowed)?;
        }
        if let Some(keys) = keys("tokenizer_config.json")? {
            // A model without a limit has a number larger than every integer here.
            let said = keys.optional_number("model_max_length");
            if let Some(said) = said.filter(|said| *said < 1.0) {
                keys.refuse("model_max_length", said, "at least 1");
            }
            let longest = said.map_or(positions, |longest| longest as usize);
            max_tokens = max_tokens.or(Some(longest.min(positions)));
            keys.one_of("truncation_side", &["right"]);
            keys.finish_reading()?;
        }
        Ok(Self { prompts, default_prompt, max_tokens: max_tokens.unwrap_or(positions) })
    }

    /// The prompt with this name. `None` selects the default prompt, or the empty text if there is none.
    ///
    /// # Errors
    /// Returns an error if the model has no prompt with this name.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str, UnknownPrompt> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        let unknown = || UnknownPrompt { name: name.into(), known: self.prompts.keys().cloned().collect() };
        self.prompts.get(name).map(String::as_str).ok_or_else(unknown)
    }
}

/// Reads the key `prompts`: a text for each name, where null means no prompt.
fn read_prompts(keys: &Keys) -> BTreeMap<String, String> {
    const EXPECTED: &str = "an object of strings";
    let Some(value) = keys.get("prompts") else { return BTreeMap::new() };
    let Some(map) = value.as_object() else {
        keys.refuse("prompts", value, EXPECTED);
        return BTreeMap::new();
    };
    if map.values().any(|text| !text.is_string() && !text.is_null()) {
        keys.refuse("prompts", value, EXPECTED);
    }
    let text = |text: &serde_json::Value| text.as_str().unwrap_or_default().to_owned();
    map.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}
