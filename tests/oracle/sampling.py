"""Write tests/fixtures/sampling.json: what transformers' warpers and llama.cpp's samplers make of logits. `python sampling.py`
needs requirements.txt and, in the same environment, llama-cpp-python (which pip compiles: some minutes)."""

import ctypes
import json
import random
from pathlib import Path

import llama_cpp
import torch
import transformers
from transformers.generation import logits_process as hf

FIXTURE = Path(__file__).parents[1] / "fixtures" / "sampling.json"
VOCABULARY = 29
SEED = 5


def warpers(settings):
    """The warpers of transformers for settings by our names, in the order in which they stand."""
    make = {
        "repeat": lambda x: hf.RepetitionPenaltyLogitsProcessor(penalty=x),
        "temperature": hf.TemperatureLogitsWarper,
        "top_k": hf.TopKLogitsWarper,
        "top_p": hf.TopPLogitsWarper,
        "min_p": hf.MinPLogitsWarper,
        "typical_p": lambda x: hf.TypicalLogitsWarper(mass=x),
    }
    return hf.LogitsProcessorList([make[name](x) for name, x in settings.items()])


def by_transformers(settings, seen, logits):
    scores = warpers(settings)(torch.tensor([seen]), torch.tensor([logits]))[0].tolist()
    return [None if x == -float("inf") else x for x in scores]


def sampler(name, x):
    """A sampler of llama.cpp."""
    llama = llama_cpp.llama_cpp
    match name:
        case "penalties":
            return llama.llama_sampler_init_penalties(VOCABULARY, x["last_n"], x["repeat"], x["frequency"], x["presence"])
        case "dry":
            breakers = (ctypes.c_char_p * 0)()
            return llama.llama_sampler_init_dry(None, x["multiplier"], x["base"], x["allowed_length"], x["last_n"], breakers, 0)
        case "top_n_sigma":
            return llama.llama_sampler_init_top_n_sigma(x)
        case "top_k":
            return llama.llama_sampler_init_top_k(x)
        case "typical_p":
            return llama.llama_sampler_init_typical(x, 1)
        case "top_p":
            return llama.llama_sampler_init_top_p(x, 1)
        case "min_p":
            return llama.llama_sampler_init_min_p(x, 1)
        case "xtc":
            return llama.llama_sampler_init_xtc(x["probability"], x["threshold"], 1, 1)
        case "temperature":
            return llama.llama_sampler_init_temp(x)
        case "mirostat":
            if x["version"] == 1:
                return llama.llama_sampler_init_mirostat(VOCABULARY, 1, x["target"], x["rate"], 100)
            return llama.llama_sampler_init_mirostat_v2(1, x["target"], x["rate"])


class Chain:
    def __init__(self, settings):
        self.chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for name, x in settings.items():
            llama_cpp.llama_sampler_chain_add(self.chain, sampler(name, x))

    def accept(self, token):
        llama_cpp.llama_sampler_accept(self.chain, token)

    def apply(self, logits):
        """The scores of those that are left, None for the others; and the token, where one is chosen."""
        data = (llama_cpp.llama_token_data * len(logits))()
        for i, x in enumerate(logits):
            data[i].id, data[i].logit, data[i].p = i, x, 0.0
        array = llama_cpp.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(self.chain, ctypes.byref(array))
        scores = [None] * len(logits)
        for one in (array.data[i] for i in range(array.size)):
            if one.logit != -float("inf"):
                scores[one.id] = one.logit
        return scores, array.data[array.selected].id if array.selected >= 0 else None


def by_llama_cpp(settings, seen, logits):
    chain = Chain(settings)
    for token in seen:
        chain.accept(token)
    return chain.apply(logits)[0]


PENALTIES = {"last_n": 64, "repeat": 1.0, "frequency": 0.0, "presence": 0.0}
DRY = {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "last_n": 64}
TRANSFORMERS = {
    "repetition": {"repeat": 1.3},
    "repetition below one": {"repeat": 0.7},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "top-p nearly all": {"top_p": 0.97},
    "min-p": {"min_p": 0.08},
    "typical": {"typical_p": 0.5},
    "typical, most": {"typical_p": 0.9},
    "all": {"repeat": 1.2, "temperature": 1.7, "top_k": 15, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.8},
}
LLAMA_CPP = {
    "repetition": {"penalties": PENALTIES | {"repeat": 1.3}},
    "frequency": {"penalties": PENALTIES | {"frequency": 0.4}},
    "presence": {"penalties": PENALTIES | {"presence": 0.9}},
    "a negative presence": {"penalties": PENALTIES | {"presence": -0.5}},
    "a short window": {"penalties": {"last_n": 5, "repeat": 1.5, "frequency": 0.3, "presence": 0.2}},
    "DRY": {"dry": DRY},
    "DRY, one token": {"dry": DRY | {"allowed_length": 1, "multiplier": 0.3}},
    "DRY, a window": {"dry": DRY | {"last_n": 9, "base": 1.2}},
    "DRY, a long one": {"dry": DRY | {"allowed_length": 5}},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "top-k": {"top_k": 5},
    "typical": {"typical_p": 0.5},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.08},
    "XTC": {"xtc": {"probability": 1.0, "threshold": 0.1}},
    "XTC, low": {"xtc": {"probability": 1.0, "threshold": 0.02}},
    "XTC, none likely enough": {"xtc": {"probability": 1.0, "threshold": 0.49}},
    "all": {
        "penalties": {"last_n": 12, "repeat": 1.2, "frequency": 0.1, "presence": 0.3}, "dry": DRY, "top_n_sigma": 2.5, "top_k": 20,
        "typical_p": 0.95, "top_p": 0.9, "min_p": 0.02, "xtc": {"probability": 1.0, "threshold": 0.15}, "temperature": 1.6,
    },
    "another order": {"temperature": 2.0, "xtc": {"probability": 1.0, "threshold": 0.1}, "min_p": 0.1, "top_k": 6},
}
MIROSTAT = [{"version": version, "target": target, "rate": rate} for version in (1, 2) for target, rate in ((2.0, 0.3), (3.5, 0.1))]


def main():
    draw = random.Random(SEED)
    # Few digits, so that the file is small; whoever reads them rounds them to f32.
    logits = lambda spread: [round(draw.gauss(0, spread), 3) for _ in range(VOCABULARY)]
    # Repetitions of several lengths, some of which the end goes on with.
    seen = [3, 7, 11, 2, 9, 4, 7, 11, 2, 5, 3, 7, 11, 2, 28, 7, 2, 7, 11, 2, 9, 4, 7, 11, 2]
    short = lambda scores: [x if x is None else float(f"{x:.7g}") for x in scores]
    cases = []
    for by, run, table in (("transformers", by_transformers, TRANSFORMERS), ("llama.cpp", by_llama_cpp, LLAMA_CPP)):
        for name, settings in table.items():
            # Several spreads: what is nearly flat, and what is nearly certain.
            for spread in (0.5, 1.5, 4.0):
                row = logits(spread)
                cases.append({"by": by, "name": name, "settings": settings, "seen": seen, "logits": row, "scores": short(run(settings, seen, row))})
    texts = []
    for settings in MIROSTAT:
        chain, steps = Chain({"temperature": 0.9, "mirostat": settings}), []
        for _ in range(12):
            row = logits(2.0)
            scores, chosen = chain.apply(row)
            steps.append({"logits": row, "kept": sum(x is not None for x in scores), "chosen": chosen})
        texts.append({"settings": settings, "temperature": 0.9, "steps": steps})
    reference = f"transformers {transformers.__version__}, llama-cpp-python {llama_cpp.__version__}"
    golden = {"reference": reference, "seed": SEED, "cases": cases, "mirostat": texts}
    FIXTURE.write_text(json.dumps(golden, separators=(",", ":")).replace('{"by"', '\n{"by"').replace('{"settings"', '\n{"settings"') + "\n")


if __name__ == "__main__":
    main()
