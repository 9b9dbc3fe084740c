//! Formats probabilities of tokens in the format of OpenAI's API.

use generate::{Logprob, TokenLogprobs};
use serde_json::{Value, json};

use crate::models::Loaded;

/// Returns the list for the field `logprobs.content` of a chat answer.
pub fn content(loaded: &Loaded, logprobs: &[TokenLogprobs]) -> Vec<Value> {
    let entry = |one: &TokenLogprobs| {
        let mut entry = token(loaded, &one.chosen);
        entry["top_logprobs"] = one.top.iter().map(|one| token(loaded, one)).collect();
        entry
    };
    logprobs.iter().map(entry).collect()
}

fn token(loaded: &Loaded, one: &Logprob) -> Value {
    let bytes = loaded.piece(one.token);
    json!({ "token": String::from_utf8_lossy(bytes), "logprob": finite(one.logprob), "bytes": bytes })
}

/// Replaces minus infinity (probability 0), which JSON lacks, by the same number as OpenAI's API.
pub fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
