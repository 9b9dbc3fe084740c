"""Long sequences: every rotary embedding at 8,192 positions and one past 32,768, and 10,000 tokens through a window.

One toy's weights serve all embeddings. A sequence is read in one pass, attention without the matrix of all scores (`sdpa`, which for
32,769 positions would be 13 GB): what transformers' embeddings take for the length of a sequence is that of all of it.
"""

import json
import shutil

import torch
from golden import REFERENCE, greedy, load, write_checkpoint
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

LENGTHS = (8192, 32769)
PAIRS = 4
# Every kind is stretched within the sequences: none is what it is without stretching.
KINDS = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 1024},
    "longrope": {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 2048,
        "short_factor": [1.0 + 0.1 * i for i in range(PAIRS)], "long_factor": [1.0 + 2.5 * i for i in range(PAIRS)],
    },
}
# A dynamic embedding grows from here on; the others do not ask.
TRAINED = 2048
TOY = dict(
    model_type="llama", vocab_size=61, hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=2 * PAIRS, num_hidden_layers=1, intermediate_size=40,
    max_position_embeddings=TRAINED, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=KINDS["default"],
)
RING = dict(
    model_type="gemma3_text", vocab_size=61, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, head_dim=8, num_hidden_layers=3, intermediate_size=40,
    max_position_embeddings=16384, query_pre_attn_scalar=8, sliding_window=100, layer_types=["sliding_attention"] * 2 + ["full_attention"],
    rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": {"rope_type": "default", "rope_theta": 1000000.0}},
)
STEPS, EVERY, NEAR = 10_000, 1000, 5e-5


def positions(length):
    """Around the places where a power of two ends, and the last."""
    near = [p + d for p in (1024, 2048, 8192, 32768) for d in (-1, 0)]
    return sorted({0, 1, 100, length - 1, *(p for p in near if p < length)})


@torch.no_grad()
def write_ropes(out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_checkpoint(out, 5, **TOY)
    tokens = torch.randint(TOY["vocab_size"], (max(LENGTHS),), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
    cases, tensors = [], {"tokens": tokens}
    base = json.loads((out / "config.json").read_text())
    for kind, parameters in KINDS.items():
        (out / "config.json").write_text(json.dumps(base | {"rope_parameters": parameters}))
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="sdpa").eval()
        for length in LENGTHS:
            name, at = f"{kind}-{length}", positions(length)
            logits = model(input_ids=tokens[None, :length].long(), use_cache=False).logits[0]
            cases.append({"name": name, "rope_parameters": parameters, "length": length, "positions": at})
            tensors[name] = logits[at].contiguous()
            print(name, f"largest logit {logits.abs().max():.1f}", flush=True)
    (out / "config.json").write_text(json.dumps(base, indent=2, sort_keys=True) + "\n")
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    reference = REFERENCE.replace("eager attention, greedy, end of sequence ignored", "attention `sdpa`, one pass")
    (out / "cases.json").write_text(f'{{"reference": {json.dumps(reference)}, "cases": [\n{lines}\n]}}\n')
    save_file(tensors, out / "cases.safetensors")


def write_ring(out):
    """Greedy tokens, none of which was nearly another one; the logits of every thousandth."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for seed in range(100):
        write_checkpoint(out, seed, **RING)
        model = load(out)
        prompt = torch.randint(RING["vocab_size"], (150,), generator=torch.Generator().manual_seed(seed)).tolist()
        logits, tokens, gap = greedy(model, prompt, STEPS)
        runs = len({tuple(tokens[i : i + 20]) for i in range(STEPS - 20)})
        print(f"seed {seed}: smallest gap {gap:.1e}, {runs} different runs of 20 tokens", flush=True)
        if gap > NEAR and runs > STEPS // 2:
            break
    chosen = torch.tensor(logits)[len(prompt) - 1 :]
    tensors = {"prompt": torch.tensor(prompt, dtype=torch.int32), "tokens": torch.tensor(tokens, dtype=torch.int32), "logits": chosen[EVERY - 1 :: EVERY].contiguous()}
    save_file(tensors, out / "golden.safetensors")


def write(fixtures):
    write_ropes(fixtures / "long-ropes")
    write_ring(fixtures / "long-ring")
