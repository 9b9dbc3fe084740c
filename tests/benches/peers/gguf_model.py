"""Checkpoints of bf16 numbers as GGUF files without a vocabulary, for every family, as llama.cpp wants them."""

import json
import re
import struct

import gguf
import numpy as np

# By model_type: GGUF's name of the architecture, and what it stores otherwise. "pairs": rows of q and k are moved, since
# llama.cpp rotates neighbours. "one": of a norm's weight 1 + w. "conv1d": matrices are stored inputs first. "gates": the checkpoint
# stores experts inputs first, and the columns of gates and of up projections by turns.
FAMILIES = {
    "llama": ("LLAMA", {"pairs"}), "mistral": ("LLAMA", {"pairs"}), "mixtral": ("LLAMA", {"pairs"}), "smollm3": ("SMOLLM3", {"pairs"}),
    "qwen2": ("QWEN2", set()), "qwen3": ("QWEN3", set()), "olmo2": ("OLMO2", set()), "phi3": ("PHI3", set()), "lfm2": ("LFM2", set()),
    "gemma2": ("GEMMA2", {"one"}), "gemma3_text": ("GEMMA3", {"one"}), "gpt2": ("GPT2", {"conv1d"}),
    "qwen3_moe": ("QWEN3MOE", set()), "gpt_oss": ("GPT_OSS", {"gates"}), "granitemoehybrid": ("GRANITE_HYBRID", {"pairs"}),
}
# Names in a checkpoint that the package `gguf` does not know, and names that it knows for the same tensors.
RENAMED = [
    (r"block_sparse_moe(\.experts\.\w+_proj\.weight)$", r"mlp\1"),
    (r"shared_mlp\.(gate|up)_linear", r"mlp.shared_expert.\1_proj"),
    (r"\.dt_bias$", ".dt_proj.bias"),
    (r"\.sinks$", ".sinks.weight"),
    (r"(\.experts\.\w+_proj)$", r"\1.weight"),
    (r"(\.experts\.\w+_proj)_bias$", r"\1.bias"),
]
NUMBERS = {"BF16": np.uint16, "F32": np.float32, "I32": np.int32}


def tensors(path):
    """The shapes of a .safetensors file's tensors, and what reads one; bf16 numbers as integers."""
    raw = np.memmap(path, np.uint8, "r")
    start = 8 + struct.unpack("<Q", raw[:8].tobytes())[0]
    header = {key: entry for key, entry in json.loads(raw[8:start].tobytes()).items() if key != "__metadata__"}

    def tensor(key):
        first, last = header[key]["data_offsets"]
        return raw[start + first : start + last].view(NUMBERS[header[key]["dtype"]]).reshape(header[key]["shape"])

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
    shared, kinds = get("num_key_value_heads", default=heads), get("layer_types", default=[])
    # llama.cpp finds layers without attention by their number of key-value heads.
    mixed = "conv" in kinds or "mamba" in kinds
    writer.add_head_count_kv([shared if "attention" in kind else 0 for kind in kinds] if mixed else shared)
    if "conv" in kinds:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if "mamba" in kinds:
        writer.add_ssm_conv_kernel(config["mamba_d_conv"])
        writer.add_ssm_state_size(config["mamba_d_state"])
        writer.add_ssm_group_count(config["mamba_n_groups"])
        writer.add_ssm_inner_size(config["mamba_expand"] * hidden)
        writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    if "layer_norm_epsilon" in config:
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(get("rms_norm_eps", "norm_eps"))
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_rope_dimension_count(features)
    writer.add_key_length(features)
    writer.add_value_length(features)
    if experts := experts_of(config):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(get("moe_intermediate_size", "intermediate_size"))
    if get("shared_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    if get("position_embedding_type") == "nope":
        writer.add_rope_scaling_finetuned(False)
    if (scaling := get("rope_scaling", default={})).get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
    if get("residual_multiplier"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    return heads, shared


def experts_of(config):
    """The number of experts in a layer."""
    return config.get("num_local_experts") or config.get("num_experts") or 0


def floats(numbers):
    """bf16 numbers as f32."""
    return (numbers.astype(np.uint32) << 16).view(np.float32) if numbers.dtype == np.uint16 else numbers


def separate(model, differs, experts):
    """The tensors of a checkpoint with names that `gguf` knows: experts in one tensor, their gates and up projections in two."""
    header, tensor = tensors(model / "model.safetensors")
    expert = re.compile(r"\.experts\.(\d+)\.")
    for key in header:
        match expert.search(key):
            case None:
                numbers = tensor(key)
            case found if found[1] == "0":
                each = [expert.sub(f".experts.{i}.", key) for i in range(experts)]
                numbers = np.stack([tensor(one) for one in each])
                key = expert.sub(".experts.", key)
            case _:
                continue
        for pattern, name in RENAMED:
            key = re.sub(pattern, name, key)
        if "gates" in differs and key.endswith("_proj.weight") and ".experts." in key:
            numbers = numbers.swapaxes(1, 2)
        if "gates" in differs and "gate_up_proj" in key:
            yield key.replace("gate_up", "gate"), numbers[:, ::2]
            yield key.replace("gate_up", "up"), numbers[:, 1::2]
        else:
            yield key, numbers


def write_gguf(model, out):
    """A checkpoint folder of ours as a GGUF file."""
    config = json.loads((model / "config.json").read_text())
    architecture, differs = FAMILIES[config["model_type"]]
    arch = gguf.MODEL_ARCH[architecture]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    heads, shared = describe(writer, config)
    names = gguf.get_tensor_name_map(arch, config.get("num_hidden_layers", config.get("n_layer")))

    def arranged(key, numbers):
        name = names.get_name(key, (".weight", ".bias"))
        if "pairs" in differs and (found := re.search(r"attn_([qk])\.", name)):
            count = heads if found[1] == "q" else shared
            numbers = numbers.reshape(count, 2, len(numbers) // count // 2, -1).swapaxes(1, 2).reshape(numbers.shape)
        if "conv1d" in differs and re.search(r"(c_attn|c_proj|c_fc)\.weight", key):
            numbers = numbers.T
        if re.search(r"(shortconv\.conv|ssm_conv1d)\.weight", name):
            numbers = floats(numbers.squeeze(1))
        if name.endswith("ssm_a"):
            numbers = -np.exp(numbers)
        if name.endswith(("ssm_a", "ssm_d")):
            numbers = numbers[:, None]
        if "ssm_norm" in name:
            numbers = floats(numbers.reshape(config["mamba_n_groups"], -1))
        if numbers.ndim == 1 or "ffn_gate_inp" in name or not name.endswith(".weight"):
            numbers = floats(numbers) + np.float32("one" in differs and "norm" in name)
        return name, numbers

    def all_tensors():
        return (arranged(key, numbers) for key, numbers in separate(model, differs, experts_of(config)))

    # The first pass describes the tensors, and the second pass writes them, so that memory holds one tensor at a time.
    for name, numbers in all_tensors():
        kind = gguf.GGMLQuantizationType.BF16 if numbers.dtype == np.uint16 else gguf.GGMLQuantizationType.F32
        writer.add_tensor_info(name, numbers.shape, numbers.dtype, numbers.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, numbers in all_tensors():
        writer.write_tensor_data(np.ascontiguousarray(numbers))
    writer.close()
