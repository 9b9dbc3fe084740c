"""The network of src/main.rs in NumPy, in float64: the logits at all positions of a text.

    python reference.py model reference.safetensors
"""

import json
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

folder, out = sys.argv[1:]
with open(f"{folder}/config.json") as file:
    config = json.load(file)
weights = {key: w.astype(np.float64) for key, w in load_file(f"{folder}/model.safetensors").items()}


def linear(x, name):
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


def norm(x, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["epsilon"])
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def rope(x):  # [heads, positions, features]: feature i turns with feature i + half
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * config["rope_base"] ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attention(x, name):
    heads = lambda part: linear(x, f"{name}.{part}").reshape(len(x), config["heads"], -1).swapaxes(0, 1)
    q, k, v = rope(heads("query")), rope(heads("key")), heads("value")
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return linear((scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape), f"{name}.out")


def mlp(x, name):
    x = linear(x, f"{name}.up")
    return linear(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), f"{name}.down")


tokens = np.arange(40) * 17 % config["vocabulary"]
x = weights["tokens.weight"][tokens]
for i in range(config["depth"]):
    normed = norm(x, f"blocks.{i}.norm")
    x = x + attention(normed, f"blocks.{i}.attention") + mlp(normed, f"blocks.{i}.mlp")
logits = linear(norm(x, "norm"), "head")
save_file({"tokens": tokens.astype(np.int32), "logits": logits.astype(np.float32)}, out)
