"""Write `tests/fixtures/folders/NAME` for folders whose weights are floats of a few bits: `python float_folders.py [NAME …]`.

The package `compressed-tensors` writes `float-*`, and `bitsandbytes` writes `nf4*` and `fp4*`, both in their own layout. The layout of
`fp8-*` is that of `FP8Linear` in transformers (`integrations/finegrained_fp8.py`). Each folder has goldens of transformers with the
dequantized numbers in f32, and `numbers.json` with the shape and the hash of each dequantized weight.
"""

import json
import math
import random
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from folders import fnv
from golden import NEAR_TIE, greedy, load, write_checkpoint, write_golden

FIXTURES = Path(__file__).parents[1] / "fixtures" / "folders"
CHUNK, CONTEXT, BLOCK = 8, 40, 128
SKIPPED = ["model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"]
BASE = dict(
    vocab_size=64, hidden_size=160, num_attention_heads=5, num_key_value_heads=1, head_dim=32, num_hidden_layers=2, intermediate_size=80,
    max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
WIDE = BASE | dict(hidden_size=128, num_attention_heads=4, intermediate_size=192)


def expanded(scale, shape):
    """Repeats the scale of each block of 128 × 128 numbers."""
    return scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: shape[0], : shape[1]]


def fp8_blocks(key, weight):
    rows, columns = (-n // BLOCK * -1 for n in weight.shape)
    padded = torch.zeros(rows * BLOCK, columns * BLOCK)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    scale = padded.reshape(rows, BLOCK, columns, BLOCK).abs().amax((1, 3)) / 448
    codes = (weight / expanded(scale, weight.shape)).to(torch.float8_e4m3fn)
    return {f"{key}.weight": codes, f"{key}.weight_scale_inv": scale}, codes.float() * expanded(scale, weight.shape)


def fp8_tensor(key, weight):
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {f"{key}.weight": codes, f"{key}.weight_scale_inv": scale, f"{key}.activation_scale": torch.tensor(0.5)}, codes.float() * scale


def compressed(strategy):
    from compressed_tensors.compressors import FloatQuantizationCompressor
    from compressed_tensors.quantization import QuantizationScheme

    block = [BLOCK, BLOCK] if strategy == "block" else None
    weights = dict(num_bits=8, type="float", strategy=strategy, symmetric=True, dynamic=False, block_structure=block)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)

    def quantize(key, weight):
        if strategy == "channel":
            scale = weight.abs().amax(1, keepdim=True) / 448
        elif strategy == "tensor":
            scale = (weight.abs().max() / 448).reshape(1)
        else:
            scale = fp8_blocks(key, weight)[0][f"{key}.weight_scale_inv"]
        scale = scale.to(torch.bfloat16)
        made = FloatQuantizationCompressor.compress({"weight": weight.to(torch.bfloat16), "weight_scale": scale}, scheme)
        wide = FloatQuantizationCompressor.decompress(made | {"weight_scale": made["weight_scale"].float()}, scheme)["weight"]
        return {f"{key}.{name}": tensor.contiguous() for name, tensor in made.items()}, wide

    activations = dict(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    config = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed", "config_groups": {"group_0": group},
        "ignore": ["lm_head", *SKIPPED], "kv_cache_scheme": None, "global_compression_ratio": None,
    }
    return quantize, config


def four_bits(kind, nested):
    import bitsandbytes.functional as functional

    def quantize(key, weight):
        codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
        more = {f"{key}.weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        return {f"{key}.weight": codes, **more}, functional.dequantize_4bit(codes, state)

    config = {
        "quant_method": "bitsandbytes", "_load_in_4bit": True, "_load_in_8bit": False, "load_in_4bit": True, "load_in_8bit": False,
        "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested,
        "llm_int8_skip_modules": ["lm_head", *SKIPPED], "llm_int8_threshold": 6.0, "llm_int8_has_fp16_weight": False,
        "llm_int8_enable_fp32_cpu_offload": False,
    }
    return quantize, config


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "modules_to_not_convert": ["lm_head", *SKIPPED]}
KINDS = {
    "fp8-blocks": (BASE, lambda: (fp8_blocks, FP8 | {"activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]})),
    "fp8-tensor": (BASE, lambda: (fp8_tensor, FP8 | {"activation_scheme": "static", "weight_block_size": None})),
    "float-channel": (BASE, lambda: compressed("channel")),
    "float-tensor": (BASE, lambda: compressed("tensor")),
    "float-block": (BASE, lambda: compressed("block")),
    "nf4": (WIDE, lambda: four_bits("nf4", False)),
    "nf4-nested": (WIDE, lambda: four_bits("nf4", True)),
    "fp4": (WIDE, lambda: four_bits("fp4", False)),
}


def write(name, seed):
    config, kind = KINDS[name]
    quantize, quantization = kind()
    out = FIXTURES / name
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder)
        write_checkpoint(plain, seed, storage="bf16", **config)
        tensors, wide, hashes = load_file(plain / "model.safetensors"), {}, {}
        stored = dict(tensors)
        for key, tensor in tensors.items():
            module = key.removesuffix(".weight")
            if tensor.ndim != 2 or "proj" not in key or module in SKIPPED:
                wide[key] = tensor.float()
                continue
            del stored[key]
            parts, numbers = quantize(module, tensor.float())
            stored |= parts
            wide[key] = numbers.float().contiguous()
            hashes[key] = [list(numbers.shape), fnv(wide[key].numpy())]
        save_file(wide, plain / "model.safetensors", metadata={"format": "pt"})
        save_file({key: tensor.contiguous() for key, tensor in stored.items()}, out / "model.safetensors", metadata={"format": "pt"})
        keys = json.loads((plain / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(keys | {"quantization_config": quantization}, indent=2, sort_keys=True) + "\n")
        lines = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(hashes.items()))
        (out / "numbers.json").write_text("{\n  " + lines + "\n}\n")
        model, rng = load(plain), random.Random(seed)
    prompts, found = [], []
    for length in (1, 11):
        distance = -math.inf
        while distance < NEAR_TIE:
            prompt = [rng.randrange(config["vocab_size"]) for _ in range(length)]
            logits, tokens, distance = greedy(model, prompt, 16)
        prompts.append({"prompt_tokens": prompt, "tokens": tokens, "min_gap": distance, "full": True})
        found.append({"logits": logits})
    write_golden(out / "golden.json", found, prompts, name=name, seed=seed, storage="f32", vocab_size=config["vocab_size"], chunk=CHUNK, context=CONTEXT)
    print(name, sum(file.stat().st_size for file in out.iterdir()), {key: tuple(p["tokens"]) for key, p in enumerate(prompts)})


if __name__ == "__main__":
    for index, name in enumerate(KINDS):
        if not sys.argv[1:] or name in sys.argv[1:]:
            write(name, 640 + index)
