"""The shipped models, exported and run, on one device, on several, and in several processes: the tokens are those of
transformers (`tests/oracle/README.md`), and devices exchange no weight.

`cargo xtask xla` runs this. It needs the command line that exports: TRACEWRIGHT names it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from tracewright_xla.manifest import Manifest, TensorType

ROOT = Path(__file__).resolve().parents[3]
TRACEWRIGHT = os.environ.get("TRACEWRIGHT")
PYTHON = [sys.executable, "-m"]
TENSOR_PARALLEL = ["--shard", "K,F,V=model"]
MODELS = {"demo": 3, "demo-gemma3": 6}
"""The shipped models and their layers."""


class Exports:
    """Export directories, each made once."""

    folder = tempfile.TemporaryDirectory()

    @classmethod
    @functools.cache
    def of(cls, model: str, *options: str, sizes: tuple[str, ...] = ("--context", "256", "--chunk", "64")) -> Path:
        out = Path(cls.folder.name) / str(len(list(Path(cls.folder.name).iterdir())))
        words = ["export", str(ROOT / model), "-o", str(out), "--engine", "xla", "--dtype", "f32", *sizes, *options]
        command = [str(TRACEWRIGHT), *words]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return out


def golden(model: str) -> list[dict[str, Any]]:
    """Prompts and what transformers answered; those that fit the context."""
    prompts = json.loads((ROOT / f"tests/fixtures/{model}.json").read_text())["prompts"]
    return [prompt for prompt in prompts if len(prompt["prompt_tokens"]) + len(prompt["tokens"]) <= 256]


def answers(export: Path, prompts: list[list[list[int]]], tokens: int) -> dict[str, Any]:
    """See `tests/answers.py`."""
    asked = json.dumps({"prompts": prompts, "tokens": tokens})
    command = [*PYTHON, "tests.answers", str(export)]
    ran = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
    if ran.returncode != 0:
        raise AssertionError(ran.stderr)
    return json.loads(ran.stdout)


def counted(report: dict[str, Any], entry: str) -> dict[str, int]:
    """How often a call has each collective."""
    counts: dict[str, int] = {}
    for op, _, count in report["collectives"][entry]:
        counts[op] = counts.get(op, 0) + count
    return counts


def exchanged(report: dict[str, Any], entry: str) -> Counter[tuple[str, int]]:
    """How often a call has each collective with a result of so many bytes. Several in one count each."""
    found: Counter[tuple[str, int]] = Counter()
    for op, types, count in report["collectives"][entry]:
        for ty in re.findall(r"\w+\[[\d,]*\]", types):
            # HLO's word for i32 is s32.
            found[op, TensorType.parse(re.sub("^s", "i", ty)).bytes] += count
    return found


def planned(model: str, *options: str) -> dict[str, Any]:
    """What `tracewright plan` says of the same program, without XLA."""
    sizes = ["--dtype", "f32", "--context", "256", "--chunk", "64"]
    command = [str(TRACEWRIGHT), "plan", str(ROOT / model), "--json", "--machine", "cpu", *sizes, *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run(export: Path, *words: str) -> list[str]:
    """The words of a command that runs an export."""
    return [*PYTHON, "tracewright_xla", "run", str(export), *words]


def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def processes(export: Path, count: int, *words: str, of: list[Path] | None = None) -> list[subprocess.Popen[str]]:
    """The processes of a group, started."""
    address = f"127.0.0.1:{port()}"
    group = ["--processes", str(count), "--coordinator", address]
    return [
        subprocess.Popen(
            run(of[at] if of else export, *words, *group, "--process-id", str(at)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT / "tools/python",
        )
        for at in range(count)
    ]  # fmt: skip


def ended(started: list[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str, str]]:
    """How all processes ended; those that do not in time fail the test."""
    until, results = time.monotonic() + seconds, []
    try:
        for process in started:
            out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
            results.append((process.returncode, out, err))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return results


@unittest.skipIf(TRACEWRIGHT is None, "TRACEWRIGHT names no command line that exports; `cargo xtask xla` does")
class Shipped(unittest.TestCase):
    def equal(self, model: str, some: int, rows: int, *options: str) -> dict[str, Any]:
        prompts = golden(model)[:: max(1, len(golden(model)) // some)]
        groups = [prompts[at : at + rows] for at in range(0, len(prompts), rows)]
        export = Exports.of(model, *options)
        asked = [[prompt["prompt_tokens"] for prompt in group] for group in groups]
        report = answers(export, asked, len(prompts[0]["tokens"]))
        for group, found in zip(groups, report["answers"], strict=True):
            for prompt, tokens in zip(group, found):
                self.assertEqual(tokens, prompt["tokens"], prompt["prompt_tokens"])
        return report

    def assert_no_weight_moves(self, report: dict[str, Any]) -> None:
        """What is exchanged beside sums are activations: new keys and values, the last token's features."""
        for entry, found in report["collectives"].items():
            for op, ty, _ in found:
                extents = {int(extent) for extent in re.findall(r"\d+", ty.split("[", 1)[1]) if extent != "1"}
                if op != "all-reduce":
                    self.assertLessEqual(len(extents), 2, (entry, ty))
                    self.assertNotIn("all-to-all", op)
                    # Every weight that is divided has the features of the network as one of two axes.
                    self.assertFalse(len(extents) == 2 and extents & {144, 132}, (entry, ty))

    def assert_planned(self, report: dict[str, Any], model: str, *options: str) -> None:
        """What devices hold and exchange is what `tracewright plan` says, by their kind, number and bytes."""
        plan = planned(model, *options)
        for call in plan["calls"]:
            said: Counter[tuple[str, int]] = Counter()
            for one in call["collectives"]:
                said[one["op"], TensorType.parse(one["type"]).bytes] += one["count"]
            self.assertEqual(said, exchanged(report, call["entry"]), (model, call["entry"]))
            held = plan["weight_bytes"] + sum(plan["state_bytes"].values())
            tokens = 4 * (call["tokens"] + 2 * plan["batch"])
            self.assertEqual(report["argument_bytes"][call["entry"]], held + tokens, (model, call["entry"]))

    def test_one_device(self) -> None:
        for model, layers in MODELS.items():
            with self.subTest(model=model):
                report = self.equal(model, 64, 1)
                self.assert_planned(report, model)
                for entry in report["collectives"]:
                    self.assertEqual(counted(report, entry), {})
                    self.assertEqual(report["aliases"][entry], 2 * layers, "keys and values of each layer in place")

    def test_two_devices_share_each_weight(self) -> None:
        for model, layers in MODELS.items():
            with self.subTest(model=model):
                report = self.equal(model, 8, 1, "--mesh", "model=2", *TENSOR_PARALLEL)
                self.assert_planned(report, model, "--mesh", "model=2", *TENSOR_PARALLEL)
                # Two for each layer, the embedding, and two for the token that the parts of the logits favour.
                self.assertEqual(counted(report, "decode"), {"all-reduce": 2 * layers + 3})
                for entry in report["collectives"]:
                    self.assertEqual(set(counted(report, entry)), {"all-reduce"})

    def test_rows_and_weights_are_divided(self) -> None:
        for model, layers in MODELS.items():
            with self.subTest(model=model):
                mesh = ["--mesh", "data=2,model=2", *TENSOR_PARALLEL, "--shard", "B=data", "--batch", "2"]
                report = self.equal(model, 8, 2, *mesh)
                # One more of each for the features of the last token, which lies elsewhere in each row.
                self.assertEqual(counted(report, "decode"), {"all-reduce": 2 * layers + 4, "collective-permute": 1})
                self.assert_no_weight_moves(report)

    def test_key_value_heads_are_held_twice(self) -> None:
        for model, layers in MODELS.items():
            with self.subTest(model=model):
                report = self.equal(model, 8, 1, "--mesh", "model=4", *TENSOR_PARALLEL)
                self.assert_planned(report, model, "--mesh", "model=4", *TENSOR_PARALLEL)
                self.assertEqual(counted(report, "decode"), {"all-reduce": 2 * layers + 3})
                for entry in report["collectives"]:
                    self.assertEqual(set(counted(report, entry)), {"all-reduce"})

    def test_slots_of_keys_and_values_are_divided(self) -> None:
        """For long contexts: each layer sums over slots three times, for the softmax's maximum and sum and for the values."""
        report = self.equal("demo", 8, 1, "--mesh", "seq=2", "--shard", "N=seq")
        self.assert_planned(report, "demo", "--mesh", "seq=2", "--shard", "N=seq")
        for entry in report["collectives"]:
            self.assertEqual(counted(report, entry), {"all-reduce": 3 * MODELS["demo"]})

    def test_experts_are_divided(self) -> None:
        """Each device computes its own of five experts; what recipes make of the checkpoint is read by slices too."""
        model = "tests/fixtures/mixtral"
        prompts = json.loads((ROOT / model / "golden.json").read_text())["prompts"][:4]
        export = Exports.of(model, "--mesh", "expert=5", "--shard", "X=expert", sizes=("--context", "40", "--chunk", "8"))
        report = answers(export, [[prompt["prompt_tokens"]] for prompt in prompts], 20)
        self.assertEqual(report["answers"], [[prompt["tokens"]] for prompt in prompts])
        for entry in report["collectives"]:
            self.assertEqual(set(counted(report, entry)), {"all-reduce"})

    def test_a_lost_sharding_shows(self) -> None:
        """A weight, or what a layer remembers, that is whole on each device: it holds more, or they exchange it."""
        options = ["--mesh", "model=2", *TENSOR_PARALLEL]
        prompt, export = golden("demo")[0], Exports.of("demo", *options)
        manifest = json.loads((export / "manifest.json").read_text())
        decode = next(entry for entry in manifest["entry_points"] if entry["name"] == "decode")
        weight = f"%weight{decode['weights'].index('model.layers.1.mlp.down_proj.weight')}"
        state = f"%arg{next(i for i, value in enumerate(decode['arguments']) if value['name'] == 'keys1')}"
        as_it_is = answers(export, [[prompt["prompt_tokens"]]], 8)
        for lost, name in [(weight, "model.layers.1.mlp.down_proj.weight"), (state, "keys1")]:
            planted = Path(Exports.folder.name) / f"planted-{name}"
            shutil.copytree(export, planted)
            for entry in manifest["entry_points"]:
                path = planted / entry["module"]
                pattern = rf"({re.escape(lost)}: tensor<[^>]*> {{sdy\.sharding = #sdy\.sharding<@mesh, )\[[^]]*\]"
                rank = 2 if lost == weight else 4
                text, found = re.subn(pattern, rf"\1[{', '.join(['{}'] * rank)}]", path.read_text())
                self.assertEqual(found, 1)
                path.write_text(text)
                entry["module_blake3"] = blake3(text.encode()).hexdigest()
            spoiled = json.loads(json.dumps(manifest))
            for value in spoiled["weights"] + [value for entry in spoiled["entry_points"] for value in entry["arguments"]]:
                if name in (value.get("key"), value.get("name")):
                    value["sharding"] = [[] for _ in value["sharding"]]
            (planted / "manifest.json").write_text(json.dumps(spoiled))
            command = [*PYTHON, "tests.answers", str(planted)]
            asked = json.dumps({"prompts": [], "tokens": 0})
            ran = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
            if lost == state:
                # What a call takes is no longer what the one before gave.
                self.assertNotEqual(ran.returncode, 0)
                self.assertIn("`prefill` takes or gives other state", ran.stderr)
                continue
            self.assertEqual(ran.returncode, 0, ran.stderr)
            report = json.loads(ran.stdout)
            self.assertGreater(report["argument_bytes"]["decode"], as_it_is["argument_bytes"]["decode"])

    def test_a_module_that_was_changed_is_refused_as_verify_does(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            changed = shutil.copytree(Exports.of("demo"), Path(folder) / "changed")
            path = changed / "decode.mlir"
            path.write_text(path.read_text().replace("= stablehlo.add ", "= stablehlo.subtract ", 1))
            words = run(changed, "--tokens", "5", "-n", "3")
            ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
            verify = [str(TRACEWRIGHT), "verify", str(changed)]
            verified = subprocess.run(verify, capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stdout, verified.returncode), (1, "", 1))
        said = re.escape(f"`{path}` is not the module that the manifest names (blake3 ")
        self.assertRegex(ran.stderr, f"^error: {said}")
        self.assertRegex(verified.stderr, said)

    def test_logits_that_are_no_numbers_are_an_error(self) -> None:
        """On whichever device they are."""
        key = "model.embed_tokens.weight"
        for options in ([], ["--mesh", "model=2", *TENSOR_PARALLEL]):
            export = Exports.of("demo", *options)
            weight = Manifest.read(export).weights[key]
            rows, width = weight.type.shape
            with tempfile.TemporaryDirectory() as folder:
                content = (ROOT / "demo/model.safetensors").read_bytes()
                for token, value in ((7, math.nan), (rows - 1, math.inf)):
                    # The embeddings are the head, too: a row of them makes one logit.
                    start = weight.offset + token * width * weight.stored.itemsize
                    row = np.full(width, value, weight.stored).tobytes()
                    changed = content[:start] + row + content[start + len(row) :]
                    (Path(folder) / "model.safetensors").write_bytes(changed)
                    words = run(export, "--tokens", "5,17", "-n", "3", "--checkpoint", folder)
                    with self.subTest(options=options, token=token):
                        ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
                        self.assertEqual((ran.returncode, ran.stdout), (1, ""), ran.stderr)
                        self.assertRegex(ran.stderr, rf"step 0: logit of token {token} is (NaN|inf), expected a number")

    def test_output_that_nobody_takes_is_told_once(self) -> None:
        words = run(Exports.of("demo"), "-p", "Once upon a time", "-n", "3", "--ignore-eos")
        with open("/dev/full", "w") as full:
            ran = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT / "tools/python", check=False)
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, r"^error: .*No space left on device\n$")
        read, write = os.pipe()
        os.close(read)
        with open(write, "w") as closed:
            ran = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, text=True, cwd=ROOT / "tools/python", check=False)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_an_interrupt_while_xla_compiles_is_one(self) -> None:
        code = """import os, sys
from tracewright_xla import __main__, module
made = module.Module.__init__
def make(*given):
    os.system(f"(sleep 0.1; kill -INT {os.getpid()}) &")
    made(*given)
module.Module.__init__ = make
sys.exit(__main__.main(["run", sys.argv[1], "--tokens", "5"]))"""
        words = [sys.executable, "-c", code, str(Exports.of("demo"))]
        ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (130, "", "interrupted\n"))

    def test_a_prompt_that_is_no_text_is_an_error(self) -> None:
        words = [*run(Exports.of("demo"), "-n", "3", "-p"), b"Once \xff"]
        ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertRegex(ran.stderr, r"^error: the prompt is no UTF-8")

    def test_each_device_holds_what_the_export_says(self) -> None:
        for options in (["--mesh", "model=2"], ["--mesh", "model=4"]):
            export = Exports.of("demo", *options, *TENSOR_PARALLEL)
            manifest = Manifest.read(export)
            sizes, entry = dict(manifest.axes), manifest.entries["decode"]
            divided = [(value.type, value.sharding) for value in entry.arguments]
            divided += [(manifest.weights[key].type, manifest.weights[key].sharding) for key in entry.weights]
            expected = sum(
                ty.bytes // math.prod(sizes[axis] for axes in sharding for axis in axes) for ty, sharding in divided
            )
            asked = json.dumps({"prompts": [], "tokens": 0})
            command = [*PYTHON, "tests.answers", str(export)]
            ran = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=ROOT / "tools/python", check=True)
            self.assertEqual(json.loads(ran.stdout)["argument_bytes"]["decode"], expected)
            said = json.loads((export / "manifest.json").read_text())["device_bytes"]
            held = sum(
                ty.bytes // math.prod(sizes[axis] for axes in sharding for axis in axes)
                for ty, sharding in divided[len(entry.arguments) :]
            )
            self.assertEqual(held, said)


@unittest.skipIf(TRACEWRIGHT is None, "TRACEWRIGHT names no command line that exports; `cargo xtask xla` does")
class Groups(unittest.TestCase):
    def equal(self, model: str, count: int, rows: int, *options: str) -> None:
        export = Exports.of(model, *options)
        prompts = golden(model)[:rows]
        ids = [f"--tokens={','.join(map(str, prompt['prompt_tokens']))}" for prompt in prompts]
        results = ended(processes(export, count, *ids, "-n", "48", "--ignore-eos", "--json"), 300)
        for code, _, err in results:
            self.assertEqual(code, 0, err)
        self.assertEqual([out for _, out, _ in results[1:]], [""] * (count - 1), "one of them speaks")
        report = json.loads(results[0][1])
        self.assertEqual(report["tokens"], [prompt["tokens"] for prompt in prompts])
        # Each reads its own parts: a little more than its share, for norms.
        parts = 3 if count == 4 and options[1] == "model=4" else 2
        stored = (ROOT / model / "model.safetensors").stat().st_size
        self.assertLess(report["bytes_read"], 1.1 * stored / parts)

    def test_two_processes(self) -> None:
        for model in MODELS:
            with self.subTest(model=model):
                self.equal(model, 2, 1, "--mesh", "model=2", *TENSOR_PARALLEL)

    def test_four_processes(self) -> None:
        for model in MODELS:
            with self.subTest(model=model):
                self.equal(model, 4, 1, "--mesh", "model=4", *TENSOR_PARALLEL)
                self.equal(model, 4, 2, "--mesh", "data=2,model=2", *TENSOR_PARALLEL, "--shard", "B=data", "--batch", "2")

    def test_two_processes_with_two_devices_each(self) -> None:
        self.equal("demo", 2, 1, "--mesh", "model=4", *TENSOR_PARALLEL)

    def test_equal_seeds_draw_equal_tokens(self) -> None:
        options = ["--mesh", "model=2", *TENSOR_PARALLEL]
        words = ["-p", "Once upon a time", "-n", "24", "--temp", "0.8", "--seed", "7", "--ignore-eos", "--json"]
        export = Exports.of("demo", *options)
        alone = subprocess.run(run(export, *words), capture_output=True, text=True, cwd=ROOT / "tools/python", check=True)
        (code, out, err), _ = ended(processes(export, 2, *words), 300)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["tokens"], json.loads(alone.stdout)["tokens"])

    def test_a_process_that_dies_ends_the_others(self) -> None:
        export = Exports.of("demo", "--mesh", "model=2", *TENSOR_PARALLEL)
        for dies in (1, 0):
            with self.subTest(dies=dies):
                started = processes(export, 2, "-p", "Once upon a time", "-n", "200", "--ignore-eos")
                assert started[0].stdout is not None
                self.assertNotEqual(started[0].stdout.read(1), "", "it steps")
                started[dies].kill()
                begun = time.monotonic()
                results = ended(started, 60)
                self.assertLess(time.monotonic() - begun, 30)
                code, _, err = results[1 - dies]
                self.assertNotEqual(code, 0)
                self.assertRegex(err, r"process \d lost another one of the 2|distributed service detected fatal errors")

    def named(self, results: list[tuple[int, str, str]], words: str) -> None:
        """All processes fail, and say the same."""
        for code, out, err in results:
            self.assertEqual((code, out), (1, ""), err)
            self.assertRegex(err, words)

    def test_a_missing_file_is_named_by_all(self) -> None:
        export = Exports.of("demo", "--mesh", "model=2", *TENSOR_PARALLEL)
        with tempfile.TemporaryDirectory() as empty:
            address = f"127.0.0.1:{port()}"
            group = ["--tokens", "5", "--processes", "2", "--coordinator", address, "--process-id"]
            started = [
                subprocess.Popen(run(export, *group, str(at), *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, cwd=ROOT / "tools/python")
                for at, words in enumerate([[], ["--checkpoint", empty]])
            ]  # fmt: skip
            self.named(ended(started, 60), r"process 1: the checkpoint is not the one .*\n.*model\.safetensors` is missing")

    def test_a_module_that_cannot_be_read_is_named_by_all(self) -> None:
        export = Exports.of("demo", "--mesh", "model=2", *TENSOR_PARALLEL)
        with tempfile.TemporaryDirectory() as folder:
            other = shutil.copytree(export, Path(folder) / "other")
            (other / "decode.mlir").unlink()
            started = processes(export, 2, "--tokens", "5", of=[export, other])
            self.named(ended(started, 60), r"process 1: .*decode\.mlir`, which the manifest names, cannot be read")

    def test_another_program_is_named_by_all(self) -> None:
        options = ["--mesh", "model=2", *TENSOR_PARALLEL]
        exports = [Exports.of("demo", *options), Exports.of("demo", *options, "--simplify", "off")]
        self.named(ended(processes(exports[0], 2, "--tokens", "5", of=exports), 60), "process 1 has program")

    def test_devices_that_are_not_those_of_the_mesh_are_named(self) -> None:
        export = Exports.of("demo", "--mesh", "model=4", *TENSOR_PARALLEL)
        words = run(export, "--tokens", "5", "--devices", "2")
        ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("the mesh `model=4` has 4 devices and there are 2", ran.stderr)
        self.named(ended(processes(export, 3, "--tokens", "5"), 60), "which 3 processes cannot share equally")


if __name__ == "__main__":
    unittest.main()
