"""A network of a published size, with random weights, in processes that hold a part of it each.

`cargo xtask xla` runs this. It needs 3 GB of disk for a while.
"""

from __future__ import annotations

import json
import resource
import subprocess
import tempfile
import unittest
from pathlib import Path

from .test_shipped import PYTHON, ROOT, TRACEWRIGHT, ended, processes

PROMPT = "5,17,3,99,1000,20000,42"
TOKENS = 8
ROUNDING = 2**-6
"""Tokens may differ where the two most likely ones are as close: sums in another order round bf16 otherwise."""


@unittest.skipIf(TRACEWRIGHT is None, "TRACEWRIGHT names no command line that exports; `cargo xtask xla` does")
class Large(unittest.TestCase):
    def test_each_of_two_processes_holds_half_of_a_billion_parameters(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model, alone, divided = (Path(folder) / name for name in ("model", "alone", "divided"))
            config = ROOT / "models/presets/llama-3.2-1b.json"
            self.tracewright("random", str(config), "-o", str(model))
            for out, options in ((alone, []), (divided, ["--mesh", "model=2"])):
                self.tracewright("export", str(model), "-o", str(out), "--engine", "xla", "--context", "512", *options)
            words = ["--tokens", PROMPT, "-n", str(TOKENS), "--ignore-eos", "--json"]
            results = ended(processes(divided, 2, *words), 300)
            for code, _, err in results:
                self.assertEqual(code, 0, err)
            weights = (model / "model.safetensors").stat().st_size
            # The largest of all processes so far: no other one is as large.
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            self.assertLess(peak, 0.6 * weights + 1e9)
            report = json.loads(results[0][1])
            command = [*PYTHON, "tests.gaps", str(alone), PROMPT, str(TOKENS)]
            ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "tools/python", check=True)
            sure = json.loads(ran.stdout)
            for at, (found, expected) in enumerate(zip(report["tokens"][0], sure["tokens"], strict=True)):
                if found != expected:
                    self.assertLess(sure["gaps"][at], ROUNDING, f"token {at}")
                    break

    def tracewright(self, *words: str) -> None:
        subprocess.run([str(TRACEWRIGHT), *words], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    unittest.main()
