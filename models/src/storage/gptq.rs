//! GPTQ (Frantar et al., "GPTQ: Accurate Post-Training Quantization", 2022), as AutoGPTQ and GPTQModel write it.

use irpa::{CodeOrder, IntegersLayout, JoinedLayout};
use serde_json::Value;

use super::{Storage, group_size};
use crate::config::Keys;

/// Keys for the quantization and for kernels, which do not change the numbers. `g_idx` shows the order of the
/// inputs (`desc_act`), and the zero points whether the range is symmetric.
const IGNORED: &[&str] = &[
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "desc_act",
    "disable_exllama",
    "exllama_config",
    "hyb_act",
    "is_marlin_format",
    "lm_head",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_not_convert",
    "mse",
    "pack_impl",
    "pad_token_id",
    "static_groups",
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

pub(super) fn read(keys: &Keys) -> Storage {
    keys.ignore(IGNORED);
    let bits = keys.count("bits");
    if ![2, 3, 4, 8].contains(&bits) {
        keys.refuse("bits", bits, "2, 3, 4 or 8");
    }
    keys.one_of("pack_dtype", &["int32"]);
    if let Some(rules) =
        keys.get("dynamic").filter(|rules| rules.as_object().is_none_or(|map| !map.is_empty()))
    {
        keys.refuse("dynamic", rules, "{}: all modules have the same bits");
    }
    let version = ["checkpoint_format", "format"].into_iter().find_map(|key| {
        keys.one_of(key, &["gptq", "gptq_v2"]);
        keys.get(key).and_then(Value::as_str)
    });
    let packing = CodeOrder::Gptq { one_less: version != Some("gptq_v2") };
    let group = group_size(keys, 128);
    Storage::all(JoinedLayout::Integers(IntegersLayout {
        packing,
        bits: bits.clamp(2, 8),
        group,
        zeros: true,
    }))
}
