"""Convert fixtures of `tests/fixtures` to GGUF files with llama.cpp's own converter, and store llama.cpp's logits for these files:
`python gguf_families.py [NAME …]`, where NAME is a key of `FILES`. Without arguments, the script writes all files.

Needs the packages of `gguf.txt` and of `requirements.txt`. The converter is in the source package of llama-cpp-python:
`pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36`. PYTHONPATH must contain its folders `vendor/llama.cpp` and
`vendor/llama.cpp/gguf-py`."""

import json
import re
import sys
import tempfile
from functools import reduce
from pathlib import Path

import gguf
import gguf_goldens
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from conversion import ModelType, get_model_architecture, get_model_class
from conversion.base import ModelBase
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from transformers import AutoConfig, AutoModelForCausalLM

from golden import REFERENCE, load

FIXTURES = Path(__file__).parents[1] / "fixtures"
# By the name of the GGUF file: the fixture, the keys of its `config.json` that become others because llama.cpp does not support
# them, and the layers that remain.
# llama.cpp has one extent for keys and values, and uses the epsilon of norms for the lengths of queries and keys.
DELTA = {"linear_key_head_dim": 6, "linear_value_head_dim": 6, "rms_norm_eps": 1e-6}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0]}
FILES = {
    "qwen3moe": ("qwen3_moe", {"mlp_only_layers": []}, [0, 2]),
    "gpt-oss": ("gpt_oss-mxfp4", {}, None),
    "deepseek2": ("deepseek_v3", {"rope_scaling.mscale": 0.7, "scoring_func": "sigmoid"}, None),
    "deepseek2-glm": ("deepseek_v3", {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "n_group": 1, "topk_group": 1, "rope_scaling": None, "scoring_func": "sigmoid"}, None),
    "glm4moe": ("glm4_moe", {"n_group": 1, "topk_group": 1}, None),
    "ernie4_5": ("ernie4_5", {"use_bias": False}, None),
    "ernie4_5-moe": ("ernie4_5_moe", {}, None),
    "lfm2moe": ("lfm2_moe", {"routed_scaling_factor": 1.0}, None),
    "granitehybrid": ("granitemoehybrid", {"num_experts_per_tok": 0, "intermediate_size": 50, "layer_types": ["mamba", "attention", "mamba", "mamba"]}, None),
    "granitehybrid-experts": ("granitemoehybrid-stacked", {"layer_types": ["mamba", "attention", "mamba"], "position_embedding_type": None, "mamba_proj_bias": False, "mamba_conv_bias": True}, None),
    "nemotron_h_moe": ("nemotron_h", {"mamba_d_head": 14, "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention"]}, [0, 1, 2, 4]),
    "gemma4": ("gemma4-tower", {"text_config.layer_types": ["sliding_attention", "full_attention"] * 2}, [0, 1, 4, 5]),
    "gemma4-experts": ("gemma4-stacked", {}, None),
    "minimax-m2": ("minimax_m2", {}, None),
    "qwen3next": ("qwen3-next", DELTA, None),
    "qwen35": ("qwen3_5", DELTA | {"rope_scaling": SECTIONS}, None),
    "qwen35moe": ("qwen3_5-moe", DELTA | {"rope_parameters": SECTIONS}, None),
}
# How far llama.cpp and transformers may differ, where that is more than 2e-5. llama.cpp takes GELU from a table of f16, and rounds the
# range of YaRN's frequencies, which transformers does not for a gpt-oss. The logits in these fixtures are those of transformers.
NEAR = {"gpt-oss": 1e-2, "gemma4": 1e-2, "gemma4-experts": 3e-2}
# Metadata that the converter computes from other keys of published models.
METADATA = {"ernie4_5-moe.expert_shared_feed_forward_length": 28}


def without_tokenizer(model):
    """Fixtures have no tokenizer."""
    model.gguf_writer.add_tokenizer_model("none")
    model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


class Writer(gguf.GGUFWriter):
    """Some classes of the converter write the size of the vocabulary, which `without_tokenizer` writes too."""

    def add_vocab_size(self, size):
        if not any(f"{self.arch}.vocab_size" in shard for shard in self.kv_data):
            super().add_vocab_size(size)

    def add_key_value(self, key, value, kind, of=None):
        super().add_key_value(key, METADATA.get(key, value), kind, of)


def convert(folder, out):
    """Store matrices in the checkpoint's type, which is exact, and all other tensors as F32."""
    keys = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(keys, ModelType.TEXT))
    kind.set_vocab, kind.no_mtp = without_tokenizer, True
    gguf.GGUFWriter = Writer
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.GUESSED, out).write()


def changed(folder, keys, layers, out):
    """Write a fixture with other `keys`, and only some of its layers. Weights whose shape changes become random."""
    config = json.loads((folder / "config.json").read_text())
    for key, value in keys.items():
        *within, key = key.split(".")
        reduce(dict.__getitem__, within, config)[key] = value
    text = config.get("text_config", config)
    if layers and "num_hidden_layers" in text:
        text["num_hidden_layers"] = len(layers)
    (out / "config.json").write_text(json.dumps(config))
    # A Gemma 4 has as many rows in its embedding table as its tokenizer has tokens.
    vocabulary = text["vocab_size"]
    tokens = {f"{token}": token for token in range(vocabulary)}
    (out / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    # The converter changes norms in the type of the checkpoint, except in bf16.
    tensors = {name: tensor.bfloat16() if tensor.dtype == torch.float16 else tensor for name, tensor in load_torch(folder / "model.safetensors").items()}
    tensors = {name: tensors[old] for old in tensors if (name := renumbered(old, layers)) and not name.startswith("mtp.")}
    torch.manual_seed(3)
    found = shapes(out)
    for name, shape in found.items():
        tensor = tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            tensors[name] = (tensor.float().mean() + tensor.float().std() * torch.randn(shape)).to(tensor.dtype)
        if name.endswith("mamba.conv1d.bias") and tensor is None:
            tensors[name] = 0.2 * torch.randn(shape)
    unread = [name for name in tensors if name.endswith(("_proj.bias", ".v_norm.weight")) and name not in found]
    save_torch({name: tensor.contiguous() for name, tensor in tensors.items() if name not in unread}, out / "model.safetensors")
    return vocabulary


def shapes(folder):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    found = {name: tensor.shape for name, tensor in model.state_dict().items()}
    return found | {name.replace("model.", "backbone.", 1): shape for name, shape in found.items() if "mixer" in name}


def renumbered(name, layers):
    found = re.search(r"\blayers\.(\d+)\.", name)
    if not found or not layers:
        return name
    layer = int(found[1])
    return name.replace(found[0], f"layers.{layers.index(layer)}.") if layer in layers else None


def plain(path, out):
    """Write a GGUF file again with F32 weights. llama.cpp rounds no activations for these."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, of = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), kind, of)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    gguf_goldens.finish(writer)


def transformers_logits(folder, tokens):
    with torch.inference_mode():
        return load(folder)(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def write(name, seed):
    fixture, keys, layers = FILES[name]
    out = gguf_goldens.OUT / f"{name}.gguf"
    with tempfile.TemporaryDirectory() as temporary:
        # The name of this folder becomes a part of the file.
        temporary = Path(temporary) / name
        temporary.mkdir()
        vocabulary = changed(FIXTURES / fixture, keys, layers, temporary)
        convert(temporary, out)
        plain(out, temporary / "plain.gguf")
        llm = gguf_goldens.model(temporary / "plain.gguf")
        tokens, rows = gguf_goldens.golden(name, seed, vocabulary, T.MXFP4 if name == "gpt-oss" else T.F32, llm, out)
        theirs = transformers_logits(temporary, tokens)
    error = np.abs(rows - theirs).max(1) / np.abs(theirs).max(1)
    print(f"{name}: llama.cpp and transformers differ by {error.max():.1e}", flush=True)
    assert error.max() < NEAR.get(name, 2e-5)
    if name in NEAR:
        path = gguf_goldens.OUT / f"{name}.json"
        golden = json.loads(path.read_text())
        assert golden["prompts"][0]["tokens"] == [int(row.argmax()) for row in theirs[gguf_goldens.PROMPT - 1 :]]
        path.write_text(json.dumps(golden | {"reference": REFERENCE}, indent=1) + "\n")
        path = path.with_suffix(".safetensors")
        save_file(load_file(path) | {"prompts.0.logits": theirs}, path)


if __name__ == "__main__":
    for seed, name in enumerate(FILES, start=101):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            write(name, seed)
