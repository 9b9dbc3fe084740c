"""The speed of a model through XLA, as `tracewright bench` measures it: each call returns its token to the host.

    native_speed.py MODEL
"""

import json
import sys
from pathlib import Path

from common import command, counts, device, model, report, say, settings, sizes, speeds


def bench(name: str, what: str, *options: str) -> list[dict]:
    """The cases of one measurement."""
    size, file = sizes(), Path(settings()["work"]) / f"{name}-{what}.json"
    of = ["--context", str(size.context), "--chunk", str(size.prompt), "--batch", ",".join(map(str, size.batches))]
    words = ["--engine", "xla", *device(), "--kernels", "on,off", "--rounds", str(size.runs), "--json", str(file), *of, *options]
    command("bench", what, str(model(name)), *words)
    return json.loads(file.read_text())["cases"]


def main() -> None:
    name, size = sys.argv[1], sizes()
    report(counts={"model": name, **counts(name)})
    decoded = bench(name, "decode", "--depth", str(size.prompt), "--tokens", str(size.steps))
    say("decoded")
    read = bench(name, "prefill", "--tokens", str(size.prompt))
    key = lambda case: (case["variant"]["batch"], case["variant"]["kernels"])  # noqa: E731
    prefill = {key(case): case["seconds"]["median"] for case in read}
    for case in decoded:
        batch, kernels = key(case)
        engine = "tracewright, kernels" if kernels == "on" else "tracewright, XLA alone"
        seconds = case["seconds"]["median"]
        report(speed={"model": name, "batch": int(batch), "engine": engine, "way": "bench",
                      **speeds(name, int(batch), seconds, prefill[batch, kernels])})  # fmt: skip
        say(f"batch {batch}, kernels {kernels}: {seconds * 1e3:.3f} ms a step")


if __name__ == "__main__":
    main()
