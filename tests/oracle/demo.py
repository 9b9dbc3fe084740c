"""Goldens of a shipped model: 64 prompts × 48 tokens, of which 16 come from outside the story generator."""

import itertools
import random
import time

import numpy as np
from transformers import AutoTokenizer

import stories
from golden import NEAR_TIE, digest, greedy, load, write_golden

COUNT, STEPS, FULL = 64, 48, 6
OUTSIDE = [
    "The mitochondria are the powerhouse of the cell, and",
    "fn main() {\n    let mut total: u64 = 0;\n    for i in 0..10 {\n        total += i * i;\n    }\n",
    "3.14159265358979 2.71828182845905 1.41421356237310",
    "Es war einmal ein kleiner Fuchs, der wohnte am Rand des großen Waldes.",
    "Il était une fois une souris très courageuse",
    "むかしむかし、あるところに、おじいさんと",
    "Жила-была лиса. Однажды она",
    "SELECT name, count(*) FROM stories WHERE animal = 'owl' GROUP BY name;",
    "Dear Sir or Madam,\n\nI am writing to complain about the noise in the flat above mine,",
    "🦊🐻🦉 and then 🎉",
    "\x00\x01\x7f\u200b\ufeff\ufffd",
    "<html><body class=\"a\">&nbsp;</body></html>",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "   \n\n\t  \n",
    "Q: What is the capital of France?\nA:",
]
CHATS = [
    [{"role": "user", "content": "Tell me a story about a brave owl."}],
    [{"role": "system", "content": "You are a kind storyteller."}, {"role": "user", "content": "Write a short story about Mia."}],
    [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello! Shall I tell you a story?"}, {"role": "user", "content": "Tell me a story about a shy frog named Otto."}],
    [{"role": "user", "content": "Can you tell me a story about a curious boy named Tom?"}],
]
SHORT = ["", "The", "One day", "Once upon a time", "Once upon a time, there was a little fox", "In a small village lived a"]


def texts():
    """The few whose logits are stored whole stand first, and are short; beginnings of unseen stories follow without end."""
    yield from ({"prompt": text} for text in SHORT[:FULL])
    yield from ({"messages": messages} for messages in CHATS)
    yield from ({"prompt": text, "outside": True} for text in OUTSIDE)
    rng = random.Random(64)
    for i in itertools.count():
        text = stories.story(rng)[0]
        if i % 6 == 5:
            text += "\n\n" + stories.story(rng)[0]
            yield {"prompt": text[: -rng.randrange(20, 120)]}
        else:
            yield {"prompt": text[: rng.randrange(15, len(text) // 2)]}


def encode(tokenizer, entry):
    if "messages" not in entry:
        return tokenizer(entry["prompt"])["input_ids"]
    text = tokenizer.apply_chat_template(entry["messages"], add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def write(directory, fixtures):
    """The golden of the model in `directory`, named as that is."""
    start, name = time.time(), directory.name
    tokenizer, model = AutoTokenizer.from_pretrained(directory), load(directory)
    heads, tensors = [], []
    for entry in texts():
        if len(heads) == COUNT:
            break
        ids = encode(tokenizer, entry)
        logits, tokens, distance = greedy(model, ids, STEPS)
        if distance < NEAR_TIE:
            print(f"{name}: left out, a near tie of {distance:.1e}: {entry}")
            continue
        full = len(heads) < FULL
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        heads.append({**entry, "prompt_tokens": ids, "tokens": tokens, "text": text, "min_gap": distance, "full": full})
        tensors.append({**({"logits": logits} if full else {}), **digest(logits)})
    write_golden(
        fixtures / f"{name}.json", tensors, heads, name=name, seed=64, storage="bf16", vocab_size=model.config.vocab_size, chunk=64,
        context=model.config.max_position_embeddings,
    )
    distinct = [len(set(h["tokens"])) for h in heads]
    lengths = [len(h["prompt_tokens"]) for h in heads]
    worst = min(heads, key=lambda h: h["min_gap"])
    size = sum((fixtures / file).stat().st_size for file in (f"{name}.json", f"{name}.safetensors"))
    print(f"{name}: {len(heads)} prompts of {min(lengths)} to {max(lengths)} tokens, {len(set(map(tuple, (h['tokens'] for h in heads))))} distinct outputs")
    print(f"{name}: {sum(d >= 16 for d in distinct)} of {len(heads)} outputs have at least 16 distinct tokens (median {int(np.median(distinct))})")
    print(f"{name}: smallest gap {worst['min_gap']:.2e} after {worst['prompt_tokens'][-5:]}, {size / 1e3:.0f} kB, {time.time() - start:.1f} s")
    assert len(heads) == COUNT and sum(h.get("outside", False) for h in heads) == 16
    assert sum(d >= 16 for d in distinct) >= 56, "too many outputs repeat themselves"
    if window := getattr(model.config, "sliding_window", None):
        assert sum(length >= 3 * window for length in lengths) >= 16, "too few prompts leave the window behind"
