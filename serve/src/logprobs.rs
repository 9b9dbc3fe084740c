//! Probabilities of tokens, in OpenAI's form.

use generate::{Logprob, TokenLogprobs};
use serde_json::{Value, json};

use crate::models::Loaded;

/// The entries of `logprobs.content` of a chat.
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

/// JSON has no infinity: a token that cannot be chosen has the lowest number that clients know.
pub fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
