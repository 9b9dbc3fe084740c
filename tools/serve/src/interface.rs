//! [`Interface`] lists the fields that the requests of an endpoint can have. The parser, `openapi.json` and the tests
//! read this list, so no field of a request is ignored unless the document marks it as a field without effect.

use std::sync::OnceLock;

use errors::{escaped, shortened};
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Map, Value, json};

use crate::body::schema;
use crate::constraint::ConstraintFields;
use crate::failure::Failure;
use crate::nested::{self, NestedField};
use crate::sampling::{SamplingFields, number_schema};

/// The fields of an endpoint's requests.
pub struct Interface {
    /// The schemas of the Rust types that read the supported fields.
    supported: fn() -> Vec<Schema>,
    others: &'static [&'static [OtherField]],
    /// The supported fields whose objects have known fields.
    nested: &'static [NestedField],
    merged: OnceLock<Value>,
}

/// A field that the Rust types lack, or that overrides a field of theirs.
pub struct OtherField {
    name: &'static str,
    /// The JSON of the values that the server accepts, because they change nothing. `None` accepts every value,
    /// because the field has no effect here.
    accepted: Option<&'static [&'static str]>,
}

const fn refused(name: &'static str, accepted: &'static [&'static str]) -> OtherField {
    OtherField { name, accepted: Some(accepted) }
}

const fn unused(name: &'static str) -> OtherField {
    OtherField { name, accepted: None }
}

/// Fields of OpenAI's interfaces that concern bookkeeping and OpenAI's own servers.
pub const OF_OPENAI: &[OtherField] = &[
    refused("moderation", &[]),
    unused("metadata"),
    unused("prompt_cache_key"),
    unused("prompt_cache_options"),
    unused("prompt_cache_retention"),
    unused("safety_identifier"),
    unused("service_tier"),
    unused("user"),
    unused("verbosity"),
];

pub const OF_CHAT: &[OtherField] = &[
    refused("audio", &[]),
    refused("modalities", &["[\"text\"]"]),
    unused("prediction"),
    unused("store"),
    refused("web_search_options", &[]),
];

pub const OF_COMPLETIONS: &[OtherField] = &[refused("best_of", &["1"])];

pub const OF_RESPONSES: &[OtherField] = &[
    refused("access_programs", &[]),
    refused("background_options", &[]),
    refused("context_management", &["[]"]),
    refused("conversation", &[]),
    refused("image", &[]),
    unused("include"),
    refused("max_tool_calls", &[]),
    refused("n", &["1"]),
    refused("prompt", &[]),
    unused("stream_options"),
    refused("top_logprobs", &["0"]),
    refused("truncation", &["\"disabled\""]),
    unused("client_metadata"),
];

pub const OF_MESSAGES: &[OtherField] = &[
    unused("betas"),
    refused("billing_policy", &[]),
    unused("cache_control"),
    refused("compaction", &[]),
    refused("container", &[]),
    refused("context_management", &["{}", "{\"edits\":[]}"]),
    unused("diagnostics"),
    refused("fallback_credit_token", &[]),
    refused("fallbacks", &["[]"]),
    unused("inference_geo"),
    refused("mcp_servers", &["[]"]),
    unused("metadata"),
    refused("n", &["1"]),
    unused("service_tier"),
    unused("speed"),
    refused("thread", &[]),
    unused("user_profile_id"),
    unused("workspace_id"),
];

/// Fields of llama.cpp, vLLM, SGLang and other servers. A field that shapes the answer is refused.
pub const OF_SERVERS: &[OtherField] = &[
    refused("add_special_tokens", &["false"]),
    refused("allowed_token_ids", &[]),
    refused("bad_words", &["[]"]),
    refused("cache_salt", &[]),
    refused("chat_template", &[]),
    refused("documents", &["[]"]),
    refused("guided_decoding_backend", &["\"guidance\"", "\"auto\""]),
    refused("guided_whitespace_pattern", &[]),
    unused("id_slot"),
    unused("include_reasoning"),
    refused("include_stop_str_in_output", &["false"]),
    refused("length_penalty", &["1", "1.0"]),
    refused("logits_processors", &["[]"]),
    refused("lora", &["[]"]),
    refused("min_keep", &["0", "1"]),
    refused("n_keep", &["0", "-1"]),
    refused("n_probs", &["0"]),
    refused("post_sampling_probs", &["false"]),
    unused("priority"),
    refused("prompt_logprobs", &[]),
    unused("request_id"),
    unused("return_progress"),
    refused("return_tokens_as_token_ids", &["false"]),
    refused("return_token_ids", &["false"]),
    refused("return_tokens", &["false"]),
    refused("skip_special_tokens", &["true"]),
    unused("spaces_between_special_tokens"),
    unused("speculative.n_max"),
    unused("speculative.n_min"),
    unused("speculative.p_min"),
    refused("structural_tag", &[]),
    refused("t_max_predict_ms", &["0", "-1"]),
    unused("timings_per_token"),
    refused("truncate_prompt_tokens", &[]),
    refused("use_beam_search", &["false"]),
];

/// Fields of llama.cpp's requests to fill in text, which override those of [`OF_SERVERS`]. llama.vim always sends them.
/// Its hint about the indentation, its time limits and the form of its answer have no effect here.
pub const OF_INFILL: &[OtherField] =
    &[unused("n_indent"), unused("response_fields"), unused("t_max_predict_ms"), unused("t_max_prompt_ms")];

/// Fields of Ollama's requests for text.
pub const OF_OLLAMA: &[OtherField] = &[
    refused("context", &["[]"]),
    refused("images", &["[]"]),
    refused("logprobs", &["false"]),
    refused("shift", &["false"]),
    refused("suffix", &["\"\""]),
    refused("template", &["\"\""]),
    refused("top_logprobs", &["0"]),
    refused("truncate", &["false"]),
];

/// Fields of Ollama's requests for embeddings. No text is cut here.
pub const OF_EMBED: &[OtherField] = &[refused("truncate", &["false"])];

/// Fields of OpenAI's, vLLM's and Jina's requests for embeddings.
pub const OF_EMBEDDINGS: &[OtherField] = &[
    refused("add_special_tokens", &["true"]),
    refused("embedding_type", &["\"float\""]),
    refused("input_type", &[]),
    refused("normalize", &["true"]),
    unused("priority"),
    refused("task", &[]),
    refused("truncate_prompt_tokens", &[]),
    unused("user"),
];

/// Fields of Cohere's requests for embeddings. No text is cut here.
pub const OF_COHERE: &[OtherField] = &[
    refused("images", &["[]"]),
    refused("inputs", &["[]"]),
    refused("max_tokens", &[]),
    unused("priority"),
    refused("truncate", &["\"NONE\""]),
];

/// Fields of OpenAI's requests for transcripts.
pub const OF_AUDIO: &[OtherField] = &[
    refused("chunking_strategy", &["\"auto\""]),
    refused("include[]", &["[]"]),
    refused("known_speaker_names[]", &["[]"]),
    refused("known_speaker_references[]", &["[]"]),
];

/// Fields of Cohere's, Jina's and vLLM's requests for scores. No document is cut here.
pub const OF_RERANK: &[OtherField] = &[
    refused("max_chunks_per_doc", &[]),
    refused("max_tokens_per_doc", &[]),
    unused("priority"),
    refused("relevant_spans", &[]),
    refused("rank_fields", &["[\"text\"]"]),
    refused("truncate_prompt_tokens", &[]),
    unused("user"),
];

/// Fields of vLLM's requests to load and to unload adapters.
pub const OF_ADAPTERS: &[OtherField] =
    &[refused("is_3d_lora_weight", &["false"]), unused("lora_int_id"), refused("load_inplace", &["false"])];

/// Fields of llama.cpp's and vLLM's requests for tokens.
pub const OF_TOKENIZE: &[OtherField] = &[
    refused("messages", &[]),
    refused("parse_special", &["true"]),
    refused("return_token_strs", &["false"]),
    refused("with_pieces", &["false"]),
];

/// Fields that clients written in Go always send.
pub const OF_SHOW: &[OtherField] =
    &[unused("options"), refused("system", &["\"\""]), refused("template", &["\"\""]), unused("verbose")];

/// The schemas of a request for generated text.
pub fn sampled<T: JsonSchema>() -> Vec<Schema> {
    vec![schema::<T>(), schema::<SamplingFields>(), schema::<ConstraintFields>(), number_schema()]
}

impl Interface {
    pub const fn new(supported: fn() -> Vec<Schema>, others: &'static [&'static [OtherField]]) -> Self {
        Self::with_objects(supported, others, &[])
    }

    pub const fn with_objects(
        supported: fn() -> Vec<Schema>,
        others: &'static [&'static [OtherField]],
        nested: &'static [NestedField],
    ) -> Self {
        Self { supported, others, nested, merged: OnceLock::new() }
    }

    /// Rejects unknown fields, and values of refused fields that would change the answer.
    pub fn check(&self, body: &Value) -> Result<(), Failure> {
        let known = &self.merged()["properties"];
        for (name, value) in body.as_object().into_iter().flatten() {
            match known.get(name) {
                None => return Err(Failure::Unknown { param: escaped(&shortened(name.clone(), 60)) }),
                Some(field) if field["x-support"] == "refused" => {
                    let accepted = field["enum"].as_array().into_iter().flatten();
                    if !accepted.into_iter().any(|one| one == value) {
                        return Err(Failure::Unsupported { param: name.clone() });
                    }
                }
                Some(_) => {}
            }
        }
        self.nested.iter().try_for_each(|field| nested::check(&body[field.name], field.objects, field.name))
    }

    /// The schema of a request, in which `x-support` marks each field as `supported`, `refused` or `without effect`.
    pub fn schema(&self) -> Schema {
        let merged = self.merged();
        json_schema!({
            "type": "object",
            "properties": merged["properties"],
            "required": merged["required"],
            "additionalProperties": false,
        })
    }

    fn merged(&self) -> &Value {
        self.merged.get_or_init(|| {
            let (mut properties, mut required) = (Map::new(), Vec::new());
            for schema in (self.supported)() {
                let schema = schema.as_value();
                required.extend(schema["required"].as_array().cloned().unwrap_or_default());
                for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                    let mut field = if field.is_object() { field.clone() } else { json!({}) };
                    field["x-support"] = json!("supported");
                    if let Some(nested) = self.nested.iter().find(|nested| nested.name == *name) {
                        field["anyOf"] = nested::schema(nested.objects);
                    }
                    properties.insert(name.clone(), field);
                }
            }
            for OtherField { name, accepted } in self.others.iter().copied().flatten() {
                let field = match accepted {
                    None => json!({ "x-support": "without effect" }),
                    Some(accepted) => {
                        let values =
                            accepted.iter().filter_map(|text| files::parse_exact::<Value>(text).ok());
                        let values: Vec<Value> = [Value::Null].into_iter().chain(values).collect();
                        json!({ "x-support": "refused", "enum": values })
                    }
                };
                properties.insert((*name).to_owned(), field);
            }
            json!({ "properties": properties, "required": required })
        })
    }
}
