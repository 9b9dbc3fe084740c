"""Answers for single ops, from HF's own modules and, in f32, from the definition in f64 rounded once."""

import itertools
import json
import math
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.masking_utils import and_masks, causal_mask_function, chunked_overlay, or_masks, padding_mask_function, sliding_window_overlay
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, eager_attention_forward
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_chunk_scan, mamba2_selective_state_update
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule

from golden import REFERENCE

F32, BF16 = torch.float32, torch.bfloat16
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class Cases:
    def __init__(self):
        self.cases, self.tensors, self.noise = [], {}, torch.Generator().manual_seed(7)

    def random(self, *shape, dtype=F32, scale=1.0):
        return (torch.randn(shape, generator=self.noise) * scale).to(dtype)

    def add(self, name, op, attributes, inputs, outputs):
        assert all(c["name"] != name for c in self.cases), name
        self.cases.append({"name": name, "op": op, "attributes": attributes, "inputs": list(inputs), "outputs": list(outputs)})
        self.tensors |= {f"{name}.{key}": value.clone(memory_format=torch.contiguous_format) for key, value in (inputs | outputs).items()}


def once_rounded(name, exact, hf):
    """The f64 answer as f32, after a check that HF's f32 module says the same up to its own rounding."""
    torch.testing.assert_close(hf.double(), exact, rtol=2e-5, atol=2e-5, msg=lambda text: f"{name}: {text}")
    return exact.to(F32)


def visible(s, t, offset, window):
    """Which keys a query sees: none after it and, in a window of W, none W or more before it."""
    i, j = torch.arange(s)[:, None] + offset, torch.arange(t)[None, :]
    return (j <= i) & (j > i - window) if window else j <= i


def sdpa(cases, name, q, kv, *, mask="none", offset=0, window=None, scale=None, softcap=None, mask_shape=None, hole=None, dtype=F32, size=1.0):
    """`q` is [B, Hq, S, E] and `kv` [Hk, T, E']; an explicit mask is random with `hole` punched into a third of it."""
    (b, heads, s, e), (kv_heads, t, out) = q, kv
    q, k, v = cases.random(b, heads, s, e, dtype=dtype, scale=size), cases.random(b, kv_heads, t, e, dtype=dtype, scale=size), cases.random(b, kv_heads, t, out, dtype=dtype)
    inputs, bias = {"q": q, "k": k, "v": v}, torch.zeros(s, t)
    if mask == "explicit":
        bias = cases.random(*mask_shape)
        if hole is not None:
            punched = torch.rand(mask_shape, generator=cases.noise) < 0.33
            punched[..., 0] = False
            bias = bias.masked_fill(punched, hole)
        bias = bias.to(dtype)
        inputs["mask"] = bias
    elif mask != "none":
        bias = torch.zeros(s, t).masked_fill(~visible(s, t, offset, window), -math.inf)
    factor = 1 / math.sqrt(e) if scale is None else scale
    module = SimpleNamespace(num_key_value_groups=heads // kv_heads, training=False, head_dim=e)
    answer = eager_attention_forward(module, q, k, v, bias.to(dtype), scaling=factor, softcap=softcap)[0].transpose(1, 2)
    if dtype == F32:
        k64, v64 = (x.double().repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
        scores = q.double() @ k64.mT * factor
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        answer = once_rounded(name, torch.softmax(scores + bias.double(), -1) @ v64, answer)
    attributes = {"mask": mask, "offset": offset, "window": window, "scale": scale, "softcap": softcap}
    cases.add(name, "sdpa", attributes, inputs, {"out": answer})


def all_sdpa(cases):
    add = lambda name, q, kv, **rest: sdpa(cases, name, q, kv, **rest)
    add("sdpa_s10", (1, 1, 2, 4), (1, 2, 4), scale=0.5)
    add("sdpa_s10_masked", (1, 1, 2, 4), (1, 2, 4), scale=0.5, mask="causal")
    add("sdpa_default_scale", (2, 3, 4, 5), (3, 7, 5))
    add("sdpa_value_width", (2, 3, 4, 5), (3, 7, 6))
    add("sdpa_grouped", (2, 6, 3, 4), (2, 5, 4))
    add("sdpa_multi_query", (2, 5, 3, 4), (1, 7, 4))
    add("sdpa_causal", (2, 3, 7, 4), (3, 7, 4), mask="causal")
    add("sdpa_causal_grouped", (1, 6, 5, 4), (2, 5, 4), mask="causal")
    add("sdpa_causal_offset", (2, 4, 3, 6), (2, 11, 6), mask="causal", offset=5)
    add("sdpa_causal_decode", (1, 4, 1, 8), (2, 13, 8), mask="causal", offset=9)
    add("sdpa_sliding", (1, 2, 13, 4), (2, 13, 4), mask="sliding", window=4)
    add("sdpa_sliding_one", (1, 2, 6, 4), (1, 6, 4), mask="sliding", window=1)
    add("sdpa_sliding_offset", (2, 4, 5, 6), (2, 17, 6), mask="sliding", window=6, offset=11)
    add("sdpa_sliding_decode", (1, 4, 1, 8), (1, 19, 8), mask="sliding", window=5, offset=17)
    add("sdpa_sliding_wide", (1, 2, 5, 4), (2, 5, 4), mask="sliding", window=9)
    add("sdpa_mask_rank2", (2, 3, 4, 5), (3, 7, 5), mask="explicit", mask_shape=(4, 7))
    add("sdpa_mask_rank2_row", (2, 3, 4, 5), (3, 7, 5), mask="explicit", mask_shape=(1, 7), hole=-math.inf)
    add("sdpa_mask_rank3", (2, 6, 4, 5), (3, 7, 5), mask="explicit", mask_shape=(6, 4, 7), hole=-math.inf)
    add("sdpa_mask_rank4", (2, 6, 4, 5), (2, 7, 5), mask="explicit", mask_shape=(2, 6, 4, 7), hole=-1e9)
    add("sdpa_mask_rank4_batch", (2, 6, 4, 5), (2, 7, 5), mask="explicit", mask_shape=(2, 1, 1, 7), hole=-math.inf)
    add("sdpa_softcap", (1, 4, 5, 6), (2, 5, 6), mask="causal", softcap=2.5, scale=0.7, size=2.0)
    add("sdpa_softcap_sliding", (1, 4, 9, 6), (2, 9, 6), mask="sliding", window=3, softcap=5.0, size=2.0)
    add("sdpa_large_scores", (1, 2, 5, 4), (2, 5, 4), mask="causal", scale=30.0)
    add("sdpa_bf16", (1, 6, 7, 8), (2, 7, 8), mask="causal", dtype=BF16)
    add("sdpa_bf16_mask", (2, 4, 3, 8), (2, 9, 8), mask="explicit", mask_shape=(3, 9), dtype=BF16, scale=0.25)
    add("sdpa_bf16_softcap", (1, 4, 9, 6), (2, 9, 6), mask="sliding", window=4, softcap=3.0, dtype=BF16, size=2.0)


def all_rms_norm(cases):
    shapes, scales = [(2, 3, 20), (7, 33), (1, 64)], [1.0, 1e-3, 50.0]
    for style, dtype, ((shape, size), eps) in itertools.product(("llama", "gemma"), (F32, BF16), zip(zip(shapes, scales), (1e-5, 1e-6, 1e-5))):
        x, weight = cases.random(*shape, dtype=dtype, scale=size), cases.random(shape[-1], dtype=dtype, scale=0.5)
        weight = weight + 1 if style == "llama" else weight
        module = (LlamaRMSNorm if style == "llama" else Gemma3RMSNorm)(shape[-1], eps=eps).to(dtype)
        module.weight.data = weight
        name = f"rms_norm_{style}_{'f32' if dtype == F32 else 'bf16'}_{'x'.join(map(str, shape))}"
        answer = module(x).detach()
        if dtype == F32:
            x64 = x.double()
            factor = weight.double() + (style == "gemma")
            answer = once_rounded(name, x64 / torch.sqrt(x64.pow(2).mean(-1, keepdim=True) + eps) * factor, answer)
        cases.add(name, "rms_norm", {"eps": eps, "style": style}, {"x": x, "weight": weight}, {"out": answer})


def rotary(head_dim, theta, scaling):
    config = LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": theta, **(scaling or {})},
    )
    return LlamaRotaryEmbedding(config)


def all_rope(cases):
    positions = [0, 1, 2000, 8000, 32768, 131071]
    for name, head_dim, theta, scaling in [
        ("rope_table_default", 64, 10000.0, None), ("rope_table_odd", 14, 10000.0, None), ("rope_table_theta", 128, 500000.0, None),
        ("rope_table_llama3", 64, 500000.0, {**LLAMA3, "factor": 32.0}), ("rope_table_llama3_128", 128, 500000.0, LLAMA3),
        ("rope_table_small", 14, 10000.0, {**LLAMA3, "factor": 4.0, "original_max_position_embeddings": 16}),
    ]:
        module = rotary(head_dim, theta, scaling)
        cos, sin = module(torch.zeros(1), torch.tensor([positions]))
        cases.add(name, "rope_table", {"head_dim": head_dim, "theta": theta, "scaling": scaling, "positions": positions}, {}, {"inv_freq": module.inv_freq, "cos": cos[0], "sin": sin[0]})
    for name, shape, kv_heads, start, dtype in [
        ("rope_start", (2, 3, 5, 8), 3, 0, F32), ("rope_offset", (1, 6, 4, 14), 2, 37, F32), ("rope_far", (1, 4, 2, 64), 1, 8000, F32), ("rope_bf16", (1, 4, 5, 16), 2, 11, BF16),
    ]:
        b, heads, s, e = shape
        at = list(range(start, start + s))
        q, k = cases.random(*shape, dtype=dtype), cases.random(b, kv_heads, s, e, dtype=dtype)
        cos, sin = rotary(e, 10000.0, None)(q, torch.tensor([at]))
        outputs = dict(zip(("q_out", "k_out"), apply_rotary_pos_emb(q, k, cos, sin)))
        if dtype == F32:
            exact = apply_rotary_pos_emb(q.double(), k.double(), cos.double(), sin.double())
            outputs = {key: once_rounded(name, x, hf) for (key, hf), x in zip(outputs.items(), exact)}
        cases.add(name, "rope", {"positions": at}, {"q": q, "k": k, "cos": cos[0], "sin": sin[0]}, outputs)


def all_elementwise(cases):
    functions = {
        "silu": torch.nn.functional.silu, "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "softmax": lambda x: torch.softmax(x, -1),
    }
    wide = torch.cat([torch.linspace(-12, 12, 97), torch.tensor([0.0, -0.0, 88.0, -88.0, 1e-30, -1e-30, 3e4, -3e4])]).reshape(3, 35)
    for (op, function), dtype in itertools.product(functions.items(), (F32, BF16)):
        for name, x in (("wide", wide.to(dtype)), ("random", cases.random(4, 5, 7, dtype=dtype, scale=2.0))):
            name = f"{op}_{'f32' if dtype == F32 else 'bf16'}_{name}"
            # HF takes every softmax in f32 and rounds the result.
            answer = function(x.float()).to(dtype) if op == "softmax" else function(x)
            answer = once_rounded(name, function(x.double()), answer) if dtype == F32 else answer
            cases.add(name, op, {"axis": x.ndim - 1} if op == "softmax" else {}, {"x": x}, {"out": answer})


def masked(cases, name, terms, shape, *, offset=0, padding=None, prefix=None):
    """`shape` is B, heads, S, T, E; `terms` are ours, and what they let a query see is what transformers' masks say."""
    b, heads, s, t, e = shape
    lengths = {"padding": padding, "prefix": prefix}
    inputs = {"q": cases.random(b, heads, s, e), "k": cases.random(b, heads, t, e), "v": cases.random(b, heads, t, e)}
    inputs |= {key: torch.tensor(value, dtype=torch.int32) for key, value in lengths.items() if value is not None}
    left = torch.tensor(padding or [0] * b)
    functions = []
    for term in terms:
        word, _, size = term.rstrip(")").partition("(")
        functions.append({
            "causal": lambda: causal_mask_function,
            "window": lambda: sliding_window_overlay(int(size)),
            "chunk": lambda: chunked_overlay(int(size), left),
            "padding": lambda: padding_mask_function(torch.arange(t)[None, :] >= left[:, None]),
            "prefix": lambda: or_masks(causal_mask_function, lambda batch, _, query, key: key < prefix[batch]),
        }[word]())
    sees = and_masks(*functions)
    index = lambda axis, extent, start=0: (torch.arange(extent) + start).reshape([-1 if i == axis else 1 for i in range(4)])
    visible = torch.zeros(b, 1, s, t, dtype=torch.bool)
    for batch in range(b):
        found = sees(batch, 0, index(2, s, offset), index(3, t))
        visible[batch] = torch.as_tensor(found).expand(1, 1, s, t)[0]
    bias = torch.zeros(b, 1, s, t).masked_fill(~visible, torch.finfo(F32).min)
    module = SimpleNamespace(num_key_value_groups=1, training=False, head_dim=e)
    answer = eager_attention_forward(module, inputs["q"], inputs["k"], inputs["v"], bias, scaling=1 / math.sqrt(e))[0].transpose(1, 2)
    scores = inputs["q"].double() @ inputs["k"].double().mT / math.sqrt(e)
    # A query before its sequence sees nothing: then every key counts alike.
    scores = torch.where(visible.any(-1, keepdim=True), scores.masked_fill(~visible, -math.inf), 0)
    answer = once_rounded(name, torch.softmax(scores, -1) @ inputs["v"].double(), answer)
    cases.add(name, "masked", {"terms": terms, "offset": offset}, inputs, {"out": answer})


def all_masks(cases):
    add = lambda name, terms, shape, **rest: masked(cases, name, terms, shape, **rest)
    add("mask_causal", ["causal"], (2, 3, 5, 9, 4), offset=4)
    add("mask_window", ["causal", "window(4)"], (2, 3, 17, 17, 4))
    add("mask_chunk", ["causal", "chunk(4)"], (2, 3, 17, 17, 4))
    add("mask_chunk_offset", ["causal", "chunk(5)"], (1, 2, 6, 19, 4), offset=13)
    add("mask_padding", ["causal", "padding"], (3, 2, 5, 13, 4), offset=8, padding=[0, 3, 7])
    add("mask_padding_window", ["causal", "padding", "window(4)"], (3, 2, 13, 13, 4), padding=[0, 3, 7])
    add("mask_padding_chunk", ["causal", "padding", "chunk(4)"], (3, 2, 13, 13, 4), padding=[0, 3, 7])
    add("mask_prefix", ["prefix"], (3, 2, 9, 9, 4), prefix=[4, 1, 7])
    add("mask_prefix_offset", ["prefix"], (2, 2, 4, 11, 4), offset=3, prefix=[6, 2])
    add("mask_prefix_window", ["prefix", "window(5)", "padding"], (3, 2, 16, 16, 4), prefix=[9, 3, 12], padding=[0, 2, 5])


def all_of_erf(cases):
    wide = torch.cat([torch.linspace(-5, 5, 101), torch.tensor([0.0, -0.0, 1.0, -1.0, 3.84, -3.84, 1e-30, -1e-30, 3e4, -3e4, 0.99999994])]).reshape(4, 28)
    for (op, function), dtype in itertools.product({"erf": torch.erf, "gelu": torch.nn.functional.gelu}.items(), (F32, BF16)):
        for name, x in (("wide", wide.to(dtype)), ("random", cases.random(4, 5, 7, dtype=dtype, scale=2.0))):
            name = f"{op}_{'f32' if dtype == F32 else 'bf16'}_{name}"
            exact, answer = function(x.double()), function(x)
            if dtype == F32:
                answer = once_rounded(name, exact, answer)
            elif op == "erf":
                answer = exact.to(dtype)  # torch's own is 0 for small arguments
            cases.add(name, op, {}, {"x": x}, {"out": answer})


def all_of_softplus(cases):
    # Around the threshold of torch, where 1 + e^x rounds to 1, and where the result is the smallest normal number or 0.
    edges = torch.tensor([20.0, 20.000002, 19.999998, -16.6, -17.4, -87.0, -110.0, 0.0, -0.0, 1e-30, -1e-30, 3e4, -3e4, 1e38, -1e38, 0.99999994])
    dense = torch.cat([torch.linspace(-87, 24, 2032), edges]).reshape(8, 256)
    for name, x in (("f32_dense", dense), ("bf16_dense", dense.to(BF16)), ("f32_random", cases.random(4, 5, 7, scale=3.0))):
        exact = torch.nn.functional.softplus(x.double())
        answer = once_rounded(name, exact, torch.nn.functional.softplus(x)) if x.dtype == F32 else exact.to(BF16)
        cases.add(f"softplus_{name}", "softplus", {}, {"x": x}, {"out": answer})


def linear_attention(cases, name, shape, *, delta, state=True, repeated=False):
    """`shape` is B, S, H, G, D, E. Both forms of transformers, a step per token and chunks, agree with the definition in f64.
    Repeated keys without a decay are what an inverse by a power series cancels for."""
    b, s, h, g, d, e = shape
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)
    q, k, v = unit(cases.random(b, s, h, d)), unit(cases.random(b, s, h, d)), cases.random(b, s, h, g, e)
    k = k[:, :1].repeat(1, s, 1, 1) if repeated else k
    rate = torch.sigmoid(cases.random(b, s, h, g) + (8 if repeated else 0))
    speed = cases.random(h, g).exp() * (0 if repeated else 1)
    inputs = {"q": q, "k": k, "v": v, "decay": -speed * rate, "rate": rate, "state": cases.random(b, h, g, d, e)}
    wide = {key: value.double() for key, value in inputs.items()}
    matrix, outputs = wide["state"] if state else torch.zeros(b, h, g, d, e).double(), []
    for t in range(s):
        key, query = wide["k"][:, t, :, None, :, None], wide["q"][:, t, :, None, :, None]
        matrix = matrix * wide["decay"][:, t, ..., None, None].exp()
        value = wide["v"][:, t] - (matrix * key).sum(-2) if delta else wide["v"][:, t]
        matrix = matrix + key * (value * wide["rate"][:, t, ..., None])[..., None, :]
        outputs.append((matrix * query).sum(-2))
    exact = torch.cat([matrix, torch.stack(outputs, 3)], -2)
    first = inputs["state"].reshape(b, h * g, d, e) if state else torch.zeros(b, h * g, d, e)
    heads = {key: inputs[key].flatten(2, 3) for key in ("v", "decay", "rate")}
    for output, last in delta_rules(q, k, heads, first) if delta else mamba_scans(q, k, heads, first, -speed.flatten()):
        found = torch.cat([last.reshape(b, h, g, d, e), output.reshape(b, s, h, g, e).permute(0, 2, 3, 1, 4)], -2)
        answer = once_rounded(name, exact, found)
    inputs |= {"start": torch.tensor(5 if state else 0, dtype=torch.int32), "count": torch.tensor(s, dtype=torch.int32)}
    cases.add(name, "linear_attention", {"delta": delta}, inputs, {"out": answer})


def delta_rules(q, k, heads, state):
    """transformers scales the queries itself."""
    for rule in (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule):
        yield rule(q * q.shape[-1] ** 0.5, k, heads["v"], g=heads["decay"], beta=heads["rate"], initial_state=state, output_final_state=True)


def mamba_scans(q, k, heads, state, speed):
    """transformers keeps the features of a key behind those of a value."""
    v, dt = heads["v"], heads["rate"]
    kept, outputs = state.mT.contiguous(), []
    for t in range(v.shape[1]):
        by_feature = dt[:, t, :, None].expand_as(v[:, t])
        outputs.append(mamba2_selective_state_update(kept, v[:, t], by_feature, speed[:, None, None].expand(kept.shape[1:]), k[:, t], q[:, t]))
    yield torch.stack(outputs, 1), kept.mT
    output, last = mamba2_chunk_scan(v, dt, speed, k, q, 16, initial_states=state.mT, return_final_states=True)
    yield output, last.mT


def all_linear_attention(cases):
    for delta, of in ((True, "delta"), (False, "mamba")):
        linear_attention(cases, f"linear_attention_{of}_step", (2, 1, 2, 3, 6, 20), delta=delta)
        linear_attention(cases, f"linear_attention_{of}_chunk", (2, 13, 2, 2, 5, 6), delta=delta, state=False)
        linear_attention(cases, f"linear_attention_{of}_chunks", (1, 131, 1, 2, 8, 6), delta=delta)
        linear_attention(cases, f"linear_attention_{of}_repeated", (1, 64, 1, 1, 8, 6), delta=delta, repeated=True)


def write(out):
    cases = Cases()
    for part in (all_sdpa, all_rms_norm, all_rope, all_elementwise, all_masks, all_of_erf, all_of_softplus, all_linear_attention):
        part(cases)
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(case) for case in cases.cases)
    (out / "cases.json").write_text(f'{{"reference": {json.dumps(REFERENCE.split(", float32")[0])}, "cases": [\n{lines}\n]}}\n')
    save_file(cases.tensors, out / "cases.safetensors")
    print(f"ops: {len(cases.cases)} cases, {sum(f.stat().st_size for f in out.iterdir()) / 1e3:.0f} kB")
