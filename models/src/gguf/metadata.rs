//! What the metadata of a GGUF file say, as a `config.json` says it.

use std::cell::RefCell;
use std::iter;

use files::limits;
use irpa::{Dtype, Gguf, GgufTensor, GgufValue, StoredNumbers};
use ops::ElementType;
use serde_json::{Map, Value, json};

use crate::config::{ConfigError, KeyProblem};

/// The architectures that [`GgufModel::read`](crate::GgufModel::read) knows, as `general.architecture` names them.
pub const GGUF_ARCHITECTURES: &[&str] =
    &["gemma2", "gemma3", "gpt2", "lfm2", "llama", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"];

/// The metadata of a network.
pub(super) struct Metadata<'a> {
    file: &'a Gguf,
    architecture: &'a str,
    problems: RefCell<Vec<KeyProblem>>,
}

impl<'a> Metadata<'a> {
    /// Those of a file.
    ///
    /// # Errors
    /// If the architecture is not known.
    pub(super) fn new(file: &'a Gguf) -> Result<Self, ConfigError> {
        let found = file.text("general.architecture").unwrap_or("(none)");
        let known = GGUF_ARCHITECTURES;
        let unknown = || ConfigError::Architecture { path: file.path().into(), found: found.into(), known };
        let architecture = known.iter().find(|name| **name == found).ok_or_else(unknown)?;
        Ok(Self { file, architecture, problems: RefCell::default() })
    }

    pub(super) fn architecture(&self) -> &'a str {
        self.architecture
    }

    /// The keys of the `config.json` that says the same.
    ///
    /// # Errors
    /// All keys that are missing or unusable.
    pub(super) fn config(&self) -> Result<Map<String, Value>, ConfigError> {
        let config = match self.architecture {
            "gpt2" => self.gpt2(),
            "lfm2" => self.lfm2(),
            _ => self.llama(),
        };
        let (path, problems) = (self.file.path().to_owned(), self.problems.take());
        if problems.is_empty() { Ok(without_null(config)) } else { Err(ConfigError::Keys { path, problems }) }
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn typed<T>(&self, key: &str, expected: &str, read: impl Fn(GgufValue<'a>) -> Option<T>) -> Option<T> {
        let key = self.key(key);
        let value = self.file.get(&key)?;
        let typed = read(value);
        if typed.is_none() {
            let found = value.to_string();
            self.note(KeyProblem::Value { key, found, expected: expected.into() });
        }
        typed
    }

    /// Some keys are read for several of the configuration's.
    fn note(&self, problem: KeyProblem) {
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    fn required<T>(&self, key: &str, expected: &'static str, value: Option<T>) -> Option<T> {
        if value.is_none() && self.file.get(&self.key(key)).is_none() {
            self.note(KeyProblem::Missing { key: self.key(key), expected });
        }
        value
    }

    /// A count from 0 on, one for each layer or one for all.
    fn counts(&self, key: &str) -> Option<Vec<usize>> {
        let one = |integer| usize::try_from(integer).ok().filter(|&count| count <= limits::EXTENT);
        let expected = format!("a count, or a list of counts, at most {}", limits::EXTENT);
        self.typed(key, &expected, |value| match value {
            GgufValue::Integer(integer) => Some(vec![one(integer)?]),
            GgufValue::Array(array) if (1..=limits::LAYERS).contains(&array.len()) => {
                array.integers()?.map(one).collect()
            }
            _ => None,
        })
    }

    /// The largest of what is said of all layers.
    pub(super) fn most(&self, key: &str) -> Option<usize> {
        self.counts(key)?.into_iter().max()
    }

    /// A count that is the same in all layers.
    fn optional_count(&self, key: &str) -> Option<usize> {
        let counts = self.counts(key)?;
        let same = counts.iter().all(|count| *count == counts[0]);
        if !same {
            let (key, found, expected) =
                (self.key(key), "different in different layers".to_owned(), "one count".to_owned());
            self.note(KeyProblem::Value { key, found, expected });
        }
        same.then(|| counts[0])
    }

    fn count(&self, key: &str) -> Option<usize> {
        self.required(key, "a positive integer", self.optional_count(key))
    }

    fn optional_number(&self, key: &str) -> Option<f64> {
        self.typed(key, "a positive number, stored as a float", |value| match value {
            GgufValue::Float(number) => Some(number).filter(|x| *x > 0.0 && x.is_finite()),
            _ => None,
        })
    }

    /// Refuses a number that would change what the network computes, and that nothing here reads.
    fn usual(&self, key: &str, is_usual: impl Fn(f64) -> bool, expected: &str) {
        self.typed(key, expected, |value| match value {
            GgufValue::Float(number) => is_usual(number).then_some(()),
            _ => None,
        });
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.required(key, "a positive number", self.optional_number(key))
    }

    fn optional_text(&self, key: &str) -> Option<&'a str> {
        self.typed(key, "a string", |value| match value {
            GgufValue::Text(text) => Some(text),
            _ => None,
        })
    }

    fn has(&self, tensor: &str) -> bool {
        self.file.tensor(tensor).is_some()
    }

    /// Rows of the embedding table.
    fn vocabulary(&self) -> Option<usize> {
        let table = self.file.tensor("token_embd.weight");
        let rows = table.and_then(|table| table.shape.first().copied());
        if rows.is_none() {
            let (key, expected) = ("token_embd.weight".to_owned(), "a tensor, the embedding table");
            self.note(KeyProblem::Missing { key, expected });
        }
        rows
    }

    /// The factors of a rotary embedding: the numbers of a small tensor.
    fn factors(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.file.tensor(name)?;
        let count: usize = tensor.shape.iter().product();
        let problem = match tensor.numbers {
            StoredNumbers::Each(Dtype::F32) if count <= limits::HEAD => {
                let words = self.file.data(tensor).as_chunks().0;
                return Some(words.iter().map(|word| f32::from_le_bytes(*word)).collect());
            }
            StoredNumbers::Each(Dtype::F32) => format!("{count} numbers"),
            _ => "of another type than F32".into(),
        };
        let expected = format!("F32 numbers, at most {}", limits::HEAD);
        self.note(KeyProblem::Value { key: name.into(), found: problem, expected });
        None
    }

    /// What all files say.
    fn shared(&self, class: &str) -> Value {
        self.typed("attention.causal", "true: these networks look back only", |value| match value {
            GgufValue::Bool(true) => Some(()),
            _ => None,
        });
        json!({
            "architectures": [class],
            "vocab_size": self.vocabulary(),
            "tie_word_embeddings": !self.has("output.weight"),
            "torch_dtype": match element(self.architecture, self.file.tensors()) {
                ElementType::F16 => "float16",
                ElementType::Bf16 => "bfloat16",
                _ => "float32",
            },
        })
    }

    fn gpt2(&self) -> Value {
        let own = json!({
            "n_embd": self.count("embedding_length"),
            "n_head": self.count("attention.head_count"),
            "n_layer": self.count("block_count"),
            "n_positions": self.count("context_length"),
            "n_inner": self.optional_count("feed_forward_length"),
            "layer_norm_epsilon": self.number("attention.layer_norm_epsilon"),
        });
        joined([self.shared("GPT2LMHeadModel"), own])
    }

    fn lfm2(&self) -> Value {
        let said = self.count("block_count");
        // More are refused when the configuration is read.
        let layers = said.filter(|&layers| layers <= limits::LAYERS).unwrap_or(0);
        let heads = self.counts("attention.head_count_kv").unwrap_or_default();
        let all = heads.iter().copied().chain(iter::repeat(heads.first().copied().unwrap_or(0)));
        let kind = |heads| if heads > 0 { "full_attention" } else { "conv" };
        let types: Vec<&str> = all.take(layers).map(kind).collect();
        let biased = |layer: usize| self.has(&format!("blk.{layer}.shortconv.in_proj.bias"));
        let own = json!({
            "hidden_size": self.count("embedding_length"),
            "intermediate_size": self.count("feed_forward_length"),
            "block_auto_adjust_ff_dim": false,
            "num_hidden_layers": said,
            "num_attention_heads": self.most("attention.head_count"),
            "num_key_value_heads": heads.iter().copied().max(),
            "head_dim": self.optional_count("attention.key_length"),
            "norm_eps": self.number("attention.layer_norm_rms_epsilon"),
            "layer_types": types,
            "conv_L_cache": self.count("shortconv.l_cache"),
            "conv_bias": (0..layers).any(biased),
            "max_position_embeddings": self.count("context_length"),
        });
        joined([self.shared("Lfm2ForCausalLM"), own, self.rope(None)])
    }

    /// Llama, and what descends from it.
    fn llama(&self) -> Value {
        let experts = self.optional_count("expert_count").filter(|&experts| experts > 0);
        let window = self.optional_count("attention.sliding_window").filter(|&window| window > 0);
        let class = match (self.architecture, experts, window) {
            ("llama", Some(_), _) => "MixtralForCausalLM",
            ("llama", None, Some(_)) => "MistralForCausalLM",
            ("llama", None, None) => "LlamaForCausalLM",
            ("gemma2", ..) => "Gemma2ForCausalLM",
            ("gemma3", ..) => "Gemma3ForCausalLM",
            ("olmo2", ..) => "Olmo2ForCausalLM",
            ("phi3", ..) => "Phi3ForCausalLM",
            ("qwen2", ..) => "Qwen2ForCausalLM",
            ("qwen3", ..) => "Qwen3ForCausalLM",
            _ => "SmolLM3ForCausalLM",
        };
        let (width, heads) = (self.count("embedding_length"), self.count("attention.head_count"));
        let quotient = width.zip(heads).and_then(|(width, heads)| width.checked_div(heads));
        let features = self.optional_count("attention.key_length").or(quotient);
        let value_features = self.optional_count("attention.value_length").or(quotient);
        if features != value_features {
            let found = value_features.map_or_else(|| "missing".into(), |count| count.to_string());
            let expected = format!("{}, as `attention.key_length`", features.unwrap_or(0));
            let key = self.key("attention.value_length");
            self.note(KeyProblem::Value { key, found, expected });
        }
        let usual = 1.0 / (features.unwrap_or(1) as f64).sqrt();
        let is_usual = |scale: f64| scale == 0.0 || (scale / usual - 1.0).abs() < 1e-6;
        self.usual("attention.scale", is_usual, "0, or one by the root of the features of a head");
        let layers = self.count("block_count");
        let own = json!({
            "hidden_size": width,
            "intermediate_size": self.count("feed_forward_length"),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self.optional_count("attention.head_count_kv").or(heads),
            "head_dim": features,
            "rms_norm_eps": self.number("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": self.count("context_length"),
        });
        let [query, gate] = ["blk.0.attn_q.bias", "blk.0.ffn_gate.bias"].map(|tensor| self.has(tensor));
        let family = match class {
            "LlamaForCausalLM" | "SmolLM3ForCausalLM" => json!({ "attention_bias": query, "mlp_bias": gate }),
            "Olmo2ForCausalLM" | "Qwen3ForCausalLM" => json!({ "attention_bias": query }),
            "MistralForCausalLM" | "Phi3ForCausalLM" => json!({ "sliding_window": window }),
            "MixtralForCausalLM" => json!({
                "num_local_experts": experts,
                "num_experts_per_tok": self.count("expert_used_count"),
                "sliding_window": window,
            }),
            "Gemma2ForCausalLM" | "Gemma3ForCausalLM" => {
                // The files do not say by what scores are divided: heads' features, but in the largest of each
                // generation (`gemma2.cpp`, `gemma3.cpp` in llama.cpp).
                let largest = if class == "Gemma2ForCausalLM" { 46 } else { 62 };
                let scalar = if layers == Some(largest) { quotient } else { features };
                let scores = self.optional_number("attn_logit_softcapping");
                json!({
                    "layer_types": self.layer_types(layers.unwrap_or(0), window, class),
                    "query_pre_attn_scalar": scalar,
                    "attn_logit_softcapping": scores,
                    "final_logit_softcapping": self.optional_number("final_logit_softcapping"),
                    "sliding_window": window,
                })
            }
            _ => json!({}),
        };
        joined([self.shared(class), own, family, self.rope(features)])
    }

    /// Which layers of a Gemma look through the window: all but each second or sixth, if the file does not say; none if
    /// there is no window.
    fn layer_types(&self, layers: usize, window: Option<usize>, class: &str) -> Vec<&'static str> {
        let period = if class == "Gemma2ForCausalLM" { 2 } else { 6 };
        let said = self.typed(
            "attention.sliding_window_pattern",
            "a period, or a list of true and false",
            |value| match value {
                GgufValue::Integer(period) => {
                    let period = usize::try_from(period).ok().filter(|&period| period > 0)?;
                    Some(Pattern::Period(period))
                }
                GgufValue::Array(array) => {
                    let sliding = array.iter().map(|value| match value {
                        GgufValue::Bool(sliding) => Some(sliding),
                        GgufValue::Integer(sliding) => Some(sliding != 0),
                        _ => None,
                    });
                    Some(Pattern::Layers(sliding.take(limits::LAYERS).collect::<Option<_>>()?))
                }
                _ => None,
            },
        );
        let pattern = said.unwrap_or(Pattern::Period(period));
        let sliding = |layer: usize| match &pattern {
            Pattern::Period(period) => !(layer + 1).is_multiple_of(*period),
            Pattern::Layers(sliding) => sliding.get(layer).copied().unwrap_or(false),
        };
        // Without the key a Gemma 2 has the usual window.
        let none = window.is_none() && class != "Gemma2ForCausalLM";
        let kind = |layer| if sliding(layer) && !none { "sliding_attention" } else { "full_attention" };
        (0..layers.min(limits::LAYERS)).map(kind).collect()
    }

    /// The rotary embedding. A frequency that is divided by a factor of its own is one, wherever the factor comes from.
    fn rope(&self, features: Option<usize>) -> Value {
        let context = self.optional_count("rope.scaling.original_context_length");
        // A factor without a type divides all, and one that is said to be of no type nothing (`llama-model.cpp`).
        let kind = self.optional_text("rope.scaling.type").unwrap_or("linear");
        let linear = self.optional_number("rope.scale_linear");
        let factor = self.optional_number("rope.scaling.factor").or(linear);
        let [short, long] =
            ["rope_factors_short.weight", "rope_factors_long.weight"].map(|name| self.factors(name));
        let freqs = self.factors("rope_freqs.weight");
        let loudness = self.optional_number("rope.scaling.attn_factor");
        let scaling = match (short.zip(long), freqs, kind) {
            (Some((short, long)), ..) => json!({
                "rope_type": "longrope", "short_factor": short, "long_factor": long,
                "original_max_position_embeddings": context, "attention_factor": loudness.unwrap_or(1.0),
            }),
            (_, Some(factors), _) => json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                "attention_factor": 1.0,
            }),
            (_, _, "yarn") => {
                self.usual(
                    "rope.scaling.attn_factor",
                    |factor| factor == 1.0,
                    "1 beside YaRN, whose own follows from `factor`",
                );
                json!({
                    "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context,
                    "beta_fast": self.optional_number("rope.scaling.yarn_beta_fast"),
                    "beta_slow": self.optional_number("rope.scaling.yarn_beta_slow"),
                })
            }
            (_, _, "linear") => {
                factor.map_or(Value::Null, |factor| json!({ "rope_type": "linear", "factor": factor }))
            }
            (_, _, "none" | "longrope") => Value::Null,
            (_, _, other) => {
                let expected = "none, linear, yarn or longrope".to_owned();
                let (key, found) = (self.key("rope.scaling.type"), format!("\"{other}\""));
                self.note(KeyProblem::Value { key, found, expected });
                Value::Null
            }
        };
        let rotated = self.optional_count("rope.dimension_count");
        let partial = rotated.zip(features).filter(|(rotated, features)| rotated != features);
        let partial = partial.map(|(rotated, features)| rotated as f64 / features as f64);
        if let (Some(rotated), Some(features)) = (rotated, features)
            && partial.is_some()
            && self.architecture != "phi3"
        {
            let key = self.key("rope.dimension_count");
            let expected = format!("{features}, all features of a head");
            let found = rotated.to_string();
            self.note(KeyProblem::Value { key, found, expected });
        }
        let base = self.optional_number("rope.freq_base").unwrap_or(1e4);
        let mut rope = json!({ "rope_theta": base, "rope_scaling": without_null_in(scaling) });
        if self.architecture == "gemma3" {
            rope["rope_local_base_freq"] = self.optional_number("rope.freq_base_swa").unwrap_or(1e4).into();
        }
        if self.architecture == "phi3" {
            rope["partial_rotary_factor"] = partial.unwrap_or(1.0).into();
            rope["original_max_position_embeddings"] = json!(context);
        }
        rope
    }
}

/// The type of weights and activations: the one that most matrices are stored in, f32 for blocks, whose numbers are f32.
/// What a Gemma adds up is more than f16 has numbers for.
fn element(architecture: &str, tensors: &[GgufTensor]) -> ElementType {
    let matrices: Vec<StoredNumbers> =
        tensors.iter().filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.numbers).collect();
    let most = |dtype| {
        let stored = matrices.iter().filter(|numbers| **numbers == StoredNumbers::Each(dtype)).count();
        2 * stored > matrices.len()
    };
    match () {
        () if most(Dtype::BF16) => ElementType::Bf16,
        () if most(Dtype::F16) && !architecture.starts_with("gemma") => ElementType::F16,
        () => ElementType::F32,
    }
}

/// Which layers look through a window.
enum Pattern {
    /// All but each of so many.
    Period(usize),
    /// These.
    Layers(Vec<bool>),
}

/// All keys of some objects.
fn joined<const N: usize>(objects: [Value; N]) -> Value {
    let keys = objects.into_iter().flat_map(|object| match object {
        Value::Object(keys) => keys,
        _ => Map::new(),
    });
    Value::Object(keys.collect())
}

/// The keys that have a value. One that is missing is not one that is null: for some, null says that there is none.
fn without_null(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(keys) => keys.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    }
}

fn without_null_in(value: Value) -> Value {
    if value.is_null() { value } else { Value::Object(without_null(value)) }
}
