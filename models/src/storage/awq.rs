//! AWQ (Lin et al., "AWQ: Activation-aware Weight Quantization", 2023), in the layout `gemm` of AutoAWQ.

use irpa::{CodeOrder, IntegersLayout, JoinedLayout};

use super::{Storage, group_size};
use crate::config::Keys;

/// Keys for the quantization and for kernels, which do not change the numbers. The tensors show which modules
/// are quantized. HF transformers also writes keys of GPTQ.
const IGNORED: &[&str] = &[
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_percent",
    "dataset",
    "desc_act",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "max_input_length",
    "meta",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "modules_to_not_convert",
    "pad_token_id",
    "sym",
    "tokenizer",
    "true_sequential",
];

pub(super) fn read(keys: &Keys) -> Storage {
    keys.ignore(IGNORED);
    for bits in ["bits", "w_bit"] {
        if let Some(found) = keys.optional_count(bits).filter(|bits| *bits != 4) {
            keys.refuse(bits, found, "4");
        }
    }
    keys.always("zero_point", true);
    for key in ["version", "format"] {
        keys.one_of(key, &["gemm", "GEMM"]);
    }
    let group = group_size(keys, 128);
    Storage::all(JoinedLayout::Integers(IntegersLayout {
        packing: CodeOrder::Awq,
        bits: 4,
        group,
        zeros: true,
    }))
}
