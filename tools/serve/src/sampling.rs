//! The fields of a request that set sampling options.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tracewright::GenerateOptions;

use crate::body::shown;
use crate::failure::Failure;

/// The largest number of stop strings per request.
const STOPS: usize = 64;

/// The largest number of answers to one request.
const ANSWERS: u64 = 16;

/// The fields that all requests for generated text share.
#[derive(Deserialize, JsonSchema)]
pub struct SamplingFields {
    /// The temperature. With the temperature 0, the sampler always takes the most likely token. The
    /// server's flags and the model's `generation_config.json` set the default values of all
    /// sampling fields.
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    /// This field is llama.cpp's name for `repetition_penalty`.
    repeat_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    /// The number of new tokens before the answer can end, as in vLLM.
    min_tokens: Option<usize>,
    /// The number of tokens in sequences that a text contains at most once.
    no_repeat_ngram_size: Option<usize>,
    /// Ids of tokens that the sampler never chooses.
    suppress_tokens: Option<Vec<u32>>,
    /// The seed of the random numbers with which the sampler draws tokens. Requests with the same
    /// seed draw the same tokens. Without a seed, the server chooses a new seed for each request.
    seed: Option<i64>,
    /// Stop strings: a text or a list of texts. The answer ends before the first stop string in its
    /// text.
    stop: Option<Value>,
    /// The number of answers to each prompt. The largest valid value of `n` is 16.
    n: Option<u64>,
    /// Whether the request can reuse the state (such as the KV cache) of an earlier prompt that
    /// begins with the same tokens. By default, the request can reuse the state of an earlier
    /// prompt.
    cache_prompt: Option<bool>,
    /// Whether the answer continues after the model's stop tokens.
    ignore_eos: Option<bool>,
    /// The server does not support the field `logit_bias`, and accepts only an empty object.
    logit_bias: Option<Value>,
}

impl SamplingFields {
    /// Combines the server's options with the options of the request.
    pub fn options(&self, defaults: &GenerateOptions) -> Result<GenerateOptions, Failure> {
        let mut options = defaults.clone();
        let sampling = &mut options.sampling;
        let set = |to: &mut f32, value: Option<f32>| *to = value.unwrap_or(*to);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.typical_p, self.typical_p);
        set(&mut sampling.penalties.frequency, self.frequency_penalty);
        set(&mut sampling.penalties.presence, self.presence_penalty);
        set(&mut sampling.penalties.repeat, self.repeat_penalty.or(self.repetition_penalty));
        let rules = &mut sampling.rules;
        rules.min_new_tokens = self.min_tokens.unwrap_or(rules.min_new_tokens);
        rules.no_repeat_ngram_size = self.no_repeat_ngram_size.unwrap_or(rules.no_repeat_ngram_size);
        if let Some(tokens) = &self.suppress_tokens {
            rules.suppress_tokens.clone_from(tokens);
        }
        if let Some(top_k) = self.top_k {
            // Some clients send -1 to select all tokens.
            sampling.top_k = usize::try_from(top_k).unwrap_or_default();
        }
        // Without a seed in the request, the server chooses a new seed.
        sampling.seed = self.seed.map_or_else(random, |seed| seed as u64);
        if let Some(ignore) = self.ignore_eos {
            options.ignore_eos = ignore;
        }
        if self.logit_bias.as_ref().is_some_and(|bias| bias.as_object().is_none_or(|bias| !bias.is_empty())) {
            return Err(Failure::Unsupported { param: "logit_bias".to_owned() });
        }
        options.stop.extend(self.stops()?);
        Ok(options)
    }

    fn stops(&self) -> Result<Vec<String>, Failure> {
        let refuse = |value: &Value| Failure::field("stop", shown(value), "a text or a list of texts");
        let list = match &self.stop {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        if list.len() > STOPS {
            let found = format!("a list of {}", list.len());
            return Err(Failure::field("stop", found, format!("at most {STOPS} texts")));
        }
        list.iter().map(|stop| stop.as_str().map(str::to_owned).ok_or_else(|| refuse(stop))).collect()
    }

    /// Sets the number of answers to one, for an API that returns one answer per request.
    pub fn single(self) -> Self {
        Self { n: None, ..self }
    }

    /// Returns the number of answers.
    pub fn count(&self) -> Result<usize, Failure> {
        match self.n.unwrap_or(1) {
            n @ 1..=ANSWERS => Ok(n as usize),
            n => Err(Failure::field("n", n.to_string(), format!("a number from 1 to {ANSWERS}"))),
        }
    }

    /// Whether the request can reuse the state of an earlier prompt.
    pub fn reuses(&self) -> bool {
        self.cache_prompt.unwrap_or(true)
    }
}

/// Returns a random number, which differs in each call.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
