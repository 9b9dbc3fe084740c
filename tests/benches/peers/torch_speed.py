#!/usr/bin/env python3
"""How fast transformers reads a prompt, or decodes behind one, on torch: tokens a second, as JSON.

    PYTHON tests/benches/peers/torch_speed.py MODEL_DIR --tokens N [--decode N]

of a checkpoint in its own type, greedily, one sequence, with attention by torch's own kernel. One run before it is not counted.
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, required=True, help="tokens of the prompt")
    parser.add_argument("--decode", type=int, default=0, help="tokens behind it, which are measured instead")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto", attn_implementation="sdpa").eval()
    prompt = torch.tensor([[i * 7919 % model.config.vocab_size for i in range(arguments.tokens)]])
    with torch.inference_mode():
        read(model, prompt)
        start = time.perf_counter()
        answer = read(model, prompt)
        if arguments.decode:
            start = time.perf_counter()
            for _ in range(arguments.decode):
                token = answer.logits[:, -1].argmax(-1, keepdim=True)
                answer = model(token, past_key_values=answer.past_key_values, use_cache=True)
        seconds = time.perf_counter() - start
    print(json.dumps({"tokens_per_s": (arguments.decode or arguments.tokens) / seconds}))


def read(model, prompt):
    """The answer to a whole prompt, with the logits of its last token."""
    return model(prompt, use_cache=True, logits_to_keep=1)


main()
