//! Lists the formats in which models write function calls between markers.

use serde_json::Value;

use super::calls::{RawCall, function, gemma, json_calls, mistral, tagged};
use super::cut::{cut_function, cut_gemma, cut_json, cut_mistral, cut_tagged};

/// A format in which a model writes function calls in a block of text between two markers.
#[derive(Debug)]
pub struct CallBlock {
    pub open: &'static str,
    /// The marker at the end of the block, or `None` if the block extends to the end of the text.
    pub close: Option<&'static str>,
    /// Parses the function calls inside a block. If the block contains no call, the reader treats
    /// the block as ordinary text.
    pub parse: fn(&str, &[Value]) -> Vec<RawCall>,
    /// Parses the function calls of a block that the limit of new tokens cut. The last call can be incomplete.
    pub cut: fn(&str, &[Value]) -> Vec<RawCall>,
}

/// The formats of function calls of all supported models. The comment before each format names the
/// models that use the format.
pub static BLOCKS: [CallBlock; 5] = [
    // Hermes, Qwen, SmolLM: JSON. Qwen3-Coder: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.
    CallBlock { open: "<tool_call>", close: Some("</tool_call>"), parse: tagged, cut: cut_tagged },
    // Llama 3.1: `<function=NAME>{"key": "value"}</function>`; Qwen3-Coder without the outer tag.
    CallBlock { open: "<function=", close: Some("</function>"), parse: function, cut: cut_function },
    // Mistral: a list of JSON objects, or `NAME[ARGS]{"key": "value"}`.
    CallBlock { open: "[TOOL_CALLS]", close: None, parse: mistral, cut: cut_mistral },
    // Llama 3: JSON with `parameters`.
    CallBlock { open: "<|python_tag|>", close: None, parse: json_calls, cut: cut_json },
    // FunctionGemma: `call:NAME{key:<escape>value<escape>}`.
    CallBlock {
        open: "<start_function_call>",
        close: Some("<end_function_call>"),
        parse: gemma,
        cut: cut_gemma,
    },
];
