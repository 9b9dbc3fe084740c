//! Converts the metadata of a GGUF file to a `config.json`.

use std::cell::RefCell;
use std::collections::BTreeSet;

use files::limits;
use irpa::{Dtype, Gguf, GgufTensor, GgufValue, StoredNumbers};
use ops::ElementType;
use serde_json::{Map, Value, json};

use super::GgufFamily;
use crate::config::{ConfigError, KeyProblem};
use crate::{FAMILIES, Family};

pub(crate) struct Metadata<'a> {
    file: &'a Gguf,
    pub(super) family: &'static Family,
    pub(super) gguf: &'static GgufFamily,
    pub(super) architecture: &'static str,
    problems: RefCell<Vec<KeyProblem>>,
    /// Keys that the conversion has looked for.
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(file: &'a Gguf) -> Result<Self, ConfigError> {
        let found = file.text("general.architecture").unwrap_or("(none)");
        let of = |family: &'static Family| {
            let gguf = family.gguf.as_ref()?;
            let mut names = [gguf.architecture].into_iter().chain(gguf.also.iter().copied());
            let architecture = names.find(|name| *name == found)?;
            let (problems, read) = Default::default();
            Some(Self { file, family, gguf, architecture, problems, read })
        };
        let families: Vec<Self> = FAMILIES.iter().copied().filter_map(of).collect();
        let known = super::architectures();
        let unknown = || {
            let (path, found) = (file.path().into(), found.to_owned());
            if super::EMBEDDERS.contains(&&*found) {
                ConfigError::GgufEmbeds { path, found }
            } else {
                ConfigError::Architecture { path, found, known }
            }
        };
        families.into_iter().find(|metadata| (metadata.gguf.is)(metadata)).ok_or_else(unknown)
    }

    /// Equivalent to the metadata. The error lists all missing and invalid keys.
    pub(super) fn config(&self) -> Result<Map<String, Value>, ConfigError> {
        let config = (self.gguf.config)(self);
        self.refuse_unread();
        let (path, problems) = (self.file.path().to_owned(), self.problems.take());
        if problems.is_empty() { Ok(without_null(config)) } else { Err(ConfigError::Keys { path, problems }) }
    }

    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(crate) fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(GgufValue<'a>) -> Option<T>,
    ) -> Option<T> {
        let key = self.key(key);
        self.read.borrow_mut().insert(key.clone());
        let value = self.file.get(&key)?;
        let typed = read(value);
        if typed.is_none() {
            let found = value.to_string();
            self.note(KeyProblem::Value { key, found, expected: expected.into() });
        }
        typed
    }

    /// With its value.
    pub(super) fn unread(&self, key: &str) -> Option<(String, GgufValue<'a>)> {
        let key = self.key(key);
        let value = self.file.get(&key).filter(|_| !self.read.borrow().contains(&key))?;
        Some((key, value))
    }

    /// Once per metadata key, on which several keys of the configuration can depend.
    pub(super) fn note(&self, problem: KeyProblem) {
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

    /// A number for each layer, or one for all.
    pub(crate) fn counts(&self, key: &str) -> Option<Vec<usize>> {
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

    /// The last number applies to the remaining layers.
    pub(crate) fn each_layer(&self, key: &str, layers: Option<usize>) -> Vec<usize> {
        // The reader of the configuration rejects more layers than the limit.
        let layers = layers.filter(|&layers| layers <= limits::LAYERS).unwrap_or(0);
        let counts = self.counts(key).unwrap_or_default();
        let last = counts.last().copied().unwrap_or(0);
        (0..layers).map(|layer| counts.get(layer).copied().unwrap_or(last)).collect()
    }

    /// `None` if the key is missing.
    pub(crate) fn flags(&self, key: &str) -> Option<Vec<bool>> {
        self.typed(key, "a list of true and false", |value| match value {
            GgufValue::Array(array) if array.len() <= limits::LAYERS => {
                let flag = |value| if let GgufValue::Bool(flag) = value { Some(flag) } else { None };
                array.iter().map(flag).collect()
            }
            _ => None,
        })
    }

    /// The largest of all layers.
    pub(crate) fn most(&self, key: &str) -> Option<usize> {
        self.counts(key)?.into_iter().max()
    }

    /// Must be the same in all layers.
    pub(crate) fn optional_count(&self, key: &str) -> Option<usize> {
        let counts = self.counts(key)?;
        let same = counts.iter().all(|count| *count == counts[0]);
        if !same {
            let (key, found, expected) =
                (self.key(key), "different in different layers".to_owned(), "one count".to_owned());
            self.note(KeyProblem::Value { key, found, expected });
        }
        same.then(|| counts[0])
    }

    pub(crate) fn count(&self, key: &str) -> Option<usize> {
        self.required(key, "a positive integer", self.optional_count(key))
    }

    pub(crate) fn optional_number(&self, key: &str) -> Option<f64> {
        self.typed(key, "a positive number, stored as a float", |value| match value {
            GgufValue::Float(number) => Some(number).filter(|x| *x > 0.0 && x.is_finite()),
            _ => None,
        })
    }

    /// Rejects a number that would change the computation in a way that Tracewright does not support.
    pub(crate) fn usual(&self, key: &str, is_usual: impl Fn(f64) -> bool, expected: &str) {
        self.typed(key, expected, |value| match value {
            GgufValue::Float(number) => is_usual(number).then_some(()),
            _ => None,
        });
    }

    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.required(key, "a positive number", self.optional_number(key))
    }

    pub(super) fn optional_text(&self, key: &str) -> Option<&'a str> {
        self.typed(key, "a string", |value| match value {
            GgufValue::Text(text) => Some(text),
            _ => None,
        })
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.file.tensor(tensor).is_some()
    }

    /// `None` without the tensor.
    pub(crate) fn rows(&self, tensor: &str) -> Option<usize> {
        self.file.tensor(tensor)?.shape.first().copied()
    }

    pub(crate) fn vocabulary(&self) -> Option<usize> {
        let rows = self.rows("token_embd.weight");
        if rows.is_none() {
            let (key, expected) = ("token_embd.weight".to_owned(), "a tensor, the embedding table");
            self.note(KeyProblem::Missing { key, expected });
        }
        rows
    }

    /// Reads the frequency factors of a rotary embedding, which the file stores as a small tensor.
    pub(crate) fn factors(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.file.tensor(name)?;
        let count: usize = tensor.shape.iter().product();
        let problem = match tensor.numbers {
            StoredNumbers::Each(Dtype::F32) if count <= limits::HEAD => {
                let words = self.file.data(tensor).as_chunks().0;
                let factors: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
                match factors.iter().find(|factor| !factor.is_finite()) {
                    Some(found) => found.to_string(),
                    None => return Some(factors),
                }
            }
            StoredNumbers::Each(Dtype::F32) => format!("{count} numbers"),
            _ => "of another type than F32".into(),
        };
        let expected = format!("finite F32 numbers, at most {}", limits::HEAD);
        self.note(KeyProblem::Value { key: name.into(), found: problem, expected });
        None
    }

    /// For the layers that have one.
    pub(crate) fn window(&self) -> Option<usize> {
        self.optional_count("attention.sliding_window").filter(|&window| window > 0)
    }

    /// `None` without experts.
    pub(crate) fn experts(&self) -> Option<usize> {
        self.optional_count("expert_count").filter(|&experts| experts > 0)
    }

    /// Layers for multi-token prediction, after the others.
    pub(super) fn further_layers(&self) -> Option<usize> {
        self.optional_count("nextn_predict_layers").filter(|&layers| layers > 0)
    }

    /// Without those for multi-token prediction.
    pub(crate) fn layers(&self) -> Option<usize> {
        Some(self.count("block_count")?.saturating_sub(self.further_layers().unwrap_or(0)))
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.typed(key, "true or false", |value| match value {
            GgufValue::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    /// Rejects other scores than sigmoid (`expert_gating_func_type` in gguf-py); `None` if the key is
    /// missing.
    pub(crate) fn sigmoid(&self) -> Option<()> {
        self.typed("expert_gating_func", "2, the sigmoid", |value| {
            matches!(value, GgufValue::Integer(2)).then_some(())
        })
    }

    /// Like [`sigmoid`](Self::sigmoid), but a missing key is an error.
    pub(crate) fn require_sigmoid(&self) {
        if self.sigmoid().is_none() {
            self.count("expert_gating_func");
        }
    }

    /// The experts of DeepSeek-V3 and of later networks ([`experts::deepseek`](crate::experts::deepseek)).
    pub(crate) fn deepseek(&self) -> Value {
        json!({
            "n_routed_experts": self.count("expert_count"),
            "num_experts_per_tok": self.count("expert_used_count"),
            "moe_intermediate_size": self.count("expert_feed_forward_length"),
            "n_shared_experts": self.optional_count("expert_shared_count").unwrap_or(0),
            "first_k_dense_replace": self.optional_count("leading_dense_block_count").unwrap_or(0),
            "n_group": self.optional_count("expert_group_count").unwrap_or(1).max(1),
            "topk_group": self.optional_count("expert_group_used_count").unwrap_or(1).max(1),
            "norm_topk_prob": self.flag("expert_weights_norm").unwrap_or(false),
            "routed_scaling_factor": self.optional_number("expert_weights_scale").unwrap_or(1.0),
        })
    }

    /// The number of features of the residual stream, divided by the number of heads.
    pub(crate) fn quotient(&self) -> Option<usize> {
        let (width, heads) = (self.count("embedding_length"), self.count("attention.head_count"));
        width.zip(heads).and_then(|(width, heads)| width.checked_div(heads))
    }

    /// For a head.
    pub(crate) fn features(&self) -> Option<usize> {
        self.optional_count("attention.key_length").or(self.quotient())
    }

    /// Returns the fraction of a head's features that the rotary embedding rotates.
    pub(crate) fn partial_rotary_factor(&self) -> Option<f64> {
        let (rotated, features) = self.count("rope.dimension_count").zip(self.features())?;
        Some(rotated as f64 / features as f64)
    }

    /// In any layer, because the first can lack attention.
    pub(crate) fn is_biased(&self, part: &str) -> bool {
        let is_bias = |name: &str| {
            let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            in_layer.and_then(|(_, rest)| rest.strip_prefix(part)) == Some(".bias")
        };
        self.file.tensors().iter().any(|tensor| is_bias(&tensor.name))
    }

    /// The keys for the biases of attention, in which the output can lack a bias or have the only one.
    pub(crate) fn attention_biases(&self) -> Value {
        let [inputs, output] = ["attn_q", "attn_output"].map(|part| self.is_biased(part));
        json!({ "attention_bias": inputs, "attention_out_bias": (output != inputs).then_some(output) })
    }

    /// Rejects other values than `true`.
    pub(crate) fn always(&self, key: &str, expected: &str) {
        self.typed(key, expected, |value| matches!(value, GgufValue::Bool(true)).then_some(()));
    }

    /// Returns the configuration keys that all families share, together with the keys `own` of this family.
    pub(crate) fn shared(&self, own: Value) -> Value {
        self.always("attention.causal", "true: these networks look back only");
        let shared = json!({
            "architectures": [self.family.architectures[0]],
            "vocab_size": self.vocabulary(),
            "tie_word_embeddings": !self.has("output.weight"),
            "torch_dtype": match element(self.gguf, self.file.tensors()) {
                ElementType::F16 => "float16",
                ElementType::Bf16 => "bfloat16",
                _ => "float32",
            },
        });
        joined([shared, own])
    }

    /// With the keys `own`, for attention in some layers; the others have 0 key-value heads.
    pub(crate) fn hybrid(&self, own: Value) -> Value {
        let (width, layers) = (self.count("embedding_length"), self.layers());
        let heads =
            self.required("attention.head_count", "a positive integer", self.most("attention.head_count"));
        let quotient = || width.zip(heads).and_then(|(width, heads)| width.checked_div(heads));
        let keys = json!({
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self.key_value_heads().into_iter().max(),
            "head_dim": self.optional_count("attention.key_length").or_else(quotient),
            "max_position_embeddings": self.count("context_length"),
        });
        self.shared(joined([keys, own]))
    }

    /// For each layer; 0 without attention.
    pub(crate) fn key_value_heads(&self) -> Vec<usize> {
        self.each_layer("attention.head_count_kv", self.layers())
    }

    /// Keys that all relatives of Llama share, with the keys `own`.
    pub(crate) fn llama(&self, own: Value) -> Value {
        let (width, heads) = (self.count("embedding_length"), self.count("attention.head_count"));
        let features = self.features();
        let value_features = self.optional_count("attention.value_length").or(self.quotient());
        if features != value_features {
            let found = value_features.map_or_else(|| "missing".into(), |count| count.to_string());
            let expected = format!("{}, as `attention.key_length`", features.unwrap_or(0));
            let key = self.key("attention.value_length");
            self.note(KeyProblem::Value { key, found, expected });
        }
        if own.get("attention_multiplier").is_none() {
            let usual = 1.0 / (features.unwrap_or(1) as f64).sqrt();
            let is_usual = |scale: f64| scale == 0.0 || (scale / usual - 1.0).abs() < 1e-6;
            self.usual("attention.scale", is_usual, "0, or one by the root of the features of a head");
        }
        let features_of = |key| own.get("intermediate_size").is_none().then(|| self.count(key)).flatten();
        let llama = json!({
            "hidden_size": width,
            "intermediate_size": features_of("feed_forward_length"),
            "num_hidden_layers": self.layers(),
            "num_attention_heads": heads,
            "num_key_value_heads": self.optional_count("attention.head_count_kv").or(heads),
            "head_dim": features,
            "rms_norm_eps": self.number("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": self.count("context_length"),
        });
        let rope = self.rope(features.filter(|_| own.get("partial_rotary_factor").is_none()));
        self.shared(joined([llama, own, rope]))
    }
}

/// For most matrices; quantized ones count as f32, to which they are decoded.
fn element(gguf: &GgufFamily, tensors: &[GgufTensor]) -> ElementType {
    let matrices: Vec<StoredNumbers> =
        tensors.iter().filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.numbers).collect();
    let most = |dtype| {
        let stored = matrices.iter().filter(|numbers| **numbers == StoredNumbers::Each(dtype)).count();
        2 * stored > matrices.len()
    };
    match () {
        () if most(Dtype::BF16) => ElementType::Bf16,
        () if most(Dtype::F16) && gguf.fits_f16 => ElementType::F16,
        () => ElementType::F32,
    }
}

pub(crate) fn joined<const N: usize>(objects: [Value; N]) -> Value {
    let keys = objects.into_iter().flat_map(|object| match object {
        Value::Object(keys) => keys,
        _ => Map::new(),
    });
    Value::Object(keys.collect())
}

/// For some keys, null means that a feature is lacking, but a missing key selects a default.
fn without_null(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(keys) => keys.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    }
}

pub(super) fn without_null_in(value: Value) -> Value {
    if value.is_null() { value } else { Value::Object(without_null(value)) }
}
