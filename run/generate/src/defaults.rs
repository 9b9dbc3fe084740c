//! Reads the keys of `generation_config.json`, with the names, defaults and conditions of `GenerationConfig`
//! and `GenerationMixin._get_logits_processor` in Hugging Face transformers 5.

use std::path::PathBuf;

use errors::{escaped, shortened};
use files::limits;
use irpa::ModelFiles;
use serde_json::{Map, Value};

use crate::model_file::read_keys;
use crate::{GenerateError, GenerateOptions, LogitRules, Sampling, SamplingStep, Setting};

const FILE: &str = "generation_config.json";

/// An error message shows at most this number of characters of a value.
const SHOWN: usize = 300;

/// The largest number of tokens, sequences or numbers in a list.
const LIST: usize = 1 << 16;

/// The options that a model sets in its `generation_config.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// The options for generating text. Keys that the file lacks have Tracewright's defaults.
    pub options: GenerateOptions,
    /// The largest number of new tokens, if the file sets this number.
    pub max_new_tokens: Option<usize>,
    /// The keys that would change a text, but that Tracewright does not apply, with their values.
    pub unapplied: Vec<(String, String)>,
}

/// Keys without an effect on the text. The keys for beams have no effect without `num_beams`.
const WITHOUT_EFFECT: &[&str] = &[
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "decoder_start_token_id",
    "disable_compile",
    "early_stopping",
    "eos_token_id",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "renormalize_logits",
    "return_dict_in_generate",
    "return_legacy_cache",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "use_mtp",
    "_from_model_config",
];

/// Keys that change a text, with the value that changes nothing.
const UNAPPLIED: &[(&str, f64)] = &[
    ("assistant_ensemble_weight", 0.0),
    ("diversity_penalty", 0.0),
    ("guidance_scale", 1.0),
    ("max_time", f64::INFINITY),
    ("num_beam_groups", 1.0),
    ("num_beams", 1.0),
    ("num_return_sequences", 1.0),
    ("penalty_alpha", 0.0),
    ("token_healing", 0.0),
];

/// Reads the options that a model sets. The metadata of a GGUF file set no options.
pub fn generation_defaults(model: impl Into<ModelFiles>) -> Result<GenerationDefaults, GenerateError> {
    let files = model.into();
    let path = files.path().join(FILE);
    let Some(keys) = read_keys(&files, FILE, |_| true)? else { return Ok(GenerationDefaults::default()) };
    let mut keys = Keys { path, keys };
    keys.keys.retain(|key, value| !value.is_null() && !WITHOUT_EFFECT.contains(&key.as_str()));
    let max_new_tokens = keys.count("max_new_tokens")?;
    let mut sampling = sampling(&mut keys)?;
    sampling.rules = rules(&mut keys, sampling.rules)?;
    let options = GenerateOptions {
        // 20 is the default value of transformers, which counts new tokens only.
        max_length: keys.count("max_length")?.filter(|&length| length != 20 && max_new_tokens.is_none()),
        stop: keys.stop_strings()?,
        sampling,
        ..GenerateOptions::default()
    };
    let options = GenerateOptions { max_tokens: max_new_tokens.unwrap_or(options.max_tokens), ..options };
    Ok(GenerationDefaults { options, max_new_tokens, unapplied: keys.unapplied() })
}

/// Reads the keys of all settings that are numbers. Without `do_sample`, the temperature is 0.
fn sampling(keys: &mut Keys) -> Result<Sampling, GenerateError> {
    let draws = keys.flag("do_sample")?;
    let mut sampling = Sampling::default();
    if draws {
        // The defaults of transformers.
        (sampling.temperature, sampling.top_k) = (1.0, 50);
    }
    let is_warper = |setting: &Setting| setting.model_key.is_some_and(|key| keys.keys.contains_key(key));
    let is_set = draws || Sampling::warpers().any(is_warper);
    for setting in Sampling::settings() {
        let Some(key) = setting.model_key else { continue };
        let number = if setting.range.is_whole {
            keys.count(key)?.map(|count| count as f64)
        } else {
            keys.number(key)?.map(f64::from)
        };
        if let Some(number) = number {
            sampling.store(setting, number);
        }
    }
    if !draws {
        sampling.temperature = 0.0;
    }
    if sampling.penalties.repeat != 1.0 {
        sampling.penalties.last_n = None;
    }
    if is_set {
        sampling.order = SamplingStep::transformers_order();
    }
    Ok(sampling)
}

/// Reads the keys that have an effect in greedy decoding too.
fn rules(keys: &mut Keys, numbers: LogitRules) -> Result<LogitRules, GenerateError> {
    Ok(LogitRules {
        suppress_tokens: keys.tokens("suppress_tokens")?,
        begin_suppress_tokens: keys.tokens("begin_suppress_tokens")?,
        bad_words_ids: keys.sequences("bad_words_ids")?,
        sequence_bias: keys.biases("sequence_bias")?,
        encoder_no_repeat_ngram_size: keys.count("encoder_no_repeat_ngram_size")?.unwrap_or(0),
        encoder_repetition_penalty: keys.number("encoder_repetition_penalty")?.unwrap_or(1.0),
        min_length: keys.count("min_length")?.unwrap_or(0),
        forced_bos_token_id: keys.tokens("forced_bos_token_id")?.first().copied(),
        forced_eos_token_id: keys.tokens("forced_eos_token_id")?,
        exponential_decay_length_penalty: keys.decay("exponential_decay_length_penalty")?,
        remove_invalid_values: keys.flag("remove_invalid_values")?,
        ..numbers
    })
}

/// The keys of a file that no function has read yet.
struct Keys {
    path: PathBuf,
    keys: Map<String, Value>,
}

impl Keys {
    fn take<T>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, GenerateError> {
        let Some(value) = self.keys.remove(key) else { return Ok(None) };
        convert(&value).map(Some).ok_or_else(|| self.wrong(key, &value, expected))
    }

    fn wrong(&self, key: &'static str, found: &Value, expected: &'static str) -> GenerateError {
        let found = escaped(&shortened(files::as_written(&found.to_string()), SHOWN));
        GenerateError::Key { path: self.path.clone(), key, found, expected }
    }

    fn flag(&mut self, key: &'static str) -> Result<bool, GenerateError> {
        Ok(self.take(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    fn number(&mut self, key: &'static str) -> Result<Option<f32>, GenerateError> {
        let number = |value: &Value| Some(value.as_f64()? as f32).filter(|number| number.is_finite());
        self.take(key, "a number", number)
    }

    fn count(&mut self, key: &'static str) -> Result<Option<usize>, GenerateError> {
        let whole =
            |number: f64| (number.fract() == 0.0 && (0.0..1e15).contains(&number)).then_some(number as u64);
        let count = |value: &Value| usize::try_from(value.as_u64().or_else(|| whole(value.as_f64()?))?).ok();
        self.take(key, "an integer from 0", count)
    }

    fn tokens(&mut self, key: &'static str) -> Result<Vec<u32>, GenerateError> {
        let tokens = |value: &Value| match value {
            Value::Array(_) => ids(value),
            one => Some(vec![id(one)?]),
        };
        Ok(self.take(key, "a token id or a list of token ids", tokens)?.unwrap_or_default())
    }

    fn sequences(&mut self, key: &'static str) -> Result<Vec<Vec<u32>>, GenerateError> {
        let sequences = |value: &Value| list(value)?.iter().map(sequence).collect();
        Ok(self.take(key, "a list of lists of token ids", sequences)?.unwrap_or_default())
    }

    fn biases(&mut self, key: &'static str) -> Result<Vec<(Vec<u32>, f32)>, GenerateError> {
        let bias = |pair: &Value| {
            let [tokens, bias] = list(pair)?.as_slice() else { return None };
            Some((sequence(tokens)?, number(bias).filter(|bias| *bias < f64::INFINITY)? as f32))
        };
        let biases = |value: &Value| {
            let mut biases: Vec<(Vec<u32>, f32)> = list(value)?.iter().map(bias).collect::<Option<_>>()?;
            // The last of several numbers for one sequence wins.
            biases.reverse();
            let mut known = std::collections::HashSet::new();
            biases.retain(|(tokens, _)| known.insert(tokens.clone()));
            biases.reverse();
            Some(biases)
        };
        Ok(self.take(key, "a list of pairs of token ids and a number", biases)?.unwrap_or_default())
    }

    fn decay(&mut self, key: &'static str) -> Result<Option<(usize, f32)>, GenerateError> {
        let decay = |value: &Value| {
            let [start, factor] = value.as_array()?.as_slice() else { return None };
            let factor =
                Some(factor.as_f64()? as f32).filter(|factor| *factor > 0.0 && factor.is_finite())?;
            Some((usize::try_from(start.as_u64()?).ok()?, factor))
        };
        self.take(key, "a list of an integer from 0 and a number above 0", decay)
    }

    fn stop_strings(&mut self) -> Result<Vec<String>, GenerateError> {
        let texts = |value: &Value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            other => list(other)?.iter().map(|text| Some(text.as_str()?.to_owned())).collect(),
        };
        Ok(self.take("stop_strings", "a text or a list of texts", texts)?.unwrap_or_default())
    }

    /// Returns all keys that no function has read and that are not known to change nothing.
    fn unapplied(self) -> Vec<(String, String)> {
        let is_neutral = |key: &str, value: &Value| {
            let Some((_, neutral)) = UNAPPLIED.iter().find(|(known, _)| *known == key) else { return false };
            let found = match value {
                Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
                other => number(other),
            };
            found == Some(*neutral)
        };
        let others = self.keys.into_iter().filter(|(key, value)| !is_neutral(key, value));
        let shown = |value: &Value| escaped(&shortened(files::as_written(&value.to_string()), SHOWN));
        others.map(|(key, value)| (escaped(&shortened(key, SHOWN)), shown(&value))).collect()
    }
}

/// Returns a number, which can be infinite: the reader of JSON files replaces `Infinity` by an object.
fn number(value: &Value) -> Option<f64> {
    let infinite = || value.get("__float__")?.as_str()?.parse().ok();
    value.as_f64().or_else(infinite)
}

fn list(value: &Value) -> Option<&Vec<Value>> {
    value.as_array().filter(|list| list.len() <= LIST)
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().filter(|&id| id < limits::TOKENS as u64).map(|id| id as u32)
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    list(value)?.iter().map(id).collect()
}

fn sequence(value: &Value) -> Option<Vec<u32>> {
    ids(value).filter(|tokens| !tokens.is_empty())
}
