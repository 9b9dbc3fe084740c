"""Whether the shipped models choose the tokens that transformers chose on a CPU, and what bf16 with kernels loses.

    tokens.py [MODEL]

The shipped models run in f32. With random weights, the logits of MODEL in bf16, with Tracewright's kernels and without, are
compared with its logits in f32 without kernels.
"""

import json
import sys
from pathlib import Path

import numpy as np
from common import SHIPPED, command, device, equal_tokens, golden, model, report, say, settings


def generate(folder: Path, tokens: list[int], count: int, *options: str) -> dict:
    """What `tracewright generate` reports after `count` new tokens."""
    words = ["--tokens", ",".join(map(str, tokens)), "-n", str(count), "--ignore-eos", "--json", "--engine", "xla", *device()]
    return json.loads(command("generate", str(folder), *words, *options))


def logits(name: str, *options: str) -> np.ndarray:
    """The logits after 65 tokens. Prefill reads 64 of them, and a decode call reads the last one."""
    tokens = [at * 7919 % 500 for at in range(65)]
    file = Path(settings()["work"]) / f"{name}-logits.safetensors"
    generate(model(name), tokens, 1, "--save-logits", str(file), "--context", "256", "--chunk", "64", *options)
    with open(file, "rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        start, end = header["logits"]["data_offsets"]
        content = np.frombuffer(opened.read()[start:end], np.float32).reshape(header["logits"]["shape"])
    return content[0].astype(np.float64)


def main() -> None:
    for name in SHIPPED:
        answers, prompts = [], golden(name)[:4]
        for prompt in prompts:
            found = generate(model(name), prompt["prompt_tokens"], len(prompt["tokens"]), "--dtype", "f32")
            answers.append(found["tokens"])
        found = equal_tokens(answers, [prompt["tokens"] for prompt in prompts])
        report(tokens={"model": name, "precision": "f32", **found})
        say(f"{name}: {found}")
    if len(sys.argv) > 1:
        name = sys.argv[1]
        exact = logits(name, "--dtype", "f32", "--kernels", "off")
        for kernels in ("off", "on"):
            found = logits(name, "--dtype", "bf16", "--kernels", kernels)
            error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
            same = int(found.argmax() == exact.argmax())
            report(tokens={"model": name, "precision": f"bf16, kernels {kernels}", "answers": 1, "equal": same,
                           "logits_error": error})  # fmt: skip
            say(f"{name}, kernels {kernels}: {error:.2e}")


if __name__ == "__main__":
    main()
