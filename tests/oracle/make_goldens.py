"""Write the committed fixtures: `python make_goldens.py [demo] [demo-gemma3] [random] [bf16] [ops] [rope]` (all of them without arguments)."""

import shutil
import sys
import time
from pathlib import Path

from golden import write_case

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
SHIPPED = ["demo", "demo-gemma3"]
CHUNK, CONTEXT = 8, 40

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
BASE = dict(
    vocab_size=515, hidden_size=60, num_attention_heads=6, num_key_value_heads=2, head_dim=14, num_hidden_layers=2, intermediate_size=90,
    max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=DEFAULT,
)
RANDOM = {
    "llama-untied": {},
    "llama-tied": dict(vocab_size=259, tie_word_embeddings=True, storage="f16"),
    "llama-bias": dict(vocab_size=259, attention_bias=True, mlp_bias=True, shard="150KB"),
    "llama-rope3": dict(vocab_size=387, rope_parameters=LLAMA3, rms_norm_eps=1e-6, storage="bf16", published=True),
    "llama-mha": dict(vocab_size=131, num_attention_heads=3, num_key_value_heads=3, head_dim=None, num_hidden_layers=3, drop=("head_dim",)),
    "llama-mqa": dict(vocab_size=195, num_attention_heads=5, num_key_value_heads=1, intermediate_size=77, tie_word_embeddings=True, published=True),
}


def random_models():
    lengths = [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, CONTEXT - 1, CONTEXT]
    for seed, (name, change) in enumerate(RANDOM.items(), start=1):
        start, out = time.time(), FIXTURES / name
        shutil.rmtree(out, ignore_errors=True)
        prompts = write_case(out, seed, CHUNK, CONTEXT, lengths, **{**BASE, **change})
        size = sum(f.stat().st_size for f in out.iterdir())
        print(f"{name}: smallest gap {min(p['min_gap'] for p in prompts):.2e}, {size / 1e3:.0f} kB, {time.time() - start:.1f} s", flush=True)


def bf16_model():
    """Bf16 weights over 200 positions, with the error of HF's own bf16 run: one case as `parity.py --bf16` makes them."""
    out = FIXTURES / "bf16"
    shutil.rmtree(out, ignore_errors=True)
    write_case(out, 7, 64, 256, [200], steps=1, bf16=True, **{**BASE, **dict(vocab_size=131, max_position_embeddings=256, storage="bf16")})


def main():
    parts = sys.argv[1:] or ["random", "bf16", "ops", "rope", *SHIPPED]
    if "random" in parts:
        random_models()
    if "bf16" in parts:
        bf16_model()
    if "ops" in parts:
        import ops

        ops.write(FIXTURES / "ops")
    if "rope" in parts:
        import rope

        rope.write(FIXTURES / "rope")
    for shipped in SHIPPED:
        if shipped in parts:
            import demo

            demo.write(ROOT / shipped, FIXTURES)


if __name__ == "__main__":
    main()
