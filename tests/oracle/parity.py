"""Fresh random configurations with their golden files, in the format of README.md: the parity lane's reference."""

import argparse
import json
import random
import shutil
import time
from pathlib import Path

from golden import write_case


def configuration(rng):
    """A small odd Llama: head counts, widths, biases, scaling and storage all vary."""
    heads = rng.choice([1, 2, 3, 3, 4, 5, 5, 6, 6, 7, 9])
    kv_heads = rng.choice([k for k in range(1, heads + 1) if heads % k == 0])
    head_dim = rng.choice([4, 6, 8, 10, 14, 16, 18])
    # transformers asks that the heads divide the hidden size, also where head_dim is given.
    multiples = [m * heads for m in range(1, 80) if 20 <= m * heads <= 72]
    hidden = rng.choice([h for h in multiples if h // heads != head_dim] or multiples)
    derived = (hidden // heads) % 2 == 0 and rng.random() < 0.2
    context = rng.randrange(27, 48)
    rope = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 500000.0, 777.0])}
    if rng.random() < 0.4:
        low = rng.choice([1.0, 0.5])
        rope |= {"rope_type": "llama3", "factor": rng.choice([2.0, 8.0, 32.0]), "low_freq_factor": low, "high_freq_factor": rng.choice([2.0, 4.0]), "original_max_position_embeddings": rng.choice([8, 16, 32])}
    return context, dict(
        vocab_size=rng.randrange(67, 520), hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=None if derived else head_dim,
        num_hidden_layers=rng.randrange(1, 4), intermediate_size=rng.randrange(33, 130), rms_norm_eps=rng.choice([1e-5, 1e-6]), max_position_embeddings=max(64, context),
        tie_word_embeddings=rng.random() < 0.5, attention_bias=rng.random() < 0.4, mlp_bias=rng.random() < 0.4, rope_parameters=rope, published=rng.random() < 0.5,
        shard=rng.choice(["1GB", "1GB", "60KB"]), drop=("head_dim",) if derived else (),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bf16", action="store_true", help="bf16 checkpoints, one prompt of 200 tokens, and the error of HF's own bf16 run")
    arguments = parser.parse_args()
    rng, start, names = random.Random(arguments.seed), time.time(), []
    for case in range(arguments.cases):
        name = f"case-{case:03}"
        shutil.rmtree(arguments.out / name, ignore_errors=True)
        context, config = configuration(rng)
        chunk = rng.randrange(4, min(13, context // 2))
        lengths = [chunk - 1, chunk, chunk + 1, 2 * chunk, context - 1]
        if arguments.bf16:
            chunk, context, lengths = 64, 256, [200]
            config |= dict(max_position_embeddings=context, storage="bf16")
        else:
            config["storage"] = rng.choice(["f32", "f32", "f16", "bf16"])
        prompts = write_case(
            arguments.out / name, arguments.seed * 1000 + case, chunk, context, lengths, steps=1 if arguments.bf16 else 8, bf16=arguments.bf16, **config
        )
        names.append(name)
        gap = min(p["min_gap"] for p in prompts)
        kept = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers", "storage")
        print(f"{name}: c {chunk} N {context} smallest gap {gap:.1e}", *(f"{k.removeprefix('num_')} {config[k]}" for k in kept), config["rope_parameters"]["rope_type"], flush=True)
    (arguments.out / "index.json").write_text(json.dumps({"seed": arguments.seed, "cases": names}) + "\n")
    print(f"{len(names)} cases in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
