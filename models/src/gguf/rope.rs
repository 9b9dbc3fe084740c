//! Converts the metadata about a rotary embedding to the keys of a `config.json`.

use irpa::GgufValue;
use serde_json::{Value, json};

use super::metadata::{Metadata, without_null_in};
use crate::config::KeyProblem;

struct Scaling<'a> {
    kind: &'a str,
    /// The divisor of all frequencies; `None` if the frequencies do not change.
    factor: Option<f64>,
    /// Divisors for short and for long contexts, from one tensor or two.
    factors: Option<[Vec<f32>; 2]>,
    /// The original one, in tokens.
    context: Option<usize>,
    /// The factor by which cosine and sine are multiplied; `None` if the factor is missing or 1.
    loudness: Option<f64>,
}

impl Metadata<'_> {
    /// Over all `features` of a head, with factors from metadata and tensors.
    pub(crate) fn rope(&self, features: Option<usize>) -> Value {
        let rotated = self.optional_count("rope.dimension_count");
        let scaling = self.scaling();
        let scaling = match scaling.kind {
            "yarn" => self.yarn(&scaling),
            "none" | "linear" | "longrope" => scaling.without_yarn(rotated.or_else(|| self.features())),
            other => {
                let expected = "none, linear, yarn or longrope".to_owned();
                let (key, found) = (self.key("rope.scaling.type"), format!("\"{other}\""));
                self.note(KeyProblem::Value { key, found, expected });
                Value::Null
            }
        };
        if let Some((rotated, features)) = rotated.zip(features).filter(|(some, all)| some != all) {
            let key = self.key("rope.dimension_count");
            let expected = format!("{features}, all features of a head");
            self.note(KeyProblem::Value { key, found: rotated.to_string(), expected });
        }
        let base = self.optional_number("rope.freq_base").unwrap_or(1e4);
        json!({ "rope_theta": base, "rope_scaling": without_null_in(scaling) })
    }

    fn scaling(&self) -> Scaling<'_> {
        // If the file contains a factor but no type, the factor divides all frequencies. With the
        // type `none`, no frequency changes (`llama-context.cpp`).
        let kind = self.optional_text("rope.scaling.type").unwrap_or("linear");
        // The older key counts only if the newer one is missing, and 0 means that no factor is set.
        let [linear, factor] = ["rope.scale_linear", "rope.scaling.factor"].map(|key| {
            self.typed(key, "0, or a positive number, stored as a float", |value| match value {
                GgufValue::Float(number) => Some(number).filter(|x| *x >= 0.0 && x.is_finite()),
                _ => None,
            })
        });
        let factor = factor.or(linear).filter(|&factor| factor != 0.0 && kind != "none");
        let [short, long, all] =
            ["rope_factors_short.weight", "rope_factors_long.weight", "rope_freqs.weight"]
                .map(|name| self.factors(name));
        Scaling {
            kind,
            factor,
            factors: short.zip(long).map(Into::into).or_else(|| all.map(|all| [all.clone(), all])),
            context: self.optional_count("rope.scaling.original_context_length"),
            loudness: self.optional_number("rope.scaling.attn_factor").filter(|&loudness| loudness != 1.0),
        }
    }

    fn yarn(&self, scaling: &Scaling<'_>) -> Value {
        let refuse = |key: &str, found: String, expected: &str| {
            self.note(KeyProblem::Value { key: self.key(key), found, expected: expected.into() });
        };
        if let Some(found) = scaling.loudness {
            let expected = "1 beside YaRN, whose own follows from `factor`";
            refuse("rope.scaling.attn_factor", found.to_string(), expected);
        }
        if scaling.factors.is_some() {
            let expected = "none, linear or longrope beside a tensor with factors of the frequencies";
            refuse("rope.scaling.type", "\"yarn\"".into(), expected);
        }
        json!({
            "rope_type": "yarn", "factor": scaling.factor, "original_max_position_embeddings": scaling.context,
            "beta_fast": self.optional_number("rope.scaling.yarn_beta_fast"),
            "beta_slow": self.optional_number("rope.scaling.yarn_beta_slow"),
        })
    }
}

impl Scaling<'_> {
    /// A scaling that only divides frequencies. `rotated` is the number of rotated features of a head.
    fn without_yarn(self, rotated: Option<usize>) -> Value {
        let Self { factor, factors, context, loudness, .. } = self;
        // In `config.json`, only `longrope` multiplies cosine and sine by a given factor.
        let factors = match (factors, loudness) {
            (None, Some(_)) => {
                let ones = vec![1.0; rotated.unwrap_or(0) / 2];
                Some([ones.clone(), ones])
            }
            (factors, _) => factors,
        };
        match (factors, factor) {
            (Some(factors), factor) => {
                let divided = |factors: Vec<f32>| -> Vec<f32> {
                    factors.into_iter().map(|x| x * factor.unwrap_or(1.0) as f32).collect()
                };
                let [short, long] = factors.map(divided);
                json!({
                    "rope_type": "longrope", "short_factor": short, "long_factor": long,
                    "original_max_position_embeddings": context, "attention_factor": loudness.unwrap_or(1.0),
                })
            }
            (None, Some(factor)) => json!({ "rope_type": "linear", "factor": factor }),
            (None, None) => Value::Null,
        }
    }
}
