"""Write the quantized folders of `tests/fixtures/folders` and what transformers answers for their numbers: `python folders.py [NAME …]`.

A random Llama is rounded to integers, and written as each method stores them. The network with the numbers of the folder is
transformers' own in f32. AutoAWQ and GPTQModel need a GPU, so NumPy writes their layouts, by `awq/utils/packing_utils.py` of AutoAWQ
and `gptqmodel/nn_modules/qlinear` of GPTQModel. compressed-tensors packs and unpacks its own."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors

import golden

OUT = Path(__file__).parent.parent / "fixtures" / "folders"
# `pack` of AutoAWQ puts output `AWQ_ORDER[i]` of each eight into bits 4 i to 4 i + 3.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
SHAPE = dict(
    vocab_size=48, hidden_size=256, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    head_dim=64, max_position_embeddings=64, tie_word_embeddings=True,
)


def rounded(weight, bits, group, symmetric):
    """Codes `[outputs, inputs]`, scales and zero points `[outputs, groups]`."""
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, -1, min(group or inputs, inputs)).astype(np.float32)
    most = 2**bits - 1
    if symmetric:
        scales = np.abs(groups).max(-1) / (most // 2)
        zeros = np.full(scales.shape, 2 ** (bits - 1), np.int32)
    else:
        least = np.minimum(groups.min(-1), 0)
        scales = (np.maximum(groups.max(-1), 0) - least) / most
        zeros = np.rint(-least / scales).clip(1, most).astype(np.int32)
    scales = scales.astype(np.float16)
    codes = np.rint(groups / scales.astype(np.float32)[..., None]).astype(np.int32) + zeros[..., None]
    return codes.clip(0, most).reshape(weight.shape), scales, zeros


def stream(codes, bits):
    """Codes along the last axis as a stream of bits in words of 32."""
    each = (codes[..., None] >> np.arange(bits) & 1).reshape(*codes.shape[:-1], -1).astype(np.uint8)
    assert each.shape[-1] % 32 == 0
    return np.packbits(each, axis=-1, bitorder="little").view("<i4")


def unstream(words, bits, count):
    each = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")[..., : count * bits]
    return (each.reshape(*words.shape[:-1], count, bits).astype(np.int32) << np.arange(bits)).sum(-1)


def awq(config, codes, scales, zeros):
    def pack(rows):
        return stream(rows.reshape(len(rows), -1, 8)[..., AWQ_ORDER].reshape(rows.shape), 4)

    return {"qweight": pack(codes.T), "qzeros": pack(zeros.T), "scales": scales.T}


def from_awq(config, part):
    def unpack(words):
        codes = unstream(words, 4, words.shape[1] * 8).reshape(len(words), -1, 8)
        return codes[..., np.argsort(AWQ_ORDER)].reshape(len(words), -1)

    return unpack(part["qweight"]).T, part["scales"].T, unpack(part["qzeros"]).T


def gptq(config, codes, scales, zeros):
    bits, less = config["bits"], int(config.get("checkpoint_format", "gptq") == "gptq")
    inputs = np.arange(codes.shape[1], dtype=np.int32)
    return {
        "qweight": stream(codes, bits).T,
        "qzeros": stream(zeros.T - less & 2**bits - 1, bits),
        "scales": scales.T,
        "g_idx": inputs // (config["group_size"] if config["group_size"] > 0 else len(inputs)),
    }


def from_gptq(config, part):
    bits, less = config["bits"], int(config.get("checkpoint_format", "gptq") == "gptq")
    words, scales = part["qweight"], part["scales"]
    codes = unstream(words.T, bits, len(words) * 32 // bits)
    zeros = unstream(part["qzeros"], bits, scales.shape[1]) + less & 2**bits - 1
    groups = part["g_idx"]
    return codes, scales.T[:, groups], zeros.T[:, groups]


def scheme(config):
    (group,) = config["config_groups"].values()
    return group["weights"]


def compressed(config, codes, scales, zeros):
    weights = scheme(config)
    bits, half = weights["num_bits"], 2 ** (weights["num_bits"] - 1)
    scales = torch.from_numpy(scales).to(torch.bfloat16)
    if config["format"] == "int-quantized":
        return {"weight": (codes - half).astype(np.int8), "weight_scale": scales}
    pack = lambda codes, axis: pack_to_int32(torch.from_numpy((codes - half).astype(np.int8)), bits, axis).numpy()
    parts = {
        "weight_packed": pack(codes, 1),
        "weight_scale": scales,
        "weight_shape": np.array(codes.shape, np.int64),
    }
    return parts if weights["symmetric"] else parts | {"weight_zero_point": pack(zeros, 0)}


def from_compressed(config, part):
    weights = scheme(config)
    bits, half = weights["num_bits"], 2 ** (weights["num_bits"] - 1)
    unpack = lambda words, shape, axis: unpack_from_int32(torch.from_numpy(words), bits, torch.Size(shape), axis).numpy().astype(np.int32) + half
    scales = part["weight_scale"]
    if config["format"] == "int-quantized":
        return part["weight"].astype(np.int32), scales, np.zeros(scales.shape, np.int32)
    zeros = part.get("weight_zero_point")
    zeros = np.full(scales.shape, half, np.int32) if zeros is None else unpack(zeros, scales.shape, 0)
    return unpack(part["weight_packed"], part["weight_shape"], 1), scales, zeros


# Folders of wider integers have fewer of them, and an input that is shorter than a group.
WIDE = dict.fromkeys(["gptq-8", "int-quantized"], dict(num_attention_heads=1, num_key_value_heads=1))

# Writer and reader of each method, and the keys of a folder's method.
METHODS = {"awq": (awq, from_awq), "gptq": (gptq, from_gptq), "compressed-tensors": (compressed, from_compressed)}


def packed(bits, group, symmetric, form="pack-quantized"):
    weights = dict(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group else "channel", dynamic=False, actorder=None)
    if group:
        weights["group_size"] = group
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}}
    return dict(quant_method="compressed-tensors", format=form, quantization_status="compressed", ignore=["lm_head"], config_groups=groups, kv_cache_scheme=None)


FOLDERS = {
    "awq": dict(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm", modules_to_not_convert=None),
    "gptq": dict(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True, checkpoint_format="gptq"),
    "gptq_v2": dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=False, checkpoint_format="gptq_v2"),
    "gptq-2": dict(quant_method="gptq", bits=2, group_size=128, desc_act=False, sym=False),
    "gptq-3": dict(quant_method="gptq", bits=3, group_size=-1, desc_act=False, sym=True, checkpoint_format="gptq_v2"),
    "gptq-8": dict(quant_method="gptq", bits=8, group_size=128, desc_act=False, sym=True),
    "int-quantized": packed(8, None, True, "int-quantized"),
    "packed": packed(4, 128, True),
    "packed-asymmetric": packed(4, 32, False),
}


def rewrite(config):
    def change(tensors):
        write, _ = METHODS[config["quant_method"]]
        for key in [key for key in tensors if key.endswith("_proj.weight")]:
            weight = tensors.pop(key).float().numpy()
            weights = scheme(config) if "config_groups" in config else config
            symmetric = weights.get("sym", weights.get("symmetric", False))
            group = weights.get("group_size")
            made = rounded(weight, weights.get("bits", weights.get("num_bits")), None if group == -1 else group, symmetric)
            for end, part in write(config, *made).items():
                part = part if torch.is_tensor(part) else torch.from_numpy(np.ascontiguousarray(part))
                tensors[f"{key.removesuffix('weight')}{end}"] = part.contiguous()
        return tensors

    return change


def dequantized(directory, to):
    """A copy of a folder with its numbers in f32."""
    keys = json.loads((directory / "config.json").read_text())
    config = keys.pop("quantization_config")
    (to / "config.json").write_text(json.dumps(keys | {"dtype": "float32"}))
    _, read = METHODS[config["quant_method"]]
    tensors = load_file(directory / "model.safetensors")
    for module in sorted({f"{key.rpartition('.')[0]}." for key in tensors if "_proj." in key}):
        parts = {key.removeprefix(module): tensors.pop(key) for key in list(tensors) if key.startswith(module)}
        parts = {end: (part.float() if part.is_floating_point() else part).numpy() for end, part in parts.items()}
        codes, scales, zeros = read(config, parts)
        each = codes.shape[1] // scales.shape[1]
        scales, zeros = np.repeat(scales, each, 1), np.repeat(zeros, each, 1)
        tensors[f"{module}weight"] = torch.from_numpy((codes - zeros).astype(np.float32) * scales)
    save_tensors({key: tensor.float().contiguous() for key, tensor in tensors.items()}, to / "model.safetensors", metadata={"format": "pt"})


def fnv(numbers):
    """FNV-1a of 32-bit words."""
    found = 0xCBF29CE484222325
    for word in np.ascontiguousarray(numbers, np.float32).view(np.uint32).ravel().tolist():
        found = (found ^ word) * 0x100000001B3 & 2**64 - 1
    return f"{found:016x}"


def write_numbers(directory):
    """The shapes and hashes of the weights that the folder quantizes."""
    with tempfile.TemporaryDirectory() as folder:
        golden.dequantized(directory, Path(folder))
        tensors = load_file(Path(folder) / "model.safetensors")
    found = {key: [list(tensor.shape), fnv(tensor.numpy())] for key, tensor in sorted(tensors.items()) if key.endswith("_proj.weight")}
    lines = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    (directory / "numbers.json").write_text("{\n  " + lines + "\n}\n")


def main():
    for seed, (name, config) in enumerate(FOLDERS.items(), 700):
        if name in (sys.argv[1:] or FOLDERS):
            golden.write_case(
                OUT / name, seed, 8, 40, [3, 17], 6, storage="f16", published=True, rewrite=rewrite(config),
                add={"quantization_config": config}, model_type="llama", **SHAPE | WIDE.get(name, {}),
            )
            write_numbers(OUT / name)


if __name__ == "__main__":
    main()
