"""What all parts of the benchmark share: paths, sizes, timing, and how a part reports its results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ("demo", "demo-gemma3")
TINY = "tiny"
"""A model for rehearsals, which has the shape of Llama."""

MOST = 3.0
"""Seconds after which no more runs are started, once there are two."""

MARK = "RESULT "
"""Begins each line of output that holds a result."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    prompt: int
    """Tokens of the prompt, which one prefill takes."""
    context: int
    """Tokens that the KV cache has room for."""
    steps: int
    """Tokens decoded in a run."""
    runs: int
    """Runs that the median is taken of."""
    batches: tuple[int, ...] = (1, 8)


FULL = Sizes(prompt=512, context=1024, steps=64, runs=5)
SMALL = Sizes(prompt=16, context=64, steps=8, runs=3)


def settings() -> dict[str, Any]:
    """The settings that `run` passes to a part."""
    return json.loads(os.environ["TRACEWRIGHT_GPU_BENCH"])


def sizes() -> Sizes:
    """The sizes of this run."""
    return SMALL if settings()["rehearse"] else FULL


def report(**result: Any) -> None:
    """Prints a result. `run` keeps it even if the part fails or runs out of time afterwards."""
    print(MARK + json.dumps(result), flush=True)


def say(text: str) -> None:
    """Prints progress to stderr, with the seconds since the part started."""
    print(f"[{time.perf_counter() - _BEGUN:6.1f} s] {text}", file=sys.stderr, flush=True)


_BEGUN = time.perf_counter()


def medians(run: Callable[[], None], runs: int) -> float:
    """Seconds of one run, as the median of several. `run` waits for the device; the first call is not counted."""
    run()
    times: list[float] = []
    while len(times) < runs and (len(times) < 2 or sum(times) < MOST):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def command(*words: str, environment: dict[str, str] | None = None) -> str:
    """Runs `tracewright` and returns its standard output."""
    line = [settings()["tracewright"], *words]
    ran = subprocess.run(line, capture_output=True, text=True, env={**os.environ, **(environment or {})}, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"`tracewright {' '.join(words)[:200]}` failed: {ran.stderr.strip()}")
    return ran.stdout


def device() -> list[str]:
    """The options that select the device."""
    if not settings()["rehearse"]:
        return ["--device", "cuda"]
    return ["--device", "cpu", *(["--plugin", settings()["plugin"]] if settings()["plugin"] else [])]


def model(name: str) -> Path:
    """The folder of a model: a shipped one, or random weights, which `run` starts to write at its beginning."""
    if name in SHIPPED:
        return ROOT / name
    folder = Path(settings()["work"]) / name
    while not (folder / "DONE").exists():
        if (folder / "FAILED").exists():
            raise RuntimeError(f"the weights of {name} could not be written: {(folder / 'FAILED').read_text()}")
        time.sleep(0.2)
    return folder


def export(name: str, *options: str) -> Path:
    """The model's export for XLA. Exports with other options are other folders."""
    out = Path(settings()["work"]) / "-".join([name, "xla", *(option.strip("-") for option in options)])
    command("export", str(model(name)), "-o", str(out), "--engine", "xla", *options)
    return out


def golden(name: str) -> list[dict[str, Any]]:
    """Prompts and the tokens that transformers chose on a CPU in f32: a quarter of those that fit a context of 256."""
    prompts = json.loads((ROOT / f"tests/fixtures/{name}.json").read_text())["prompts"]
    prompts = [one for one in prompts if len(one["prompt_tokens"]) + len(one["tokens"]) <= 256]
    return prompts[:1] if settings()["rehearse"] else prompts[::4]


def equal_tokens(found: list[list[int]], expected: list[list[int]]) -> dict[str, Any]:
    """How many answers are equal, and where the first of the others diverges."""
    different = [at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
    first = None
    if different:
        pairs = zip(found[different[0]], expected[different[0]])
        first = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return {"answers": len(expected), "equal": len(expected) - len(different), "first_difference_at": first}


def counts(name: str) -> dict[str, int]:
    """Of a Llama: bytes of weights that a decode step reads, and operations of its matrices for one token of a prompt.

    An embedding table that is not also the head is read by row, and the head sees the last token alone; neither counts.
    """
    folder = model(name)
    config = json.loads((folder / "config.json").read_text())
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    read, layers = 0, 0
    for key, tensor in header.items():
        if key == "__metadata__":
            continue
        start, end = tensor["data_offsets"]
        if key != "model.embed_tokens.weight" or config.get("tie_word_embeddings"):
            read += end - start
        if ".layers." in key and len(tensor["shape"]) == 2:
            layers += tensor["shape"][0] * tensor["shape"][1]
    return {"step_bytes": read, "token_operations": 2 * layers}


def speeds(name: str, batch: int, decode_s: float | None, prefill_s: float | None) -> dict[str, Any]:
    """Tokens per second, and the bytes and operations per second behind them."""
    count, found = counts(name), {}
    if decode_s is not None:
        found |= {"step_ms": decode_s * 1e3, "decode_tokens_per_s": batch / decode_s}
        found["bytes_per_s"] = count["step_bytes"] / decode_s
    if prefill_s is not None:
        tokens = batch * sizes().prompt
        found |= {"prefill_ms": prefill_s * 1e3, "prefill_tokens_per_s": tokens / prefill_s}
        found["operations_per_s"] = count["token_operations"] * tokens / prefill_s
    return found
