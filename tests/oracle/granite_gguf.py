"""Write `tests/fixtures/gguf/granite.gguf`: the network of `tests/fixtures/granite` by the package `gguf`, as
`GraniteModel` of llama.cpp's `convert_hf_to_gguf.py` arranges it. Needs `gguf`, and what `requirements.txt` names."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDER, OUT = FIXTURES / "granite", FIXTURES / "gguf" / "granite.gguf"


def interleaved(matrix, heads):
    """The halves of a head's features by turns: llama.cpp rotates neighbours."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main():
    keys = json.loads((FOLDER / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GRANITE, keys["num_hidden_layers"])
    writer = gguf.GGUFWriter(OUT, "granite")
    writer.add_vocab_size(keys["vocab_size"])
    writer.add_context_length(keys["max_position_embeddings"])
    writer.add_embedding_length(keys["hidden_size"])
    writer.add_feed_forward_length(keys["intermediate_size"])
    writer.add_block_count(keys["num_hidden_layers"])
    writer.add_head_count(keys["num_attention_heads"])
    writer.add_head_count_kv(keys["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(keys["rms_norm_eps"])
    writer.add_rope_dimension_count(keys["hidden_size"] // keys["num_attention_heads"])
    writer.add_rope_freq_base(keys["rope_theta"])
    writer.add_attention_scale(keys["attention_multiplier"])
    writer.add_embedding_scale(keys["embedding_multiplier"])
    writer.add_residual_scale(keys["residual_multiplier"])
    writer.add_logit_scale(keys["logits_scaling"])
    for key, tensor in load_file(FOLDER / "model.safetensors").items():
        tensor = tensor.float().numpy()
        if key.endswith("q_proj.weight"):
            tensor = interleaved(tensor, keys["num_attention_heads"])
        if key.endswith("k_proj.weight"):
            tensor = interleaved(tensor, keys["num_key_value_heads"])
        # The checkpoint has bf16; norms are F32, as in every file that llama.cpp writes.
        kind = gguf.GGMLQuantizationType.F32 if tensor.ndim == 1 else gguf.GGMLQuantizationType.BF16
        tensor = gguf.quants.quantize(np.ascontiguousarray(tensor), kind)
        writer.add_tensor(names.get_name(key, (".weight",)), tensor, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
