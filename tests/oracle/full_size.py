"""What transformers answers for FunctionGemma 270M in its real size. Its weights are random ones that the test makes again: they are
half a gigabyte.

    cargo run --package tracewright-cli -- random models/presets/functiongemma-270m.json --seed 1 --out MODEL_DIR
    .tracewright/oracle/bin/python tests/oracle/full_size.py MODEL_DIR
"""

import os
import random
import sys
from pathlib import Path

import numpy as np
from golden import STORAGE, digest, greedy, load, own_rows, torch, write_golden

FIXTURES = Path(__file__).parents[1] / "fixtures"
# The prompt is longer than a chunk.
CHUNK, CONTEXT, LENGTH, STEPS = 8, 1024, 11, 12
# The largest logits are about 9: a prompt that meets a choice closer than this is drawn again.
LEAD = 0.05


def main():
    # Not a model of the tests, which is too small to share.
    torch.set_num_threads(os.cpu_count() or 1)
    directory, rng = Path(sys.argv[1]), random.Random(1)
    model, gap = load(directory), 0.0
    vocabulary = model.config.vocab_size
    while gap < LEAD:
        prompt = [rng.randrange(vocabulary) for _ in range(LENGTH)]
        logits, tokens, gap = greedy(model, prompt, STEPS)
        print(f"smallest gap {gap:.1e}, {len(set(tokens))} distinct tokens", flush=True)
    del model
    head = {"prompt_tokens": prompt, "tokens": tokens, "min_gap": gap, "full": False}
    [own] = own_rows(load(directory, STORAGE["bf16"]), [head | {"full": True}]).values()
    tensors = digest(logits)
    tensors["own_top_logits"] = np.take_along_axis(own.float().numpy(), tensors["top_ids"].astype(np.int64), 1)
    write_golden(
        FIXTURES / "functiongemma-270m.json", [tensors], [head], name="functiongemma-270m", seed=1, storage="bf16", vocab_size=vocabulary,
        chunk=CHUNK, context=CONTEXT,
    )


if __name__ == "__main__":
    main()
