//! Prepares texts for an embedding model in the same way as sentence-transformers: adds a prompt, and truncates
//! a text that is too long. Also reads and declares what follows the transformer.

mod after;
mod head;
mod mask;
mod modules;

use std::collections::BTreeMap;

use irpa::ModelFiles;

use crate::config::{ConfigError, Keys};
use modules::Modules;

pub use after::After;
pub(crate) use after::trace;
pub(crate) use head::Head;
pub(crate) use mask::{KEYS, masked, no_past, seen};
pub(crate) use modules::MODULES;
pub use modules::{Activation, HeadStep, Pooling};

/// Beside `config.json` and tokenizer, and without the folders of modules.
const FILES: [&str; 3] = [MODULES, "config_sentence_transformers.json", "sentence_bert_config.json"];

/// The settings that control the preparation of texts for an embedding model.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceConfig {
    /// By name; put before the user's text.
    pub prompts: BTreeMap<String, String>,
    /// Unless you select another one.
    pub default_prompt: Option<String>,
    /// The largest number of tokens in a text, including special tokens.
    pub max_tokens: usize,
    /// Whether texts are converted to lower case before they become tokens.
    pub lowercase: bool,
    /// The number of features of a token.
    pub features: usize,
    /// Several vectors are joined.
    pub pooling: Vec<Pooling>,
    /// The steps after the pooling.
    pub steps: Vec<HeadStep>,
    /// The folders of modules; each has a `config.json`.
    pub folders: Vec<String>,
    /// Those of `folders` that have weights.
    pub weights: Vec<String>,
    /// For a model that computes a score of two texts, and no embedding.
    pub pairs: Option<Pairs>,
}

/// How two texts become the input of a network that computes a score.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    /// Whether the network is told which tokens belong to the first text.
    pub marks: bool,
    /// Whether the score is the logistic function of the network's number, or the number itself.
    pub is_probability: bool,
}

/// The error that no prompt of the model has the requested name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model has no prompt `{name}`; the model's prompts are {known:?}")]
pub struct UnknownPrompt {
    /// The requested name of a prompt.
    pub name: String,
    /// The names of the model's prompts.
    pub known: Vec<String>,
}

impl SentenceConfig {
    /// `features` are those of a token, and `positions` the limit of texts without another one. Keys in
    /// `allowed` may be unknown. The error lists all unknown and invalid keys.
    pub fn read(
        folder: impl Into<ModelFiles>,
        features: usize,
        positions: usize,
        allowed: &[String],
    ) -> Result<Self, ConfigError> {
        let folder = folder.into();
        let Modules { pooling, steps, folders, weights } = Modules::read(&folder, features)?;
        let texts = Self::of_texts(&folder, positions, allowed)?;
        Ok(Self { features, pooling, steps, folders, weights, ..texts })
    }

    /// For a network with a head for scores, or one that sentence-transformers' modules follow.
    pub(crate) fn of(
        folder: &ModelFiles,
        head: Option<Head>,
        features: usize,
        positions: usize,
        allowed: &[String],
    ) -> Result<Self, ConfigError> {
        let Some(head) = head else { return Self::read(folder, features, positions, allowed) };
        if files::is_there(&folder.path().join(MODULES)) {
            Modules::check_bare(folder)?;
        }
        let texts = Self::of_texts(folder, positions, allowed)?;
        let (pooling, pairs) = (vec![head.pooling], Some(head.pairs));
        Ok(Self { features, pooling, steps: head.steps, pairs, ..texts })
    }

    /// Without modules. Any of the files may be missing.
    fn of_texts(folder: &ModelFiles, positions: usize, allowed: &[String]) -> Result<Self, ConfigError> {
        let keys = |name: &str| {
            let is_there = files::is_there(&folder.path().join(name));
            is_there.then(|| Keys::within(folder, name)).transpose()
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
        let (mut max_tokens, mut lowercase) = (None, false);
        if let Some(keys) = keys("sentence_bert_config.json")? {
            max_tokens = keys.optional_count("max_seq_length");
            if let Some(longest) = max_tokens.filter(|longest| *longest > positions) {
                let expected = format!("at most {positions}, the positions of the network");
                keys.refuse("max_seq_length", longest, expected);
            }
            lowercase = keys.flag("do_lower_case", false);
            keys.one_of("transformer_task", &["feature-extraction", "sequence-classification"]);
            keys.one_of("module_output_name", &["token_embeddings", "scores"]);
            keys.finish(&["modality_config", "unpad_inputs"], allowed)?;
        }
        if let Some(keys) = keys("tokenizer_config.json")? {
            // If the model has no limit, this number is larger than every integer.
            let said = keys.optional_number("model_max_length");
            if let Some(said) = said.filter(|said| *said < 1.0) {
                keys.refuse("model_max_length", said, "at least 1");
            }
            let longest = said.map_or(positions, |longest| longest as usize);
            max_tokens = max_tokens.or(Some(longest.min(positions)));
            keys.one_of("truncation_side", &["right"]);
            keys.finish_reading()?;
        }
        Ok(Self {
            prompts,
            default_prompt,
            max_tokens: max_tokens.unwrap_or(positions),
            lowercase,
            features: 0,
            pooling: Vec::new(),
            steps: Vec::new(),
            folders: Vec::new(),
            weights: Vec::new(),
            pairs: None,
        })
    }

    /// `None` selects the default prompt, or else the empty text.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str, UnknownPrompt> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        let unknown = || UnknownPrompt { name: name.into(), known: self.prompts.keys().cloned().collect() };
        self.prompts.get(name).map(String::as_str).ok_or_else(unknown)
    }

    /// The number of numbers in an embedding.
    pub fn outputs(&self) -> usize {
        let of = |step: &HeadStep| match step {
            HeadStep::Linear { outputs, .. } => Some(*outputs),
            HeadStep::LayerNorm { .. } | HeadStep::Normalize => None,
        };
        self.steps.iter().rev().find_map(of).unwrap_or(self.pooled())
    }

    /// The number of features behind the pooling.
    fn pooled(&self) -> usize {
        self.features * self.pooling.len()
    }

    /// The files that [`read`](Self::read) reads beside `config.json` and the tokenizer; some may be missing.
    pub fn files(&self) -> Vec<String> {
        let modules = self.folders.iter().map(|folder| format!("{folder}/config.json"));
        FILES.into_iter().map(str::to_owned).chain(modules).collect()
    }
}

/// Null is an empty text.
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
