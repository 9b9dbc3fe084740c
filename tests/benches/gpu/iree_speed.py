"""The shipped models and the random one of 1B through IREE's driver for CUDA, with code for sm_80.

Where `--iree-modules DIR` names modules that `run --prepare DIR` compiled elsewhere, no compiler is needed.
"""

import ctypes
import json
import os
from pathlib import Path

import numpy as np
from common import SHIPPED, TINY, command, equal_tokens, golden, model, report, say, settings, sizes, speeds


def driver() -> dict[str, str]:
    """IREE opens `libcuda.so`. A machine without the development package has only `libcuda.so.1`: a link leads to it."""
    folder = Path(settings()["work"]) / "driver"
    folder.mkdir(exist_ok=True)
    found = None
    if not settings()["rehearse"]:
        ctypes.CDLL("libcuda.so.1")
        found = next(word for word in Path("/proc/self/maps").read_text().split() if "libcuda.so" in word)
    if found is not None:
        (folder / "libcuda.so").unlink(missing_ok=True)
        (folder / "libcuda.so").symlink_to(found)
    return {"LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


def compiler(name: str) -> list[str]:
    """A stand-in for `iree-compile` that gives the module that was compiled before."""
    modules = settings()["iree_modules"]
    if modules is None:
        return []
    script = Path(settings()["work"]) / f"iree-compile-{name}"
    script.write_text(f"""#!/bin/sh
[ "$1" = --version ] && exec cat '{modules}/version.txt'
made='{modules}/{name}.vmfb'
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && out=$2
    [ "$1" = --compile-to=preprocessing ] && made='{modules}/features.mlir'
    shift
done
cat > /dev/null
exec cp "$made" "$out"
""")
    script.chmod(0o755)
    return ["--iree-compile", str(script)]


def main() -> None:
    small, size = settings()["rehearse"], sizes()
    target, environment = (["host"], {}) if small else (["cuda:sm_80"], driver())
    report(devices=command("devices", environment=environment).splitlines())
    work = Path(settings()["work"])
    for name in SHIPPED:
        out = work / f"{name}-iree"
        options = ["--dtype", "f32", "--context", "256", "--chunk", "64"]
        command("export", str(model(name)), "-o", str(out), "--target", *target, *options, *([] if small else compiler(name)))
        answers, speed = [], []
        prompts = golden(name)[:4]
        for prompt in prompts:
            ids = ",".join(map(str, prompt["prompt_tokens"]))
            words = ["generate", str(out), "--tokens", ids, "-n", str(len(prompt["tokens"])), "--ignore-eos", "--json"]
            found = json.loads(command(*words, environment=environment))
            answers.append(found["tokens"])
            speed.append(found["timings"]["decode_tokens_per_s"])
        report(tokens={"model": name, "precision": "IREE", **equal_tokens(answers, [one["tokens"] for one in prompts]),
                       "decode_tokens_per_s": sorted(speed)[len(speed) // 2]})  # fmt: skip
        if answers != [one["tokens"] for one in prompts]:
            found = Path(settings()["out"]) / f"{name}-iree.safetensors"
            ids = ",".join(map(str, prompts[0]["prompt_tokens"] + prompts[0]["tokens"][:8]))
            words = ["generate", str(out), "--tokens", ids, "-n", "2", "--save-logits", str(found), "--all-positions"]
            command(*words, environment=environment)
        say(f"{name}: {speed}")
    name = TINY if small else "1b"
    out = work / f"{name}-iree"
    options = ["--context", str(size.context), "--chunk", str(size.prompt)]
    command("export", str(model(name)), "-o", str(out), "--target", *target, *options, *([] if small else compiler(name)))
    say(f"exported {name}")
    ids = ",".join(map(str, np.random.default_rng(0).integers(0, 256, size.prompt)))
    times = []
    for _ in range(3):
        words = ["generate", str(out), "--tokens", ids, "-n", str(size.steps), "--ignore-eos", "--json"]
        times.append(json.loads(command(*words, environment=environment)))
        say(str(times[-1]["timings"]))
    middle = sorted(times, key=lambda one: one["timings"]["decode_tokens_per_s"])[1]["timings"]
    report(iree={"model": name, "timings": middle, "transfers": times[0].get("transfers")})
    report(speed={"model": name, "batch": 1, "engine": "tracewright, IREE sm_80", "way": "generate",
                  **speeds(name, 1, 1 / middle["decode_tokens_per_s"], middle["prefill_ms"] / 1e3)})  # fmt: skip


if __name__ == "__main__":
    main()
