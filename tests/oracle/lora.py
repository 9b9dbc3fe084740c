"""Write `tests/fixtures/lora/`: adapters by PEFT, and what transformers answers after `merge_and_unload`: `python lora.py [NAME …]`.

Needs `peft`, `gguf` and `accelerate` beside `requirements.txt` (`lora.txt`). Each folder has the files of an adapter, and a golden of
the model that `base` in `golden.json` names, with the adapter. `adapter.gguf` is the same adapter by the rules of llama.cpp's
`convert_lora_to_gguf.py`.
"""

import json
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from golden import NEAR_TIE, greedy, load, write_golden
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MistralConfig, Phi3Config

FIXTURES = Path(__file__).parents[1] / "fixtures"
OUT = FIXTURES / "lora"
LENGTH, STEPS, CHUNK, CONTEXT = 9, 6, 8, 24
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def split(model):
    """A Mistral with the weights of a Phi-3, whose matrices it stores apart."""
    keys = model.config.to_dict()
    heads, groups = keys["num_attention_heads"], keys["num_key_value_heads"]
    size = keys["hidden_size"] // heads
    kept = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "sliding_window", "rope_parameters"]
    config = MistralConfig(**{key: keys[key] for key in kept}, head_dim=size, tie_word_embeddings=False, attn_implementation="eager")
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("qkv_proj.weight"):
            parts = tensor.split([heads * size, groups * size, groups * size])
            tensors |= {name.replace("qkv_proj", part): rows for part, rows in zip(["q_proj", "k_proj", "v_proj"], parts)}
        elif name.endswith("gate_up_proj.weight"):
            tensors |= {name.replace("gate_up_proj", part): rows for part, rows in zip(["gate_proj", "up_proj"], tensor.chunk(2))}
        else:
            tensors[name] = tensor
    return filled(config, tensors)


def fused(model):
    """A Phi-3 with the weights of a Mistral, whose matrices it stores together."""
    keys = model.config.to_dict()
    kept = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "sliding_window", "rope_parameters", "head_dim"]
    rope = keys["rope_parameters"] | {"partial_rotary_factor": 1.0}
    config = Phi3Config(**{key: keys[key] for key in kept} | {"rope_parameters": rope}, pad_token_id=None, tie_word_embeddings=False, attn_implementation="eager")
    tensors = dict(model.state_dict())
    for layer in range(keys["num_hidden_layers"]):
        for place, whole, parts in [("self_attn", "qkv_proj", ["q_proj", "k_proj", "v_proj"]), ("mlp", "gate_up_proj", ["gate_proj", "up_proj"])]:
            before = f"model.layers.{layer}.{place}"
            tensors[f"{before}.{whole}.weight"] = torch.cat([tensors.pop(f"{before}.{part}.weight") for part in parts])
    return filled(config, tensors)


def filled(config, tensors):
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(tensors)
    return model.float().eval()


def of_gguf(name):
    return lambda: AutoModelForCausalLM.from_pretrained(FIXTURES / "gguf", gguf_file=name, dtype=torch.float32, attn_implementation="eager").eval()


# The name of the folder: the base in `tests/fixtures`, the configuration, and how the model is made if not by loading the base.
CASES = {
    "llama": dict(base="llama-untied", r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "down_proj"]),
    "llama-patterns": dict(
        base="llama-untied", r=8, lora_alpha=5, use_rslora=True, target_modules="all-linear", exclude_modules=["layers.1.mlp.up_proj", "v_proj"],
        rank_pattern={"layers.0.self_attn.q_proj": 16, "down_proj": 5, r"layers\.\d\.self_attn\.q_proj": 7}, alpha_pattern={"^model.layers.1.self_attn.k_proj": 9, "o_proj": 3},
    ),
    "llama-regex": dict(base="llama-untied", r=64, lora_alpha=16, target_modules=r".*\.(mlp|self_attn)\.(up|o)_proj", exclude_modules=r".*\.1\.self_attn\..*"),
    "llama-layers": dict(base="llama-untied", r=6, lora_alpha=6, target_modules=LINEAR, layers_to_transform=[1], layers_pattern="layers", modules_to_save=["lm_head", "norm"]),
    "llama-embeddings": dict(base="llama-untied", r=5, lora_alpha=10, target_modules=["embed_tokens", "lm_head", "v_proj"]),
    "llama-dora": dict(base="llama-untied", r=6, lora_alpha=9, use_dora=True, target_modules=["q_proj", "up_proj", "embed_tokens"]),
    "gemma3": dict(base="gemma3-a", r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "o_proj", "gate_proj"]),
    "gemma3-tower": dict(base="gemma3-4b-tower", r=4, lora_alpha=8, target_modules=r".*language_model.*\.(q_proj|up_proj)"),
    "qwen3": dict(base="qwen3", r=16, lora_alpha=32, target_modules=LINEAR, narrow=True),
    "gpt2": dict(base="gpt2", r=8, lora_alpha=12, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]),
    "gpt2-dora": dict(base="gpt2", r=4, lora_alpha=4, fan_in_fan_out=True, use_dora=True, target_modules=["attn.c_proj", "c_attn"]),
    "phi3": dict(base="phi3", r=8, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj", "o_proj"]),
    "phi3-split": dict(base="phi3", make=lambda: split(load(FIXTURES / "phi3")), r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "k_proj", "v_proj", "up_proj", "gate_proj"]),
    "mistral-fused": dict(base="mistral", make=lambda: fused(load(FIXTURES / "mistral")), r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj"]),
    "gguf-f16": dict(base="gguf/llama-f16.gguf", make=of_gguf("llama-f16.gguf"), r=8, lora_alpha=16, target_modules=LINEAR),
    "gguf-quantized": dict(base="gguf/q4_k.gguf", make=of_gguf("q4_k.gguf"), r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "down_proj"]),
}
# The adapters that are also written as GGUF files.
AS_GGUF = ["llama", "llama-embeddings", "gemma3", "gguf-f16", "gguf-quantized"]


@torch.no_grad()
def train(model, seed):
    """Random factors, whose product is about as large as a third of the weights."""
    torch.manual_seed(seed)
    for name, module in model.named_modules():
        for key in module.scaling if hasattr(module, "lora_A") else []:
            embedding = key in module.lora_embedding_A
            a, b = (module.lora_embedding_A[key], module.lora_embedding_B[key]) if embedding else (module.lora_A[key].weight, module.lora_B[key].weight)
            spread = float(module.get_base_layer().weight.std()) / 3
            a.copy_(torch.randn_like(a) * a.shape[1] ** -0.5)
            b.copy_(torch.randn_like(b) * spread * a.shape[1] ** 0.5 / (module.scaling[key] * a.shape[0] ** 0.5))
            if key in getattr(module, "lora_magnitude_vector", {}):
                magnitude = module.lora_magnitude_vector[key].weight
                magnitude.mul_(1 + 0.2 * torch.randn_like(magnitude))
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name:
            parameter.add_(0.3 * parameter.std() * torch.randn_like(parameter) + 0.01)


def interleaved(matrix, heads):
    """The halves of a head's features by turns: llama.cpp rotates neighbours."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(folder, architecture, config, alpha):
    """As `convert_lora_to_gguf.py`: B has the order of the weight's rows, and A of the embedding is transposed."""
    arch = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(folder / "adapter.gguf", architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(alpha))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in sorted(load_file(folder / "adapter_model.safetensors").items()):
        if ".lora_" not in name:
            continue
        module, factor = name.removeprefix("base_model.model.").split(".lora_")
        tensor, is_a = tensor.float().numpy(), factor.removeprefix("embedding_").startswith("A")
        last = module.rsplit(".", 1)[1] if "." in module else module
        if architecture == "llama" and last in heads and not is_a:
            tensor = interleaved(tensor, heads[last])
        weight = names.get_name(f"{module}.weight", (".weight",))
        if weight == "token_embd.weight" and is_a:
            tensor = tensor.T
        writer.add_tensor(f"{weight}.lora_{'a' if is_a else 'b'}", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_adapter(name, base, seed, make=None, narrow=False, **keys):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model = make() if make else load(FIXTURES / base)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **keys))
    train(adapted, seed)
    with tempfile.TemporaryDirectory() as saved:
        adapted.save_pretrained(saved)
        tensors = load_file(Path(saved) / "adapter_model.safetensors")
        folder.mkdir(parents=True)
        config = json.loads((Path(saved) / "adapter_config.json").read_text())
        # Sets have no order, and the base is a path of the machine.
        config |= {"base_model_name_or_path": None} | {key: sorted(value) for key, value in config.items() if isinstance(value, list) and key.endswith("_modules")}
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=False) + "\n")
    if narrow:
        tensors = {key: tensor.bfloat16() for key, tensor in tensors.items()}
        adapted.load_state_dict({key.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."): tensor.float() for key, tensor in tensors.items()}, strict=False)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.config.get_text_config()
    if name in AS_GGUF:
        write_gguf(folder, "gemma3" if name == "gemma3" else "llama", config, keys["lora_alpha"])
    some = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        unmerged = adapted.eval()(some).logits
        merged = adapted.merge_and_unload().eval()
        same = float((unmerged - merged(some).logits).abs().max() / unmerged.abs().max())
    rng, distance = random.Random(seed), -math.inf
    while distance < NEAR_TIE:
        prompt = [rng.randrange(config.vocab_size) for _ in range(LENGTH)]
        logits, tokens, distance = greedy(merged, prompt, STEPS)
    plain = greedy(make() if make else load(FIXTURES / base), prompt, STEPS)
    moved = np.abs(plain[0][: LENGTH] - logits[: LENGTH]).max() / np.abs(logits).max()
    assert moved > 0.05, f"{name}: the adapter moves logits by {moved}"
    write_golden(
        folder / "golden.json", [{"logits": logits}], [{"prompt_tokens": prompt, "tokens": tokens, "min_gap": distance, "full": True}],
        name=f"lora/{name}", base=base, seed=seed, storage="f32", vocab_size=config.vocab_size, chunk=CHUNK, context=CONTEXT,
    )
    print(f"{name}: logits moved by {moved:.2f}, {len(set(tokens) - set(plain[1]))} new tokens of {STEPS}, gap {distance:.1e}, merging moves {same:.1e}", flush=True)


if __name__ == "__main__":
    for index, (name, case) in enumerate(CASES.items()):
        if not sys.argv[1:] or name in sys.argv[1:]:
            write_adapter(name, seed=700 + index, **case)
