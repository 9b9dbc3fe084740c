"""Rotary embeddings of every kind, as transformers reads, computes and applies them."""

import json

import torch
from safetensors.torch import save_file
from transformers import Gemma3TextConfig, GlmConfig, LlamaConfig, Phi3Config
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.glm import modeling_glm as glm
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi3 import modeling_phi3 as phi3

from golden import REFERENCE

POSITIONS = [0, 1, 2000, 2048, 32000, 32768, 128000, 131071]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def longrope(pairs, **rest):
    return {"rope_type": "longrope", "short_factor": [1.0 + 0.03 * i for i in range(pairs)], "long_factor": [1.0 + 1.7 * i for i in range(pairs)], **rest}


# Name, embedding, configuration, and what config.json says. A dynamic embedding is of the context that it is asked for.
CASES = [
    ("default", llama, LlamaConfig, {"head_dim": 64}, {}),
    ("default_theta", llama, LlamaConfig, {"head_dim": 128}, {"rope_theta": 500000.0}),
    ("default_odd_half", llama, LlamaConfig, {"head_dim": 14}, {}),
    ("linear", llama, LlamaConfig, {"head_dim": 64}, {"rope_type": "linear", "factor": 8.0}),
    ("linear_uneven", llama, LlamaConfig, {"head_dim": 14}, {"rope_type": "linear", "factor": 2.3, "rope_theta": 1e6}),
    ("dynamic_long", llama, LlamaConfig, {"head_dim": 64, "max_position_embeddings": 2048}, {"rope_type": "dynamic", "factor": 2.0}),
    ("dynamic_uneven", llama, LlamaConfig, {"head_dim": 14, "max_position_embeddings": 3000}, {"rope_type": "dynamic", "factor": 2.3, "rope_theta": 500000.0}),
    ("dynamic_short", llama, LlamaConfig, {"head_dim": 64, "max_position_embeddings": 2048, "context": 2001}, {"rope_type": "dynamic", "factor": 2.0}),
    ("llama3", llama, LlamaConfig, {"head_dim": 128}, {**LLAMA3, "rope_theta": 500000.0}),
    ("llama3_small", llama, LlamaConfig, {"head_dim": 14}, {**LLAMA3, "factor": 4.0, "original_max_position_embeddings": 16}),
    ("yarn", llama, LlamaConfig, {"head_dim": 128}, {**YARN, "rope_theta": 1e6}),
    ("yarn_small", llama, LlamaConfig, {"head_dim": 14}, {**YARN, "factor": 3.7, "original_max_position_embeddings": 100}),
    ("yarn_betas", llama, LlamaConfig, {"head_dim": 64}, {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25}),
    ("yarn_untruncated", llama, LlamaConfig, {"head_dim": 64}, {**YARN, "truncate": False}),
    ("yarn_mscale", llama, LlamaConfig, {"head_dim": 64}, {**YARN, "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.707}),
    ("yarn_factor_derived", llama, LlamaConfig, {"head_dim": 64}, {**YARN, "factor": None}),
    ("longrope_long", phi3, Phi3Config, {"head_dim": 96, "original_max_position_embeddings": 4096}, longrope(48)),
    ("longrope_short", phi3, Phi3Config, {"head_dim": 96, "original_max_position_embeddings": 4096, "context": 2049}, longrope(48)),
    ("longrope_partial", phi3, Phi3Config, {"head_dim": 32, "original_max_position_embeddings": 4096}, longrope(12, partial_rotary_factor=0.75)),
    ("longrope_factors", llama, LlamaConfig, {"head_dim": 14}, longrope(7, factor=5.0, original_max_position_embeddings=1000)),
    ("longrope_attention", llama, LlamaConfig, {"head_dim": 14}, longrope(7, factor=5.0, attention_factor=1.5, original_max_position_embeddings=1000)),
    ("proportional", llama, LlamaConfig, {"head_dim": 512}, {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}),
    ("proportional_uneven", llama, LlamaConfig, {"head_dim": 14}, {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 4.0}),
    ("partial_half", glm, GlmConfig, {"head_dim": 64}, {"partial_rotary_factor": 0.5}),
    ("partial_rounded_up", phi3, Phi3Config, {"head_dim": 20}, {"partial_rotary_factor": 0.25}),
    ("partial_linear", glm, GlmConfig, {"head_dim": 20}, {"partial_rotary_factor": 0.4, "rope_type": "linear", "factor": 2.0}),
]
EMBEDDING = {llama: "LlamaRotaryEmbedding", phi3: "Phi3RotaryEmbedding", glm: "GlmRotaryEmbedding"}


class Cases:
    def __init__(self):
        self.cases, self.tensors, self.noise = [], {}, torch.Generator().manual_seed(11)

    def add(self, name, case, **tensors):
        assert all(c["name"] != name for c in self.cases), name
        self.cases.append({"name": name, **case})
        self.tensors |= {f"{name}.{key}": value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}


def table(cases, name, config, features, context, embed, inv_freq, **rest):
    """`embed` gives cosine and sine of positions; HF writes each table twice, side by side."""
    positions = [p for p in POSITIONS if p < context]
    # The last position tells a dynamic embedding how long the sequence is.
    cos, sin = (x[0] for x in embed(torch.tensor([positions + [context - 1]])))
    half = cos.shape[1] // 2
    assert torch.equal(cos[:, :half], cos[:, half:]) and torch.equal(sin[:, :half], sin[:, half:])
    case = {"config": config, "features": features, "context": context, "positions": positions, **rest}
    cases.add(name, case, inv_freq=inv_freq(), cos=cos[: len(positions), :half], sin=sin[: len(positions), :half])


def all_tables(cases):
    for name, module, Config, keys, parameters in CASES:
        keys = {"max_position_embeddings": 131072, **keys}
        context = keys.pop("context", 131072)
        parameters = {"rope_type": "default", "rope_theta": 10000.0, **parameters}
        config = Config(hidden_size=2 * keys["head_dim"], num_attention_heads=2, num_key_value_heads=2, **{**keys, "rope_parameters": dict(parameters)})
        embedding = getattr(module, EMBEDDING[module])(config)
        table(cases, name, {**keys, "rope_parameters": parameters}, keys["head_dim"], context, lambda p: embedding(torch.zeros(1), p), lambda: embedding.inv_freq, scaling=embedding.attention_scaling)


def all_layer_types(cases):
    """Gemma 3: a base for each type of layer, in the old and the new spelling."""
    old = {"head_dim": 32, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_local_base_freq": 20000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = {"head_dim": 32, "max_position_embeddings": 131072, "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}, "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0}}}
    silent = {"head_dim": 32, "max_position_embeddings": 131072}
    for spelling, keys in (("old", old), ("new", new), ("silent", silent)):
        config = Gemma3TextConfig(**json.loads(json.dumps(keys)))
        embedding = Gemma3RotaryEmbedding(config)
        for kind in ("sliding_attention", "full_attention"):
            table(cases, f"layers_{spelling}_{kind}", keys, 32, 131072, lambda p: embedding(torch.zeros(1), p, kind), lambda: getattr(embedding, f"{kind}_inv_freq"), scaling=getattr(embedding, f"{kind}_attention_scaling"), layer_type=kind)


def all_rotations(cases):
    """Queries [H, S, E] rotated by tables [S, R/2], each pair its way."""
    for name, module, layout, features, rotated in [
        ("rotate_half_split", llama, "half_split", 14, 14), ("rotate_half_split_partial", phi3, "half_split", 14, 6),
        ("rotate_interleaved", cohere, "interleaved", 14, 14), ("rotate_interleaved_partial", glm, "interleaved", 14, 6),
    ]:
        x = torch.randn(1, 3, 5, features, generator=cases.noise)
        angles = torch.randn(1, 5, rotated // 2, generator=cases.noise) * 3
        twice = torch.repeat_interleave(angles, 2, -1) if module is cohere else torch.cat((angles, angles), -1)
        out, _ = module.apply_rotary_pos_emb(x, x, twice.cos(), twice.sin())
        cases.add(name, {"layout": layout}, x=x[0], cos=angles.cos()[0], sin=angles.sin()[0], out=out[0])


def write(out):
    cases = Cases()
    for part in (all_tables, all_layer_types, all_rotations):
        part(cases)
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(case) for case in cases.cases)
    (out / "cases.json").write_text(f'{{"reference": {json.dumps(REFERENCE.split(", float32")[0])}, "cases": [\n{lines}\n]}}\n')
    save_file(cases.tensors, out / "cases.safetensors")
    print(f"rope: {len(cases.cases)} cases, {sum(f.stat().st_size for f in out.iterdir()) / 1e3:.0f} kB")
