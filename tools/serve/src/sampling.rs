//! The fields of a request that set sampling options.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::LazyLock;

use generate::{Range, Sampling, SamplingStep, Setting};
use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tracewright::GenerateOptions;

use crate::body::{check, fields, shown};
use crate::failure::Failure;

/// The largest number of stop strings per request.
const STOPS: usize = 64;

/// The largest number of answers to one request.
const ANSWERS: u64 = 16;

/// The fields that all requests for generated text share. The server's flags and the model's
/// `generation_config.json` set the default values of all sampling fields.
#[derive(Deserialize, JsonSchema)]
pub struct SamplingFields {
    /// The numbers of the sampler.
    #[serde(skip)]
    numbers: Vec<(&'static Setting, f64)>,
    /// Texts at which the DRY penalty ends a repetition. An empty list ends no repetition.
    dry_sequence_breakers: Option<Vec<String>>,
    /// The names of the sampling steps, in the order in which they run.
    samplers: Option<Vec<String>>,
    /// Ids of tokens that the sampler never chooses.
    suppress_tokens: Option<Vec<u32>>,
    /// The seed of the random numbers with which the sampler draws tokens. Requests with the same
    /// seed draw the same tokens. Without a seed, the server chooses a new seed for each request.
    seed: Option<i64>,
    /// Stop strings: a text or a list of texts. The answer ends before the first stop string in its text.
    stop: Option<Value>,
    /// The number of answers to each prompt. The largest valid value of `n` is 16.
    n: Option<u64>,
    /// Whether the request can reuse the state (such as the KV cache) of an earlier prompt that begins with
    /// the same tokens. By default, the request can reuse the state of an earlier prompt.
    cache_prompt: Option<bool>,
    /// Whether the answer continues after the model's stop tokens.
    ignore_eos: Option<bool>,
    /// Additions to logits, as an object from token ids to numbers, or as a list of pairs. `false` forbids a token.
    logit_bias: Option<Value>,
    /// Ids of tokens that end the answer, in addition to the model's stop tokens.
    stop_token_ids: Option<Vec<u32>>,
}

/// Returns the names of a setting's field in requests.
fn names(setting: &Setting) -> impl Iterator<Item = &'static str> + use<> {
    std::iter::once(setting.name).chain(setting.aliases.iter().copied())
}

/// Generates the JSON Schema of the fields that set the sampler's numbers.
pub fn number_schema() -> Schema {
    let field = |setting: &'static Setting| {
        let Range { least, most, is_open, is_whole, .. } = setting.range;
        let kind = if is_whole { "integer" } else { "number" };
        let mut schema = json!({ "description": setting.help, "type": [kind, "null"] });
        let least_key = if is_open { "exclusiveMinimum" } else { "minimum" };
        for (key, bound) in [(least_key, least), ("maximum", most)] {
            if bound.abs() < f64::from(f32::MAX) && bound < u64::MAX as f64 {
                schema[key] = json!(bound);
            }
        }
        names(setting).map(move |name| (name.to_owned(), schema.clone()))
    };
    let properties: Map<String, Value> = Sampling::settings().flat_map(field).collect();
    json_schema!({ "type": "object", "properties": properties })
}

/// Returns the sampling steps with the given names.
fn steps(words: &[String]) -> Result<Vec<SamplingStep>, Failure> {
    let step = |(i, word): (usize, &String)| {
        SamplingStep::of_word(word).ok_or_else(|| {
            let known: Vec<_> = SamplingStep::ORDER.iter().map(|step| format!("`{}`", step.word())).collect();
            let expected = format!("one of {}", known.join(", "));
            Failure::field(format!("samplers[{i}]"), shown(&json!(word)), expected)
        })
    };
    words.iter().enumerate().map(step).collect()
}

impl SamplingFields {
    /// Reads the sampling fields of a body.
    pub fn read(body: &Value) -> Result<Self, Failure> {
        static NUMBERS: LazyLock<Schema> = LazyLock::new(number_schema);
        check(NUMBERS.as_value(), body, "")?;
        let number = |setting: &'static Setting| {
            let given = names(setting).find_map(|name| body.get(name)?.as_f64());
            Some((setting, given?))
        };
        let numbers = Sampling::settings().filter_map(number).collect();
        Ok(Self { numbers, ..fields(body)? })
    }

    /// Combines the server's options with the options of the request.
    pub fn options(&self, defaults: &GenerateOptions, vocabulary: usize) -> Result<GenerateOptions, Failure> {
        let mut options = defaults.clone();
        let sampling = &mut options.sampling;
        for (setting, number) in &self.numbers {
            sampling.set(setting, *number)?;
        }
        if let Some(words) = &self.samplers {
            sampling.order = steps(words)?;
        }
        if let Some(texts) = &self.dry_sequence_breakers {
            options.dry_breakers = Some(texts.clone());
        }
        if let Some(tokens) = &self.suppress_tokens {
            sampling.rules.suppress_tokens.clone_from(tokens);
        }
        // Without a seed in the request, the server chooses a new seed.
        sampling.seed = self.seed.map_or_else(random, |seed| seed as u64);
        if let Some(ignore) = self.ignore_eos {
            options.ignore_eos = ignore;
        }
        for (token, bias) in self.biases(vocabulary)? {
            match bias {
                Some(bias) => sampling.rules.sequence_bias.push((vec![token], bias)),
                None => sampling.rules.suppress_tokens.push(token),
            }
        }
        let ends = self.stop_token_ids.as_deref().unwrap_or_default();
        if let Some((i, token)) = ends.iter().enumerate().find(|(_, token)| **token as usize >= vocabulary) {
            let expected = format!("a token id below {vocabulary}");
            return Err(Failure::field(format!("stop_token_ids[{i}]"), token.to_string(), expected));
        }
        options.stop_tokens.extend(ends);
        options.stop.extend(self.stops()?);
        Ok(options)
    }

    /// Returns the tokens of `logit_bias` with their additions, or `None` for a token that is forbidden.
    fn biases(&self, vocabulary: usize) -> Result<Vec<(u32, Option<f32>)>, Failure> {
        let Some(given) = self.logit_bias.as_ref().filter(|given| !given.is_null()) else {
            return Ok(Vec::new());
        };
        let refuse = |found: &Value| {
            let expected = format!("token ids below {vocabulary} with numbers from -100 to 100");
            Failure::field("logit_bias", shown(found), expected)
        };
        let pairs: Vec<(Value, &Value)> = match given {
            Value::Object(object) => object
                .iter()
                .map(|(token, bias)| (token.parse::<u32>().map_or(Value::Null, Value::from), bias))
                .collect(),
            Value::Array(list) => {
                let pairs = list.iter().map(|pair| Some((pair.get(0)?.clone(), pair.get(1)?)));
                pairs.collect::<Option<_>>().ok_or_else(|| refuse(given))?
            }
            other => return Err(refuse(other)),
        };
        let bias = |(token, bias): (Value, &Value)| {
            let token =
                token.as_u64().filter(|&token| token < vocabulary as u64).ok_or_else(|| refuse(given))?;
            let number = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            match (bias, number) {
                (Value::Bool(false), _) => Ok((token as u32, None)),
                (_, Some(number)) => Ok((token as u32, Some(number as f32))),
                _ => Err(refuse(given)),
            }
        };
        pairs.into_iter().map(bias).collect()
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
