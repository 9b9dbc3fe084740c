"""How tokens are chosen of logits, without a network."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from argparse import ArgumentTypeError
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from tracewright_xla.__main__ import _devices, _ids, _parser, _rest, _run, main
from tracewright_xla.errors import LogitsError, MeshError, PromptError, TracewrightError
from tracewright_xla.manifest import Manifest
from tracewright_xla.mesh import device_mesh
from tracewright_xla.program import Program, _sample

from .test_manifest import manifest, value

ROOT = Path(__file__).resolve().parents[3]
NAN, INF = float("nan"), float("inf")


class Answers(Program):
    """A program that answers each call with the next logits of two rows."""

    def __init__(self, *answers: list[list[float]], token: int | None = None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "manifest.json").write_text(json.dumps(manifest()))
            read = Manifest.read(folder)
        super().__init__(read, device_mesh(read), {}, 0)
        self._answers = iter(answers)
        self._token = token

    def call(self, name: str, tokens: np.ndarray, start: np.ndarray, count: np.ndarray) -> dict[str, jax.Array]:
        logits = jnp.array(next(self._answers), jnp.float32)
        token = logits.argmax(-1) if self._token is None else jnp.full(2, self._token)
        return {"logits": logits, "token": token.astype(jnp.int32)}


class Extended(Program):
    """A program whose rotary embedding is another one for more than three tokens. It records its calls."""

    def __init__(self) -> None:
        content = manifest()
        for entry in content["entry_points"]:
            entry["arguments"].append(value("above", "extended(original 3)", "i32[2]"))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "manifest.json").write_text(json.dumps(content))
            read = Manifest.read(folder)
        super().__init__(read, device_mesh(read), {}, 0)
        self.calls: list[tuple[list[int], list[int], list[int]]] = []

    def call(
        self, name: str, tokens: np.ndarray, start: np.ndarray, count: np.ndarray, length: np.ndarray | None = None
    ) -> dict[str, jax.Array]:
        above = next(value for value in self.manifest.entries[name].arguments if value.original)
        flags = self._argument(above, {"length": start + count if length is None else length})
        self.calls.append((start.tolist(), count.tolist(), np.asarray(flags).tolist()))
        return {"logits": jnp.zeros((2, 7)), "token": jnp.zeros(2, jnp.int32)}


FINE = [0.0, 1.0, 5.0, -INF, 2.0, 3.0, 4.0]


class Rows(unittest.TestCase):
    def test_a_row_begins_again_when_it_is_too_long_for_its_rotary_embedding(self) -> None:
        program = Extended()
        program.generate([[1, 2], [1, 2, 3, 4, 5, 6, 1, 2, 3]], 4)
        self.assertEqual(
            program.calls,
            [
                # A long prompt is one from its first call on.
                ([0, 0], [2, 8], [0, 1]),
                ([2, 8], [1, 1], [0, 1]),
                # The first row has a fourth token: all of them are read again.
                ([0, 9], [4, 1], [1, 1]),
                ([4, 10], [1, 1], [1, 1]),
                ([5, 11], [0, 1], [1, 1]),
            ],
        )


class Choices(unittest.TestCase):
    def test_logits_that_are_no_numbers_are_an_error(self) -> None:
        for wrong, said in [(NAN, "NaN"), (INF, "inf")]:
            bad = [0.0, 1.0, 9.0, 0.0, wrong, 0.0, wrong]
            for temperature in (0.0, 0.8):
                with self.subTest(wrong=wrong, temperature=temperature), self.assertRaisesRegex(
                    LogitsError, f"step 1: logit of token 4 is {said}, expected a number below infinity"
                ):
                    Answers([FINE, FINE], [FINE, bad]).generate([[1], [2]], 3, temperature)

    def test_one_logit_must_be_above_minus_infinity(self) -> None:
        for temperature in (0.0, 0.8):
            with self.subTest(temperature=temperature), self.assertRaisesRegex(
                LogitsError, "step 0: all 7 logits are -inf, expected at least one finite logit"
            ):
                Answers([[-INF] * 7, FINE]).generate([[1]], 3, temperature)

    def test_a_row_that_is_done_may_have_any_logits(self) -> None:
        rows = Answers([FINE, [NAN] * 7]).generate([[1]], 1)
        self.assertEqual(rows[0].tokens, [2])

    def test_a_program_chooses_one_of_its_tokens(self) -> None:
        for token in (7, -1):
            with self.subTest(token=token), self.assertRaisesRegex(LogitsError, f"the token {token}, expected one below 7"):
                Answers([FINE, FINE], token=token).generate([[1]], 1)

    def test_settings_that_are_none_are_refused(self) -> None:
        for temperature in (NAN, INF, -1.0, -INF):
            with self.subTest(temperature=temperature), self.assertRaisesRegex(PromptError, "expected a number from 0"):
                Answers([FINE, FINE]).generate([[1]], 1, temperature)
        for tokens, seed in ((-1, 0), (1, -1)):
            with self.subTest(tokens=tokens, seed=seed), self.assertRaisesRegex(PromptError, "expected numbers from 0"):
                Answers([FINE, FINE]).generate([[1]], tokens, 0.0, seed)

    def test_no_temperature_is_too_low_or_too_high(self) -> None:
        logits = np.array(FINE, np.float32)
        for temperature in (1e-38, 5e-324):
            self.assertEqual({_sample(logits, temperature, np.random.default_rng(at)) for at in range(20)}, {2})
        drawn = {_sample(logits, 1e300, np.random.default_rng(at)) for at in range(200)}
        self.assertEqual(drawn, {0, 1, 2, 4, 5, 6}, "all but the one at minus infinity")

    def test_no_draw_is_past_the_last_token(self) -> None:
        draw = mock.Mock(random=lambda: 1 - 2**-53)
        for seed in range(50):
            logits = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
            self.assertEqual(_sample(logits, 1.0, draw), 999)

    def test_none_are_as_many_as_were_asked_for(self) -> None:
        self.assertEqual([row.tokens for row in Answers().generate([[1], [2]], 0)], [[], []])


class Words(unittest.TestCase):
    def misused(self, *words: str) -> str:
        """What is said of wrong usage, which reads no file."""
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as left:
            main(["run", "nowhere", *words])
        self.assertEqual(left.exception.code, 2)
        return said.getvalue()

    def test_wrong_words_are_wrong_usage(self) -> None:
        for option, words in [
            ("--temp", ["nan", "inf", "-1", "x"]),
            ("--max-tokens", ["-1", "1_0", str(2**64)]),
            ("--seed", ["-1", str(2**64)]),
            ("--devices", ["0", "-1", "x", "4097", "20000", str(10**20)]),
            ("--processes", ["0", "x"]),
            ("--process-id", ["-1", "x"]),
            ("--tokens", ["", "abc", "5,", "5,x"]),
        ]:
            for word in words:
                tokens = [] if option == "--tokens" else ["--tokens", "5"]
                with self.subTest(option=option, word=word):
                    self.assertRegex(self.misused(*tokens, f"{option}={word}"), rf"argument .*{option}: `")

    def test_words_are_shown_without_control_characters(self) -> None:
        for words in (["--tokens", "\x1b[31m"], ["--tokens", "5", "\x1b[31m"]):
            said = self.misused(*words)
            self.assertIn(r"\x1b[31m", said)
            self.assertNotIn("\x1b", said)

    def test_tokens_are_digits(self) -> None:
        self.assertEqual(_ids("5, 17,3"), [5, 17, 3])
        for text in ["", "5,", "1_0", "-1", "+1", "x", "9" * 5000]:
            with self.subTest(text=text[:16]), self.assertRaisesRegex(ArgumentTypeError, "is not a list of tokens"):
                _ids(text)

    def test_a_process_of_a_group_is_not_alone(self) -> None:
        with mock.patch.dict("os.environ", clear=True):
            self.assertIn("--processes N, --coordinator", self.misused("--tokens", "5", "--process-id", "1"))
            group = ["--processes", "2", "--coordinator", "host:1234", "--process-id", "2"]
            self.assertIn("process 2 is none of 2", self.misused("--tokens", "5", *group))

    def test_a_processor_pretends_to_be_no_more_devices_than_it_can(self) -> None:
        read = Manifest(Path(), "0", 8, 1, 10, "model=8192", (("model", 8192),), Path(), {}, {})
        arguments = _parser().parse_args(["run", "nowhere", "--tokens", "5"])
        with self.assertRaisesRegex(MeshError, "`model=8192` has 8192 devices, .* pretend to have 8192, expected 4096 at most"):
            _devices(arguments, read, None)

    def test_help_waits_for_no_jax(self) -> None:
        code = "import sys, tracewright_xla.__main__; print('jax' in sys.modules); from tracewright_xla import Program"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "tools/python", check=True)
        self.assertEqual(ran.stdout, "False\n")

    def test_memory_that_is_not_there_is_an_error(self) -> None:
        for error, said in [(MemoryError(), ""), (MemoryError("Unable to allocate 1 TiB"), ": Unable to allocate 1 TiB")]:
            with (
                mock.patch("tracewright_xla.__main__._keep_stdout"),
                mock.patch.object(Manifest, "read", side_effect=error),
                contextlib.redirect_stderr(io.StringIO()) as heard,
            ):
                self.assertEqual(main(["run", "nowhere", "--tokens", "5"]), 1)
            self.assertEqual(heard.getvalue(), f"error: there is not enough memory{said}\n")

    def test_an_interrupt_is_one_also_while_jax_loads(self) -> None:
        # While the system loads its library, which is the longest part of it.
        code = """import os, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "jaxlib._jax":
            os.system(f"(sleep 0.01; kill -INT {os.getpid()}) &")
sys.meta_path.insert(0, Interrupt())
from tracewright_xla.__main__ import main
sys.exit(main(["run", sys.argv[1], "--tokens", "5"]))"""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "manifest.json").write_text(json.dumps(manifest()))
            words = [sys.executable, "-c", code, folder]
            ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (130, "", "interrupted\n"))

    def test_what_xla_cannot_do_with_weights_is_an_error(self) -> None:
        arguments = _parser().parse_args(["run", "nowhere", "--tokens", "5", "--ignore-eos"])
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "manifest.json").write_text(json.dumps(manifest()))
            read = Manifest.read(folder)
        error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        with (
            mock.patch.object(Program, "load", side_effect=error),
            self.assertRaisesRegex(TracewrightError, "XLA cannot take the weights: RES"),
        ):
            _run(arguments, read, None)

    def test_a_stream_that_was_closed_is_no_traceback(self) -> None:
        ended = "is no export directory: it has no `manifest.json`"
        for closed, code, out, err in [
            ("<&-", 1, "", ended),
            ("2>&-", 1, "", ""),
            (">&-", 1, "", "error: stdout is closed"),
            (">&- 2>&-", 1, "", ""),
            ("<&- >&- 2>&-", 1, "", ""),
        ]:
            command = [sys.executable, "-m", "tracewright_xla", "run", "nowhere", "--tokens", "5"]
            words = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
            with self.subTest(closed=closed):
                ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
                self.assertEqual((ran.returncode, ran.stdout, ran.stderr.count("\n")), (code, out, 1 if err else 0), ran.stderr)
                self.assertIn(err, ran.stderr)

    def test_what_an_export_says_is_shown_without_control_characters(self) -> None:
        content = manifest()
        content["entry_points"][1] |= {"name": "\x1b[31m\u202e", "weights": ["\x07"]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "\x1b[2J"
            path.mkdir()
            (path / "manifest.json").write_text(json.dumps(content))
            words = [sys.executable, "-m", "tracewright_xla", "run", str(path), "--tokens", "5"]
            ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        said = r"/\x1b[2J/manifest.json` is not as it was written: `\x1b[31m\u202e` takes `\x07`, which is none of `weights`"
        self.assertIn(said, ran.stderr)

    def test_nothing_of_a_text_is_left_out(self) -> None:
        self.assertEqual(_rest("ab\ufffd", "ab"), "\ufffd")
        self.assertEqual(_rest("a.", "a ."), "\na.")

    def test_a_platform_that_is_not_there_is_named(self) -> None:
        for error, words in [(RuntimeError("no `foo`"), "no `foo`"), (AssertionError(), "its plugin is not installed")]:
            with mock.patch("jax.devices", side_effect=error), self.assertRaisesRegex(MeshError, words):
                device_mesh(Manifest(Path(), "0", 8, 1, 10, "", (), Path(), {}, {}))


if __name__ == "__main__":
    unittest.main()
