"""What transformers answers for a checkpoint of the user's own, in the format of README.md: the reference of
`cargo xtask parity --model`.

    .tracewright/oracle/bin/python tests/oracle/checkpoint.py MODEL_DIR --out DIR [--prompt TEXT] …

Texts go through the checkpoint's tokenizer; one without gets random tokens. Where layers look through a window, one prompt of
random tokens leaves it behind.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

from golden import STORAGE, digest, greedy, load, own_rows, torch, write_golden
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoTokenizer

TEXTS = [
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Die Katze schläft, während draußen der Regen",
    "東京は日本の",
    "12 × 34 = 408, and 7.5 % of 1,000 is",
    "Q: Why is the sky blue?\nA:",
    "A list of the seven days of the week, in order, one to a line, with nothing else beside them:\nMonday\nTuesday\n",
]
CHUNK, STEPS, LONGEST = 16, 32, 1500
# More than so many numbers of a prompt's logits are not kept: the eight largest of each row are.
FULL = 1 << 24
NAMES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def storage(model):
    """The type of most of the checkpoint's numbers."""
    counts = Counter()
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                tensor = file.get_slice(key)
                counts[tensor.get_dtype()] += torch.Size(tensor.get_shape()).numel()
    found = counts.most_common(1)[0][0] if counts else "nothing"
    if found not in NAMES:
        raise SystemExit(f"{model}: most of the weights are {found}, expected one of {', '.join(NAMES)}")
    return NAMES[found]


def limit(config):
    """The longest sequence. With a LongRoPE, the longest whose embedding is that of the first positions."""
    rope = getattr(config, "rope_parameters", None) or {}
    longest = config.max_position_embeddings
    if rope.get("rope_type") == "longrope":
        longest = min(longest, rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", longest))
    return longest


def prompts(model, config, texts, rng):
    """What is asked: tokens, with the text that they are of."""
    longest, vocabulary = limit(config) - 1, config.vocab_size
    drawn = lambda length: {"prompt_tokens": [rng.randrange(vocabulary) for _ in range(length)]}
    if texts or (model / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(model)
        found = [{"prompt": text, "prompt_tokens": tokenizer(text)["input_ids"]} for text in texts or TEXTS]
        found = [prompt for prompt in found if prompt["prompt_tokens"]]
    else:
        found = [drawn(length) for length in (1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 1)]
    window = getattr(config, "sliding_window", None)
    if window and not texts:
        found.append(drawn(min(2 * window + 3, LONGEST)))
    kept = [prompt for prompt in found if len(prompt["prompt_tokens"]) <= longest]
    if not kept:
        raise SystemExit(f"no prompt has at most {longest} tokens, which is all that the model can read before it answers")
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompt", action="append", default=[], help="text to continue, instead of the default texts; may be repeated")
    arguments = parser.parse_args()
    # Not a model of the tests, which is too small to share.
    torch.set_num_threads(os.cpu_count() or 1)
    model, kind = load(arguments.model), storage(arguments.model)
    config = model.config.get_text_config()
    asked = prompts(arguments.model, config, arguments.prompt, random.Random(0))
    longest = max(len(prompt["prompt_tokens"]) for prompt in asked) + STEPS
    context = min(max(1 << (longest - 1).bit_length(), 64), limit(config))
    tensors = []
    for prompt in asked:
        length = len(prompt["prompt_tokens"])
        logits, prompt["tokens"], prompt["min_gap"] = greedy(model, prompt["prompt_tokens"], min(STEPS, context - length + 1))
        prompt["full"] = logits.size <= FULL
        tensors.append({"logits": logits} if prompt["full"] else digest(logits))
        say(f"prompt of {length} tokens: smallest gap {prompt['min_gap']:.1e}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = arguments.model.resolve().name
    write_golden(
        arguments.out / "golden.json", tensors, asked, name=name, seed=0, storage=kind, vocab_size=config.vocab_size,
        chunk=min(CHUNK, context), context=context,
    )
    if kind != "f32":
        del model
        say(f"the same in {kind}")
        save_file(own_rows(load(arguments.model, STORAGE[kind]), asked), arguments.out / "own.safetensors")


if __name__ == "__main__":
    main()
