//! Checks the keys of HF transformers' base class for configurations. In HF transformers, the result of
//! `config.to_dict()` contains the keys of the base class for every model. The list contains the keys of
//! `PreTrainedConfig` in HF transformers 5.24, and the additional keys of `PretrainedConfig` in HF
//! transformers 4.x.

use serde_json::Value;

use super::Keys;
use super::storage::QUANTIZATION;

/// Configuration keys that do not affect the logits, whatever value they have.
const ANY: &[&str] = &[
    // These keys set how HF transformers loads a model, and which results a call returns.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_experts_implementation_internal",
    "_output_attentions",
    "experts_implementation",
    "gradient_checkpointing",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "tf_legacy_loss",
    "tie_last_hidden_states",
    "torchscript",
    "use_bfloat16",
    "xla_device",
    // With this key, HF transformers computes feed-forward networks in chunks of positions, with
    // the same results.
    "chunk_size_feed_forward",
    // Only encoder-decoder models read this key.
    "is_decoder",
    // These keys configure output heads for other tasks.
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    // Special tokens, which Tracewright reads from the tokenizer's files.
    "decoder_start_token_id",
    "sep_token_id",
    "tokenizer_class",
    // Generation: HF transformers 5 drops these keys, and 4 saves them in `generation_config.json`.
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// A key that could change the network or the prompt: name, description of the only allowed value besides
/// null, and its test.
type OnlyAt = (&'static str, &'static str, fn(&Value) -> bool);

const ONLY: &[OnlyAt] = &[
    ("add_cross_attention", "false: the network is a decoder alone", is_false),
    ("cross_attention_hidden_size", "null: the network is a decoder alone", |_| false),
    ("is_encoder_decoder", "false: the network is a decoder alone", is_false),
    ("tie_encoder_decoder", "false: the network is a decoder alone", is_false),
    ("per_layer_config", "null or {}: all layers follow the same keys", is_empty),
    ("prefix", "null or \"\": nothing stands in front of a prompt", is_empty),
    ("pruned_heads", "{}: all heads of attention are there", is_empty),
];

fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Ignores keys of HF transformers' base class if their values are allowed.
pub(crate) fn read_base(keys: &Keys) {
    keys.ignore(ANY);
    // Earlier code has rejected any of these keys whose value is not null.
    keys.ignore(&QUANTIZATION.map(|(key, _)| key));
    // If a family has already read such a key, the key has the family's meaning.
    for (key, expected, accepts) in ONLY.iter().filter(|(key, ..)| !keys.is_known(key)) {
        if let Some(value) = keys.get(key).filter(|value| !accepts(value)) {
            keys.refuse(key, value, *expected);
        }
    }
}
