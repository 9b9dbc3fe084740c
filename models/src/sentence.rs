//! Prepares texts for an embedding model in the same way as sentence-transformers, and reads the
//! configurations of the modules after the transformer. Tracewright puts a prompt before each text, and
//! truncates a text that is too long.

use std::collections::BTreeMap;

use dsl::{Float, Tensor};
use irpa::ModelFiles;

use crate::config::{ConfigError, Keys, parse, text_within};

/// Beside `config.json` and tokenizer: modules, their configurations, and settings for texts.
pub(crate) const FILES: [&str; 6] = [
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "3_Dense/config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
];

/// The settings that control the preparation of texts for an embedding model.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceConfig {
    /// By name; put before the user's text.
    pub prompts: BTreeMap<String, String>,
    /// Unless you select another one.
    pub default_prompt: Option<String>,
    /// The largest number of tokens in a text, including special tokens.
    pub max_tokens: usize,
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
    /// Any of the files may be missing. Without a limit on the length, it is `positions`. Keys in `allowed`
    /// may be unknown. The error lists all unknown and invalid keys.
    pub fn read(
        folder: impl Into<ModelFiles>,
        positions: usize,
        allowed: &[String],
    ) -> Result<Self, ConfigError> {
        let folder = folder.into();
        let keys = |name: &str| {
            let is_there = files::is_there(&folder.path().join(name));
            is_there.then(|| Keys::within(&folder, name)).transpose()
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
        Ok(Self { prompts, default_prompt, max_tokens: max_tokens.unwrap_or(positions) })
    }

    /// `None` selects the default prompt, or else the empty text.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str, UnknownPrompt> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        let unknown = || UnknownPrompt { name: name.into(), known: self.prompts.keys().cloned().collect() };
        self.prompts.get(name).map(String::as_str).ok_or_else(unknown)
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

/// The activation function after a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseActivation {
    /// The layer has no activation function.
    Identity,
    /// The hyperbolic tangent of each feature.
    Tanh,
}

impl DenseActivation {
    #[track_caller]
    pub(crate) fn apply<T: Float>(self, x: Tensor<T>) -> Tensor<T> {
        match self {
            Self::Identity => x,
            Self::Tanh => x.tanh(),
        }
    }
}

/// `modules.json` must list these: last component of the type, and folder.
pub(crate) fn check_modules(folder: &ModelFiles, expected: &[(&str, &str)]) -> Result<(), ConfigError> {
    const NAME: &str = "modules.json";
    let path = folder.path().join(NAME);
    let modules = parse(&path, &text_within(folder, NAME, &path)?)?;
    let found: Vec<(&str, &str)> =
        modules.as_array().map_or(&[][..], Vec::as_slice).iter().map(module).collect();
    if found == expected {
        Ok(())
    } else {
        let show = |(kind, folder): &(&str, &str)| format!("{kind} at `{folder}`");
        let [found, expected] = [&found[..], expected].map(|list| list.iter().map(show).collect::<Vec<_>>());
        let (found, expected) = (found.join(", "), expected.join(", "));
        Err(ConfigError::Modules { path, found, expected })
    }
}

/// Type and folder.
fn module(module: &serde_json::Value) -> (&str, &str) {
    let text = |key: &str| module.get(key).and_then(|text| text.as_str()).unwrap_or("nothing");
    let kind = text("type");
    (kind.rsplit_once('.').map_or(kind, |(_, last)| last), text("path"))
}

/// Checks that the configuration of the pooling module selects the mean over the tokens.
pub(crate) fn check_pooling(keys: Keys, features: usize) -> Result<(), ConfigError> {
    for key in ["embedding_dimension", "word_embedding_dimension"] {
        if let Some(found) = keys.optional_count(key).filter(|&found| found != features) {
            keys.refuse(key, found, format!("{features}, the `hidden_size`"));
        }
    }
    keys.one_of("pooling_mode", &["mean"]);
    keys.always("pooling_mode_mean_tokens", true);
    for other in [
        "pooling_mode_cls_token",
        "pooling_mode_max_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens",
        "pooling_mode_lasttoken",
    ] {
        keys.always(other, false);
    }
    keys.always("include_prompt", true);
    keys.finish(&[], &[])
}

/// Outputs, bias and activation of a linear layer.
pub(crate) fn dense(keys: Keys, inputs: usize) -> Result<(usize, bool, DenseActivation), ConfigError> {
    const IDENTITY: &str = "torch.nn.modules.linear.Identity";
    const TANH: &str = "torch.nn.modules.activation.Tanh";
    let found = keys.count("in_features");
    if found != inputs {
        keys.refuse("in_features", found, format!("{inputs}, the features that come in"));
    }
    keys.one_of("activation_function", &[IDENTITY, TANH]);
    let activation = match keys.optional_text("activation_function").as_deref() {
        Some(IDENTITY) => DenseActivation::Identity,
        _ => DenseActivation::Tanh,
    };
    keys.always("use_residual", false);
    let layer = (keys.count("out_features"), keys.flag("bias", true), activation);
    keys.finish(&["module_input_name", "module_output_name"], &[])?;
    Ok(layer)
}
