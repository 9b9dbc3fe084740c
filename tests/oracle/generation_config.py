"""Writes `tests/fixtures/generation_config.json`: random `generation_config.json` files, and the logits that transformers makes
of random logits with them. Needs `requirements.txt`."""

import json
import random
import warnings
from pathlib import Path

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig
from transformers.utils import logging

OUT = Path(__file__).parents[1] / "fixtures" / "generation_config.json"
VOCABULARY, SEED, CASES = 16, 62, 80
ENDS = [1, 4]


class Network(GenerationMixin):
    """The parts of a network that `GenerationMixin` needs to choose its processors."""

    config = PretrainedConfig(vocab_size=VOCABULARY)


def some(source, most):
    return source.sample(range(VOCABULARY), source.randint(1, most))


KEYS = {
    "suppress_tokens": lambda r: some(r, 6),
    "begin_suppress_tokens": lambda r: some(r, 6),
    "repetition_penalty": lambda r: r.choice([1.0, 1.1, 1.5, 0.8]),
    "no_repeat_ngram_size": lambda r: r.randint(0, 4),
    "encoder_no_repeat_ngram_size": lambda r: r.randint(0, 3),
    "encoder_repetition_penalty": lambda r: r.choice([1.0, 1.3, 0.7]),
    "bad_words_ids": lambda r: [some(r, 3) for _ in range(4)] + [[1]],
    "sequence_bias": lambda r: [[some(r, 2), r.uniform(-5, 5)] for _ in range(4)],
    "min_new_tokens": lambda r: r.randint(0, 6),
    "min_length": lambda r: r.randint(0, 14),
    "max_new_tokens": lambda r: r.randint(2, 7),
    "forced_bos_token_id": lambda r: r.randrange(VOCABULARY),
    "forced_eos_token_id": lambda r: r.choice([1, [1, 4], 7]),
    "exponential_decay_length_penalty": lambda r: [r.randint(0, 3), r.choice([1.1, 2.0])],
    "remove_invalid_values": lambda r: True,
}
SAMPLED = {
    "temperature": lambda r: r.choice([0.5, 1.0, 1.7]),
    "top_k": lambda r: r.choice([0, 3, 10, 50]),
    "top_p": lambda r: r.choice([0.5, 0.9, 1.0]),
    "min_p": lambda r: r.choice([0.0, 0.05, 0.3]),
    "typical_p": lambda r: r.choice([0.6, 0.95, 1.0]),
    "top_h": lambda r: r.choice([0.3, 0.7]),
    "epsilon_cutoff": lambda r: r.choice([0.01, 0.05]),
    "eta_cutoff": lambda r: r.choice([0.01, 0.3]),
}


def file(source, at):
    """The keys of a file: one key alone first, and then several keys together."""
    keys = [*KEYS, *SAMPLED]
    chosen = [keys[at]] if at < len(keys) else source.sample(keys, source.randint(2, 6))
    samples = any(key in SAMPLED for key in chosen) or source.random() < 0.2
    written = {key: {**KEYS, **SAMPLED}[key](source) for key in keys if key in chosen}
    return {"eos_token_id": ENDS, **written, **({"do_sample": True} if samples else {})}


def case(source, at):
    written = file(source, at)
    if written.get("forced_eos_token_id") == [1, 4] and "top_p" in written:
        raise ValueError("the order of two equal logits is open")
    prompt = [source.randrange(VOCABULARY) for _ in range(source.choice([1, 1, 5, 8]))]
    config = GenerationConfig(**written)
    config.update(**config._get_default_generation_params(), defaults_only=True)
    most = written.get("max_new_tokens", 9)
    config.max_length = len(prompt) + most
    config._eos_token_tensor = torch.tensor(ENDS)
    processors = Network()._get_logits_processor(config, len(prompt), torch.tensor([prompt]), device="cpu", model_kwargs={})
    seen, steps = list(prompt), []
    for _ in range(most):
        logits = [round(source.gauss(0, 3), 2) for _ in range(VOCABULARY)]
        scores = processors(torch.tensor([seen]), torch.tensor([logits]))[0].tolist()
        steps.append({"logits": logits, "scores": [None if x < -3e38 else round(x, 5) for x in scores]})
        # Few different tokens, so that sequences repeat.
        steps[-1]["token"] = source.choice([2, 3, 5, prompt[0], prompt[-1]])
        seen.append(steps[-1]["token"])
    return {"file": written, "prompt": prompt, "most": most, "steps": steps}


def main():
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    source = random.Random(SEED)
    cases = []
    while len(cases) < CASES:
        try:
            one = case(source, len(cases))
        except ValueError:
            # transformers refuses a file whose keys contradict each other.
            continue
        if all(any(x is not None for x in step["scores"]) for step in one["steps"]):
            cases.append(json.dumps(one, separators=(",", ":")))
    cases = ",\n".join(cases)
    OUT.write_text(f'{{"by": "transformers {transformers.__version__}", "cases": [\n{cases}\n]}}\n')


main()
