"""One layer with the extents of Llama 3.1 8B, in bf16: a checkpoint of random weights for `cargo xtask parity --model`, and what it computes
with weights that everybody can make for himself.

    .tracewright/oracle/bin/python tests/oracle/layer.py OUT
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from golden import NEAR_TIE, greedy, torch, write_checkpoint
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Weights of this size keep what each part adds in one range; `write_checkpoint` makes them three times as large.
CONFIG = dict(
    vocab_size=1024, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128, intermediate_size=14336, num_hidden_layers=1,
    max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=False, initializer_range=0.006, rope_parameters=LLAMA3,
)
PROMPT, STEPS = 16, 8
# No multiple of anything: so far apart the numbers of a tensor repeat, and no two rows are the same.
PERIOD = 1_000_003


def numbers():
    """Integers that are mixed until they look random, as numbers of bf16 as far from 0 as three standard deviations of `CONFIG`."""
    x = np.arange(PERIOD, dtype=np.uint32) * np.uint32(2654435761)
    x = (x ^ (x >> 15)) * np.uint32(2246822519)
    x ^= x >> 13
    x = (x.astype(np.float64) / 2**31 - 1) * 0.03125
    return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)


@torch.no_grad()
def write_golden(out):
    """What the layer computes with these numbers: the tensors one after the other, each from another number on; norms have 1 more."""
    config = LlamaConfig(**CONFIG, bos_token_id=1, eos_token_id=2)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    block = numbers()
    for index, (_, weight) in enumerate(sorted(model.named_parameters())):
        start = index * 104_729
        repeated = block.repeat(2 + (start + weight.numel()) // PERIOD)[start : start + weight.numel()].float()
        weight.copy_((repeated + (1.0 if weight.dim() == 1 else 0.0)).to(torch.bfloat16).view(weight.shape))
    prompt = [(7919 * i + 13) % CONFIG["vocab_size"] for i in range(PROMPT)]
    logits, tokens, gap = greedy(model, prompt, STEPS)
    assert gap > NEAR_TIE, gap
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        keys = json.loads((Path(folder) / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    out.with_suffix(".json").write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n")
    arrays = {"logits": torch.from_numpy(logits), "prompt": torch.tensor(prompt, dtype=torch.int32), "tokens": torch.tensor(tokens, dtype=torch.int32)}
    save_file(arrays, out.with_suffix(".safetensors"))
    print(f"layer: smallest gap {gap:.2e}, {len(set(tokens))} tokens, largest logit {float(np.abs(logits).max()):.3g}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    write_checkpoint(Path(sys.argv[1]), 1, storage="bf16", **CONFIG)
