"""The speed of a model through XLA, as `tracewright bench` measures it: each call returns its token to the host.

    native_speed.py MODEL              the model as it is, with Tracewright's CUDA kernels and with XLA alone
    native_speed.py MODEL q8,q4        the model with quantized weights, with Tracewright's kernel for attention
"""

import json
import sys
from pathlib import Path

from common import command, counts, device, model, report, say, settings, sizes, speeds


def bench(name: str, what: str, variants: list[str], *options: str) -> list[dict]:
    """The cases of one measurement."""
    size, file = sizes(), Path(settings()["work"]) / f"{name}-{what}.json"
    of = ["--context", str(size.context), "--chunk", str(size.prompt), "--batch", ",".join(map(str, size.batches))]
    words = ["--engine", "xla", *device(), *variants, "--rounds", str(size.runs), "--json", str(file), *of, *options]
    command("bench", what, str(model(name)), *words)
    return json.loads(file.read_text())["cases"]


def engine(case: dict) -> str:
    """The name of the variant in the table."""
    variant = case["variant"]
    if variant["quant"] != "none":
        return f"tracewright, {variant['quant']}"
    return "tracewright, kernels" if variant["kernels"] == "on" else "tracewright, XLA alone"


def main() -> None:
    name, size = sys.argv[1], sizes()
    variants = ["--quant", sys.argv[2]] if len(sys.argv) > 2 else ["--kernels", "on,off"]
    report(counts={"model": name, **counts(name)})
    decoded = bench(name, "decode", variants, "--depth", str(size.prompt), "--tokens", str(size.steps))
    say("decoded")
    read = bench(name, "prefill", variants, "--tokens", str(size.prompt))
    key = lambda case: (case["variant"]["batch"], engine(case))  # noqa: E731
    prefill = {key(case): case["seconds"]["median"] for case in read}
    for case in decoded:
        batch, way = key(case)
        seconds = case["seconds"]["median"]
        # A step reads fewer bytes of quantized weights than the checkpoint has.
        found = speeds(name, int(batch), seconds, prefill[batch, way]) | {"bytes_per_s": case["gb_per_s"] * 1e9}
        report(speed={"model": name, "batch": int(batch), "engine": way, "way": "bench", **found})
        say(f"batch {batch}, {way}: {seconds * 1e3:.3f} ms a step")


if __name__ == "__main__":
    main()
