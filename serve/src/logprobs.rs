//! Formats probabilities of tokens as OpenAI's API does.

use generate::{Logprob, TokenLogprobs};
use serde_json::{Value, json};

use crate::models::Loaded;

/// Returns the entries of `logprobs.content` in a chat answer.
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

/// JSON has no infinity. For a token with the probability 0, the function returns the lowest logarithm that
/// clients know.
pub fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
