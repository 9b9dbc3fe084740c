//! The formats of four bits of bitsandbytes (Dettmers et al., "QLoRA", 2023).

use irpa::{FloatsLayout, JoinedLayout};

use super::Storage;
use crate::config::Keys;

/// Keys that do not change the numbers. The tensors show which modules are quantized, and how.
const IGNORED: &[&str] = &[
    "_load_in_4bit",
    "_load_in_8bit",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_use_double_quant",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
    "target_modules",
];

pub(super) fn read(keys: &Keys) -> Storage {
    keys.ignore(IGNORED);
    if keys.flag("load_in_8bit", false) {
        let expected = "false: Tracewright reads the formats nf4 and fp4; use a GGUF file in Q8_0 instead";
        keys.refuse("load_in_8bit", true, expected);
    }
    keys.always("load_in_4bit", true);
    keys.one_of("bnb_4bit_quant_type", &["nf4", "fp4"]);
    keys.one_of("bnb_4bit_quant_storage", &["uint8"]);
    Storage::all(JoinedLayout::Floats(FloatsLayout::FourBits))
}
