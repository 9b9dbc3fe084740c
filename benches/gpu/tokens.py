"""Whether the shipped models, exported for XLA in f32, choose the tokens that transformers chose on a CPU.

    tokens.py reference FILE.npz    writes the CPU's logits
    tokens.py compare FILE.npz      compares tokens, and logits with those
"""

import sys
import time
from pathlib import Path

import numpy as np
from common import SHIPPED, equal_tokens, export, golden, report, say

from tracewright_xla.module import Module
from tracewright_xla.program import Program

OPTIONS = ("--dtype", "f32", "--context", "256", "--chunk", "64")


def load(name: str, precision: str) -> Program:
    """A shipped model as it is exported, or with matmuls in XLA's default precision."""
    program = Program.load(export(name, *OPTIONS), entries=["prefill", "prefill_short", "decode", "score"])
    if precision == "default":
        for entry in program.manifest.entries.values():
            text = program.manifest.text(entry).replace(", precision = [HIGHEST, HIGHEST]", "")
            program._modules[entry.name] = Module(entry, text, program._mesh)
    return program


def score(program: Program, name: str) -> np.ndarray:
    """The logits of every position of a text of 64 tokens."""
    prompt = max(golden(name), key=lambda one: len(one["prompt_tokens"]) + len(one["tokens"]))
    text = [*prompt["prompt_tokens"], *prompt["tokens"]][:64]
    tokens = np.zeros((1, 64), np.int32)
    tokens[0, : len(text)] = text
    program._state = {}
    results = program.call("score", tokens, np.zeros(1, np.int32), np.array([len(text)], np.int32))
    return np.asarray(results["logits"]).reshape(64, -1)[: len(text)].astype(np.float64)


def main() -> None:
    mode, file = sys.argv[1], Path(sys.argv[2])
    if mode == "reference":
        np.savez(file, **{name: score(load(name, "exported"), name) for name in SHIPPED})
        return
    reference = np.load(file)
    for name in SHIPPED:
        for precision in ("exported", "default"):
            start = time.perf_counter()
            program = load(name, precision)
            prompts = golden(name)
            answers = []
            for prompt in prompts:
                rows = program.generate([prompt["prompt_tokens"]], len(prompt["tokens"]))
                answers.append(rows[0].tokens)
            found = equal_tokens(answers, [prompt["tokens"] for prompt in prompts])
            logits, expected = score(program, name), reference[name]
            error = np.linalg.norm(logits - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
            report(tokens={"model": name, "precision": precision, **found, "logits_error": float(error.max()),
                           "seconds": round(time.perf_counter() - start, 1)})  # fmt: skip
            say(f"{name} {precision}: {found}")


if __name__ == "__main__":
    main()
