//! Finds function calls in Markdown blocks. Models without a format of their own often write calls so.

use serde_json::Value;

use super::calls::{RawCall, is_known, is_of_word, json_calls, looks_like_calls};
use super::cut::begins_call;

pub const FENCE: &str = "```";

/// The words behind the marker of a block that can contain function calls.
const WORDS: [&str; 7] = ["", "json", "tool_call", "tool_calls", "tool", "function", "function_call"];

/// Reads the text behind the opening marker. Returns the calls, or none for a block of text, and the length of the
/// text that belongs to them; `None` if the text is too short for a decision.
pub fn calls(text: &str, tools: &[Value], is_end: bool) -> Option<(Vec<RawCall>, usize)> {
    let Some(at) = text.find(|character| !is_of_word(character)) else {
        let may_grow = !is_end && WORDS.iter().any(|word| word.starts_with(text));
        return (!may_grow).then(|| (Vec::new(), 0));
    };
    let (word, inside) = text.split_at(at);
    let looks = WORDS.contains(&word).then(|| looks_like_calls(inside.trim_start()));
    match looks {
        Some(None) if !is_end => return None,
        Some(Some(true)) => {}
        _ => return Some((Vec::new(), 0)),
    }
    let known = |body: &str| {
        let calls = json_calls(body, tools);
        if calls.iter().all(|call| is_known(tools, &call.name)) { calls } else { Vec::new() }
    };
    for (end, _) in inside.match_indices(FENCE) {
        let (body, after) = (&inside[..end], at + end + FENCE.len());
        let calls = known(body);
        // JSON has no raw line break inside a text, so a marker on its own line ends the block.
        if !calls.is_empty() || body.trim_end_matches([' ', '\t']).ends_with('\n') {
            return Some((calls, after));
        }
    }
    is_end.then(|| (known(inside), text.len()))
}

/// Whether the text behind the opening marker begins a call of a known function.
pub fn is_call(text: &str, tools: &[Value]) -> bool {
    begins_call(text.trim_start_matches(is_of_word).trim_start(), tools)
}
