"""Checkpoints of bf16 numbers as GGUF files without a vocabulary, for every family, as llama.cpp wants them."""

import json
import re
import struct

import gguf
import numpy as np

# By model_type: GGUF's name of the architecture, and what it stores otherwise. "pairs": rows of q and k are moved, since
# llama.cpp rotates neighbours. "one": of a norm's weight 1 + w. "conv1d": matrices are stored inputs first.
FAMILIES = {
    "llama": ("LLAMA", {"pairs"}), "mistral": ("LLAMA", {"pairs"}), "mixtral": ("LLAMA", {"pairs"}), "smollm3": ("SMOLLM3", {"pairs"}),
    "qwen2": ("QWEN2", set()), "qwen3": ("QWEN3", set()), "olmo2": ("OLMO2", set()), "phi3": ("PHI3", set()), "lfm2": ("LFM2", set()),
    "gemma2": ("GEMMA2", {"one"}), "gemma3_text": ("GEMMA3", {"one"}), "gpt2": ("GPT2", {"conv1d"}),
}


def tensors(path, kind):
    """The shapes of a .safetensors file's tensors, all of this kind, and what reads one."""
    raw = np.memmap(path, np.uint8, "r")
    start = 8 + struct.unpack("<Q", raw[:8].tobytes())[0]
    header = {key: entry for key, entry in json.loads(raw[8:start].tobytes()).items() if key != "__metadata__"}

    def tensor(key):
        first, last = header[key]["data_offsets"]
        return raw[start + first : start + last].view(kind).reshape(header[key]["shape"])

    return header, tensor


def describe(writer, config):
    """Says what `config.json` says."""

    def get(*keys, default=None):
        return next((config[key] for key in keys if config.get(key) is not None), default)

    hidden, heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    layers, features = get("num_hidden_layers", "n_layer"), get("head_dim", default=hidden // heads)
    writer.add_block_count(layers)
    writer.add_context_length(get("max_position_embeddings", "n_positions"))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(get("intermediate_size", "block_ff_dim", default=4 * hidden))
    writer.add_head_count(heads)
    shared = get("num_key_value_heads", default=heads)
    if "layer_types" in config and "conv" in config["layer_types"]:
        shared = [shared if kind == "full_attention" else 0 for kind in config["layer_types"]]
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_head_count_kv(shared)
    if "layer_norm_epsilon" in config:
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(get("rms_norm_eps", "norm_eps"))
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_rope_dimension_count(features)
    writer.add_key_length(features)
    writer.add_value_length(features)
    if get("num_local_experts"):
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    return layers, heads, shared


def write_gguf(model, out):
    """A checkpoint folder of ours as a GGUF file."""
    config = json.loads((model / "config.json").read_text())
    architecture, differs = FAMILIES[config["model_type"]]
    arch = gguf.MODEL_ARCH[architecture]
    header, tensor = tensors(model / "model.safetensors", np.uint16)
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    layers, heads, shared = describe(writer, config)
    names = gguf.get_tensor_name_map(arch, layers)

    def put(key, numbers):
        name = names.get_name(key, (".weight", ".bias"))
        if "pairs" in differs and (found := re.search(r"attn_([qk])\.", name)):
            count = heads if found[1] == "q" else shared
            numbers = numbers.reshape(count, 2, len(numbers) // count // 2, -1).swapaxes(1, 2).reshape(numbers.shape)
        if "conv1d" in differs and re.search(r"(c_attn|c_proj|c_fc)\.weight", key):
            numbers = numbers.T
        if "shortconv.conv" in name:
            writer.add_tensor(name, (numbers.squeeze(1).astype(np.uint32) << 16).view(np.float32))
        elif numbers.ndim == 1:
            one = np.float32("one" in differs and "norm" in name)
            writer.add_tensor(name, (numbers.astype(np.uint32) << 16).view(np.float32) + one)
        else:
            numbers = np.ascontiguousarray(numbers).view(np.uint8)
            writer.add_tensor(name, numbers, raw_dtype=gguf.GGMLQuantizationType.BF16)

    expert = re.compile(r"\.experts\.(\d+)\.")
    for key in header:
        match expert.search(key):
            case None:
                put(key, tensor(key))
            case found if found[1] == "0":
                each = [tensor(expert.sub(f".experts.{i}.", key)) for i in range(config["num_local_experts"])]
                put(expert.sub(".experts.", key), np.stack(each))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
