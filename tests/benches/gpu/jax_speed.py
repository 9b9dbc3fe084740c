"""The speed of a Llama written by hand in jax, with the same weights: what XLA reaches without Tracewright.

    jax_speed.py MODEL
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from common import medians, model, report, say, sizes, speeds


def read(folder: Path) -> dict[str, jax.Array]:
    """The weights of a checkpoint in bf16, on the device."""
    with open(folder / "model.safetensors", "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    weights = {}
    for key, tensor in header.items():
        if key != "__metadata__":
            start, end = tensor["data_offsets"]
            at = 8 + length + start
            numbers = np.fromfile(folder / "model.safetensors", ml_dtypes.bfloat16, (end - start) // 2, offset=at)
            weights[key] = jax.device_put(numbers.reshape(tensor["shape"]))
    return jax.block_until_ready(weights)


def norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)).astype(x.dtype) * weight


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def forward(config: Any, weights: Any, tokens: jax.Array, start: jax.Array, caches: Any) -> tuple[jax.Array, Any]:
    """The most likely next token of each sequence, and the caches, `[B, K, N, E]` each."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    batch, length = tokens.shape
    x = weights["model.embed_tokens.weight"][tokens]
    positions = start + jnp.arange(length)
    angles = positions[:, None] * config["rope_theta"] ** (-jnp.arange(0, size, 2) / size)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    kept = []
    for layer, (keys, values) in enumerate(caches):
        of = lambda name: weights[f"model.layers.{layer}.{name}.weight"]  # noqa: E731, B023
        h = norm(x, of("input_layernorm"), config["rms_norm_eps"])
        q, k, v = (
            (h @ of(f"self_attn.{name}_proj").T).reshape(batch, length, count, size).swapaxes(1, 2)
            for name, count in (("q", heads), ("k", kv), ("v", kv))
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys = jax.lax.dynamic_update_slice(keys, k, (0, 0, start, 0))
        values = jax.lax.dynamic_update_slice(values, v, (0, 0, start, 0))
        q = q.reshape(batch, kv, heads // kv, length, size)
        scores = jnp.einsum("bkgse,bkne->bkgsn", q, keys, preferred_element_type=jnp.float32) / size**0.5
        seen = jnp.arange(keys.shape[2])[None, :] <= positions[:, None]
        shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1).astype(x.dtype)
        attended = jnp.einsum("bkgsn,bkne->bskge", shares, values).reshape(batch, length, heads * size)
        x = x + attended @ of("self_attn.o_proj").T
        h = norm(x, of("post_attention_layernorm"), config["rms_norm_eps"])
        x = x + (jax.nn.silu(h @ of("mlp.gate_proj").T) * (h @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
        kept.append((keys, values))
    x = norm(x[:, -1], weights["model.norm.weight"], config["rms_norm_eps"])
    head = weights["model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"]
    logits = jnp.einsum("bd,vd->bv", x, head, preferred_element_type=jnp.float32)
    return logits.argmax(-1).astype(jnp.int32)[:, None], kept


def main() -> None:
    name, size = sys.argv[1], sizes()
    folder = model(name)
    config = json.loads((folder / "config.json").read_text())
    weights = read(folder)
    say("loaded")
    step = jax.jit(partial(forward, config), donate_argnums=3)

    @partial(jax.jit, donate_argnums=3)
    def loop(weights: Any, token: jax.Array, start: jax.Array, caches: Any) -> tuple[jax.Array, Any]:
        def body(at: jax.Array, carried: Any) -> Any:
            return forward(config, weights, carried[0], start + at, carried[1])

        return jax.lax.fori_loop(0, size.steps, body, (token, caches))

    for batch in size.batches:
        about = {"model": name, "batch": batch, "engine": "jax, by hand"}
        shape = (batch, config["num_key_value_heads"], size.context,
                 config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])  # fmt: skip
        caches = [tuple(jnp.zeros(shape, jnp.bfloat16) for _ in range(2)) for _ in range(config["num_hidden_layers"])]
        prompt = jnp.asarray(np.random.default_rng(0).integers(0, config["vocab_size"], (batch, size.prompt), np.int32))
        zero, starts = jnp.int32(0), [jnp.int32(size.prompt + at) for at in range(size.steps)]
        begun = time.perf_counter()
        token, caches = jax.block_until_ready(step(weights, prompt, zero, caches))
        first = time.perf_counter() - begun

        def prefill() -> None:
            nonlocal token, caches
            for _ in range(4):
                token, caches = step(weights, prompt, zero, caches)
            jax.block_until_ready(caches)

        def decode() -> None:
            nonlocal token, caches
            for start in starts:
                token, caches = step(weights, token, start, caches)
            jax.block_until_ready(caches)

        def looping() -> None:
            nonlocal token, caches
            token, caches = jax.block_until_ready(loop(weights, token, starts[0], caches))

        prefill_s = medians(prefill, size.runs) / 4
        begun = time.perf_counter()
        decode()
        second = time.perf_counter() - begun
        decode_s = medians(decode, size.runs) / size.steps
        say(f"batch {batch}: {decode_s * 1e3:.3f} ms a step, {prefill_s * 1e3:.2f} ms a prompt")
        compile_s = {"prefill": round(first, 2), "decode": round(second - decode_s * size.steps, 2)}
        stats = jax.devices()[0].memory_stats() or {}
        report(speed={**about, "way": "calls", "compile_s": compile_s, "peak_bytes": stats.get("peak_bytes_in_use"),
                      **speeds(name, batch, decode_s, prefill_s)})  # fmt: skip
        begun = time.perf_counter()
        looping()
        first = time.perf_counter() - begun
        loop_s = medians(looping, size.runs) / size.steps
        say(f"batch {batch}: {loop_s * 1e3:.3f} ms a token in a loop")
        report(speed={**about, "way": "loop", "compile_s": {"decode": round(first - loop_s * size.steps, 2)},
                      **speeds(name, batch, loop_s, None)})  # fmt: skip


if __name__ == "__main__":
    main()
