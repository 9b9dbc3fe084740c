"""Sequences that grow beyond the original context of a longrope embedding: what `generate` of transformers gives, which computes all
keys again with the long factors."""

import json
import random

import torch
from golden import NEAR_TIE, REFERENCE, lead, load
from safetensors.torch import save_file

MODEL, CONTEXT = "phi3-switch", 64
# (prompt, new tokens): within the original 36 tokens, up to the last of them, across, from the last on, and beyond.
SIZES = [(9, 12), (20, 17), (30, 20), (36, 12), (37, 12), (50, 14)]


@torch.no_grad()
def write(fixtures):
    model, rng = load(fixtures / MODEL), random.Random(8)
    cases, tensors = [], {}
    for index, (length, steps) in enumerate(SIZES):
        gap = 0.0
        while gap < NEAR_TIE:
            prompt = [rng.randrange(model.config.vocab_size) for _ in range(length)]
            found = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, length, dtype=torch.long), max_new_tokens=steps, min_new_tokens=steps,
                do_sample=False, return_dict_in_generate=True, output_logits=True, eos_token_id=None, pad_token_id=0,
            )
            logits = torch.cat(found.logits)
            gap = lead(logits, 1)
        tokens = found.sequences[0, length:].tolist()
        # What one pass over all tokens so far gives is the same.
        for step in range(steps):
            fed = torch.tensor([prompt + tokens[:step]])
            once = model(input_ids=fed, use_cache=False).logits[0, -1]
            assert float((once - logits[step]).abs().max()) < 1e-4, (length, step)
        cases.append({"prompt_tokens": prompt, "tokens": tokens})
        tensors[f"logits.{index}"] = logits.contiguous()
        print(f"{length} tokens and {steps} new ones: smallest gap {gap:.1e}, {len(set(tokens))} different tokens", flush=True)
    out = fixtures / "crossing"
    out.mkdir(exist_ok=True)
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    head = {"reference": REFERENCE, "model": MODEL, "context": CONTEXT}
    (out / "cases.json").write_text(json.dumps(head)[:-1] + f', "cases": [\n{lines}\n]}}\n')
    save_file(tensors, out / "cases.safetensors")
