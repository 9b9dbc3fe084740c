//! Rejects settings that change the computation of llama.cpp, and that a family does not read.

use irpa::GgufValue;

use super::metadata::Metadata;
use crate::config::KeyProblem;

/// Without the architecture's prefix (`LLM_KV_NAMES` in llama.cpp). Keys for tensors are not here: an unread
/// tensor is an error already.
const SETTINGS: &[&str] = &[
    "attention.clamp_kqv",
    "attention.key_length_swa",
    "attention.max_alibi_bias",
    "attention.output_scale",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_scale",
    "expert_weights_scale",
    "experts_per_group",
    "final_logit_softcapping",
    "hidden_activation",
    "logit_scale",
    "moe_every_n_layers",
    "rescale_every_n_layers",
    "residual_scale",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.alpha",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "router_logit_softcapping",
    "ssm.dt_b_c_rms",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "swin_norm",
    "token_shift_count",
    "use_parallel_residual",
];

/// llama.cpp writes 0, 1 or an empty text for a setting that a network lacks.
fn is_neutral(key: &str, value: GgufValue<'_>) -> bool {
    match value {
        GgufValue::Integer(number) => matches!(number, 0 | 1),
        // llama.cpp stands for an unset factor of YaRN with −1.
        GgufValue::Float(number) => {
            number == 0.0 || number == 1.0 || (number == -1.0 && key.contains("yarn"))
        }
        GgufValue::Bool(flag) => !flag,
        // Without a factor, these types change nothing.
        GgufValue::Text(text) => matches!(text, "" | "none" | "linear"),
        GgufValue::Array(array) => array.iter().all(|value| is_neutral(key, value)),
    }
}

impl Metadata<'_> {
    /// Records a problem for each setting that the file contains and the family has not read.
    pub(super) fn refuse_unread(&self) {
        for setting in SETTINGS {
            let unread = self.unread(setting).filter(|(_, value)| !is_neutral(setting, *value));
            if let Some((key, value)) = unread {
                let name = self.architecture;
                let expected = format!("no such key: networks of `{name}` do not have this setting");
                self.note(KeyProblem::Value { key, found: value.to_string(), expected });
            }
        }
    }
}
