//! The object `options` of Ollama's requests.

use serde_json::{Map, Value, json};

use crate::body::shown;
use crate::failure::Failure;

/// Options with the meaning of a request's sampling field, and the name of this field.
const SAMPLING: [(&str, &str); 15] = [
    ("frequency_penalty", "frequency_penalty"),
    ("min_p", "min_p"),
    ("mirostat", "mirostat"),
    ("mirostat_eta", "mirostat_eta"),
    ("mirostat_tau", "mirostat_tau"),
    ("presence_penalty", "presence_penalty"),
    ("repeat_last_n", "repeat_last_n"),
    ("repeat_penalty", "repeat_penalty"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("typical_p", "typical_p"),
    ("num_predict", "max_tokens"),
];

/// Options of the machine, which flags of the server set, and which change no answer.
const UNUSED: [&str; 12] = [
    "f16_kv",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_gqa",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// Reads the options, as fields of OpenAI's interface. `num_ctx` is at most the context of the model.
pub fn fields(options: Option<&Map<String, Value>>, context: usize) -> Result<Map<String, Value>, Failure> {
    let mut fields = Map::new();
    for (name, value) in options.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let at = format!("options.{name}");
        if let Some((_, field)) = SAMPLING.iter().find(|(option, _)| option == name) {
            // -2 fills the context, as -1 does.
            let is_whole = *field == "max_tokens" && *value == json!(-2);
            fields.insert((*field).to_owned(), if is_whole { json!(-1) } else { value.clone() });
        } else if name == "num_ctx" {
            if value.as_u64().is_none_or(|tokens| tokens > context as u64) {
                let expected = format!("at most {context}, the context with which the server runs the model");
                return Err(Failure::field(at, shown(value), expected));
            }
        } else if !UNUSED.contains(&name.as_str()) {
            let is_neutral = match name.as_str() {
                "tfs_z" => value.as_f64() == Some(1.0),
                "penalize_newline" => *value == json!(true),
                _ => return Err(Failure::Unknown { param: errors::escaped(&errors::shortened(at, 60)) }),
            };
            if !is_neutral {
                return Err(Failure::Unsupported { param: at });
            }
        }
    }
    Ok(fields)
}
