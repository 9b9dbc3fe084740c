"""What an installed wheel does, beside answers of transformers and of the command line.

`cargo xtask wheel --test` installs the wheel, and runs this with the checkout in `TRACEWRIGHT_ROOT`.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.metadata
import inspect
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tracewright
from tracewright import TracewrightError
from tracewright.options import GenerateOptions, OpenOptions, TranscribeOptions

ROOT = Path(os.environ["TRACEWRIGHT_ROOT"])
DEMO = ROOT / "demo"
FIXTURES = ROOT / "tests/fixtures"
SCRIPTS = Path(sys.executable).parent
# Logits of f32 differ from transformers' by less than this part of the largest, as in the tests of Rust.
BOUND = 1e-5


def setUpModule() -> None:
    global CACHE, FOLDER
    FOLDER = tempfile.TemporaryDirectory()
    CACHE = Path(FOLDER.name, "cache")


def tearDownModule() -> None:
    gc.collect()
    FOLDER.cleanup()


def opened(path: Path = DEMO, **options) -> tracewright.Model:
    return tracewright.Model(path, cache=CACHE, **options)


def exact() -> tracewright.Model:
    """The demo in f32, two texts in parallel."""
    return opened(dtype="f32", context=1024, slots=2)


def speech(seed: int, count: int) -> np.ndarray:
    """The samples of `tests/oracle/speech_words.py`."""
    state, phase, samples = seed, 0, []
    for i in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        phase = (phase + 200 + 37 * (i // 1600 % 23) * (seed % 7 + 1)) % 65536
        samples.append((abs(phase - 32768) // 2 - 8192 + (state >> 20) - 2048) * (0.01 if i % 20_000 < 10_000 else 1.0))
    return np.array(samples, np.float32) / 32768


def tensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "I32": np.int32}
    all_bytes = data[8 + size :]
    return {
        name: np.frombuffer(all_bytes[slice(*entry["data_offsets"])], types[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }


def script(name: str, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEWRIGHT_", "PYTHON"))}
    # Neither the scripts nor a compiler are on the PATH.
    env |= {"PATH": os.defpath, "TRACEWRIGHT_CACHE": str(CACHE)} | environment
    return subprocess.run([SCRIPTS / name, *words], capture_output=True, text=True, env=env, cwd=FOLDER.name)


class Answers(unittest.TestCase):
    """Texts, logits and embeddings are those of transformers."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.golden = json.loads((FIXTURES / "demo.json").read_text())
        cls.model = exact()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.model.close()

    def test_greedy_tokens_are_exact(self) -> None:
        for prompt in self.golden["prompts"][:24]:
            tokens = prompt["tokens"]
            generation = self.model.generate(prompt["prompt_tokens"], max_tokens=len(tokens), ignore_eos=True)
            self.assertEqual("".join(generation), generation.text())
            self.assertEqual(generation.tokens, tokens, prompt.get("prompt"))
            self.assertEqual((generation.finish, generation.prompt_tokens), ("length", len(prompt["prompt_tokens"])))
            self.assertEqual(self.model.decode(tokens), prompt["text"])
            if "prompt" in prompt:
                self.assertEqual(self.model.encode(prompt["prompt"]), prompt["prompt_tokens"])

    def test_chats_are_exact(self) -> None:
        chats = [prompt for prompt in self.golden["prompts"] if "messages" in prompt]
        self.assertGreater(len(chats), 2)
        for chat in chats:
            messages, tokens = chat["messages"], chat["tokens"]
            generation = self.model.chat(messages, max_tokens=len(tokens), ignore_eos=True)
            self.assertEqual((generation.text(), generation.tokens), (chat["text"], tokens))
            rendered = self.model.encode(self.model.render(messages), special=False)
            self.assertEqual(rendered, chat["prompt_tokens"])
            if [message["role"] for message in messages] == ["user"]:
                self.assertEqual(self.model.chat(messages[0]["content"], max_tokens=8).tokens_per_second, None)
                self.assertEqual(self.model.render(messages[0]["content"]), self.model.render(messages))

    def test_logits_are_those_of_transformers(self) -> None:
        reference = tensors(FIXTURES / "demo.safetensors")
        for number, prompt in list(enumerate(self.golden["prompts"]))[:8]:
            fed = prompt["prompt_tokens"] + prompt["tokens"][:-1]
            logits = self.model.score(np.array(fed, np.uint32))
            self.assertEqual((logits.shape, logits.dtype), ((len(fed), self.golden["vocab_size"]), np.float32))
            ids = reference[f"prompts.{number}.top_ids"]
            error = np.abs(np.take_along_axis(logits, ids.astype(np.int64), 1) - reference[f"prompts.{number}.top_logits"])
            largest = reference[f"prompts.{number}.max_abs"]
            self.assertTrue((error.max(1) <= BOUND * largest).all(), (error.max(1) / largest).max())

    def test_logits_are_those_of_the_command_line(self) -> None:
        out = Path(FOLDER.name, "logits.safetensors")
        words = ["--tokens", "5,17,3", "-n", "4", "--dtype", "f32", "--context", "1024", "--save-logits", out, "--all-positions", "--json"]
        ran = script("tracewright", "generate", DEMO, *words)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        tokens = json.loads(ran.stdout)["tokens"]
        self.assertEqual(self.model.generate([5, 17, 3], max_tokens=4).text(), json.loads(ran.stdout)["text"])
        saved = tensors(out)
        logits = self.model.score([5, 17, 3, *tokens[:-1]])
        np.testing.assert_array_equal(logits[:3], saved["prompt_logits"])
        # A step adds in another order than a chunk.
        np.testing.assert_allclose(logits[2:], saved["logits"], atol=1e-4)

    def test_embeddings_are_those_of_sentence_transformers(self) -> None:
        folder = FIXTURES / "embeddinggemma"
        golden = json.loads((folder / "golden.json").read_text())
        reference = tensors(folder / "golden.safetensors")
        texts = [(number, text) for number, text in enumerate(golden["texts"]) if len(text["tokens"]) < golden["max_length"]]
        self.assertGreater(len(texts), 8)
        with opened(folder) as model:
            # sentence-transformers cuts what is longer.
            with self.assertRaises(TracewrightError) as caught:
                model.embed("Once upon a time " * 20)
            self.assertEqual(caught.exception.code, "TW0816")
            for name in [None, *{text["prompt"] for _, text in texts if "prompt" in text}]:
                rows = [(number, text["text"]) for number, text in texts if text.get("prompt") == name]
                embeddings = model.embed([text for _, text in rows], prompt=name)
                self.assertEqual((embeddings.shape, embeddings.dtype), ((len(rows), golden["embedding_size"]), np.float32))
                expected = np.stack([reference[f"texts.{number}.embedding"] for number, _ in rows])
                np.testing.assert_allclose(embeddings, expected, atol=1e-5)

    def test_speech_is_transcribed_as_by_transformers(self) -> None:
        folder = FIXTURES / "whisper"
        golden = json.loads((folder / "words.json").read_text())
        case = golden["cases"][1]
        self.assertEqual(case["options"], {"language": "de", "task": "translate"})
        audio = speech(golden["clip"], case["count"])
        options = {"language": "de", "translate": True, "timestamps": "word", "temperatures": [0.0], "no_speech_threshold": 1.0}
        with opened(folder, dtype="f32") as model, tempfile.TemporaryDirectory() as clips:
            self.assertEqual(model.sampling_rate, 16_000)
            found = model.transcribe(audio, **options)
            self.assertEqual((found["language"], found["duration"]), ("de", case["count"] / 16_000))
            self.assertEqual(len(found["segments"]), len(case["segments"]))
            for segment, words in zip(found["segments"], case["segments"]):
                self.assertEqual([word["word"] for word in segment["words"]], [word for word, _, _ in words])
                times = [(word["start"], word["end"]) for word in segment["words"]]
                np.testing.assert_allclose(times, [word[1:] for word in words], atol=0.021)
            self.assertNotIn("words", model.transcribe(audio, **options | {"timestamps": "segment"})["segments"][0])
            # 16 bits round the samples.
            clip = Path(clips, "clip.wav")
            with wave.open(str(clip), "wb") as file:
                file.setparams((1, 2, 16_000, 0, "NONE", ""))
                file.writeframes((audio * 32768).astype("<i2").tobytes())
            self.assertEqual(model.transcribe(clip, language="de")["duration"], found["duration"])
            for wrong in [5, audio.astype(np.float64), audio.reshape(2, -1)]:
                self.assertRaises(TypeError, lambda: model.transcribe(wrong))
            self.assertRaises(ValueError, lambda: model.transcribe(audio, timestamps="letter"))
            for name in TranscribeOptions.__annotations__:
                with self.subTest(name), self.assertRaisesRegex((TypeError, ValueError), f"`{name}`"):
                    model.transcribe(audio, **{name: object()})
            with self.assertRaises(TracewrightError) as caught:
                model.transcribe(audio, language="klingon")
            self.assertEqual(caught.exception.code, "TW0829")
        with opened(context=64) as model, self.assertRaises(TracewrightError) as caught:
            model.transcribe(audio)
        self.assertEqual(caught.exception.code, "TW0823")

    def test_scores_are_those_of_sentence_transformers(self) -> None:
        folder = FIXTURES / "bert-score"
        texts = json.loads((folder / "golden.json").read_text())["texts"]
        reference = tensors(folder / "golden.safetensors")
        with opened(folder) as model:
            for number, text in enumerate(texts):
                scores = model.rerank(text["text"], [text["text"], text["second"]])
                self.assertEqual((scores.shape, scores.dtype), ((2,), np.float32))
                np.testing.assert_allclose(scores[1:], reference[f"texts.{number}.score"], atol=1e-5)
            with self.assertRaises(TracewrightError) as caught:
                model.embed("Once upon a time")
            self.assertEqual(caught.exception.code, "TW0823")


class Threads(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.model = exact()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.model.close()

    def test_threads_share_a_model(self) -> None:
        self.assertEqual(self.model.slots, 2)
        prompts = ["Once upon a time", "The little fox", "A brave owl", "One day"] * 2
        single = [self.model.generate(prompt, max_tokens=40).text() for prompt in prompts]
        self.assertEqual(len(set(single)), 4)
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda prompt: self.model.generate(prompt, max_tokens=40).text(), prompts))
        self.assertEqual(together, single)

    def test_one_generation_is_shared_by_threads(self) -> None:
        whole = self.model.generate("Once upon a time", max_tokens=100).text()
        shared = self.model.generate("Once upon a time", max_tokens=100)
        with ThreadPoolExecutor(3) as pool:
            pieces = pool.map(lambda _: list(shared), range(3))
            self.assertEqual(sum(len("".join(some)) for some in pieces), len(whole))
        self.assertEqual(shared.text(), whole)

    def test_other_threads_run_during_a_wait(self) -> None:
        ticks, waiting = 0, True

        def tick() -> None:
            nonlocal ticks
            while waiting:
                ticks += 1
                time.sleep(0.001)

        ticker = threading.Thread(target=tick)
        ticker.start()
        try:
            # It compiles the network again, of another length.
            opened(context=768, dtype="f32").close()
        finally:
            waiting = False
            ticker.join()
        self.assertGreater(ticks, 100)

    def test_a_dropped_iterator_stops_the_generation(self) -> None:
        options = {"max_tokens": 900, "ignore_eos": True, "reuse": False}
        self.model.generate("Once upon a time", **options).text()
        start = time.monotonic()
        self.model.generate("Once upon a time", **options).text()
        one = time.monotonic() - start
        dropped = [self.model.generate("Once upon a time", **options) for _ in range(64)]
        next(dropped[0])
        start = time.monotonic()
        del dropped
        self.model.generate("The little fox", max_tokens=1).text()
        # In two slots, the 64 would take 32 times as long as one.
        self.assertLess(time.monotonic() - start, 8 * one)

    def test_a_cancelled_text_keeps_its_beginning(self) -> None:
        generation = self.model.generate("Once upon a time", max_tokens=900, ignore_eos=True)
        first = next(generation)
        generation.cancel()
        rest = list(generation)
        self.assertEqual(generation.text(), first + "".join(rest))
        self.assertEqual(generation.finish, "cancelled")
        self.assertLess(len(generation.tokens), 900)


@unittest.skipIf(sys.platform == "win32", "there is no SIGINT for one process")
class Signals(unittest.TestCase):
    def setUp(self) -> None:
        # A process that a shell runs in the background ignores SIGINT.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    def interrupt(self, after: float) -> None:
        threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    def test_an_interrupt_ends_a_generation(self) -> None:
        with exact() as model:
            self.interrupt(0.5)
            with self.assertRaises(KeyboardInterrupt):
                while True:
                    generation = model.generate("Once upon a time", max_tokens=900, ignore_eos=True, reuse=False)
                    generation.text()
            self.assertEqual(list(generation), [])
            self.assertTrue(model.generate("Once upon a time", max_tokens=4).text())

    def test_an_interrupt_ends_a_compilation(self) -> None:
        start = time.monotonic()
        opened(context=640).close()
        whole = time.monotonic() - start
        # The next context is another network, which takes as long.
        start = time.monotonic()
        self.interrupt(whole / 8)
        with self.assertRaises(KeyboardInterrupt):
            opened(context=704)
        self.assertLess(time.monotonic() - start, whole / 2)

    def test_the_command_line_ends_with_130(self) -> None:
        words = ["generate", DEMO, "-p", "Once", "-n", "4", "--cache", Path(FOLDER.name, "fresh")]
        environment = {**os.environ, "PATH": os.defpath}
        ran = subprocess.Popen([SCRIPTS / "tracewright", *words], stderr=subprocess.PIPE, text=True, env=environment)
        time.sleep(1)
        ran.send_signal(signal.SIGINT)
        _, told = ran.communicate(timeout=20)
        self.assertEqual(ran.returncode, 130, told)
        self.assertIn("interrupted", told)


class Errors(unittest.TestCase):
    def test_an_error_has_a_code_and_help(self) -> None:
        with self.assertRaises(TracewrightError) as caught:
            opened(Path("no-such-folder"))
        error = caught.exception
        self.assertEqual((error.code, error.help), ("TW0006", []))
        self.assertIn("cannot open the model directory `no-such-folder`", error.message)
        self.assertEqual(str(error), f"{error.code}: {error.message}")
        with self.assertRaises(TracewrightError) as caught:
            opened(context=1 << 20)
        error = caught.exception
        self.assertEqual(error.help, ["`context=N` sets the context"])
        self.assertTrue(str(error).endswith("\n  help: `context=N` sets the context"))
        self.assertIn(f"# {error.code}: ", script("tracewright", "explain", error.code).stdout)

    def test_a_model_says_what_it_cannot_do(self) -> None:
        with opened(FIXTURES / "embeddinggemma") as model, self.assertRaises(TracewrightError) as caught:
            model.generate("Once").text()
        self.assertEqual(caught.exception.code, "TW0823")
        model = opened(context=64)
        for call in [lambda: model.embed("Once"), lambda: model.generate([1] * 65).text(), lambda: model.score([5000])]:
            self.assertRaises(TracewrightError, call)
        self.assertRaises(TracewrightError, lambda: model.chat([{"role": "user"}], max_tokens=1, temperature=-1).text())
        model.close()
        self.assertRaises(TracewrightError, lambda: model.generate("Once"))

    def test_arguments_are_checked(self) -> None:
        cases = [
            (TypeError, {"contxt": 5}, "there is no option `contxt`"),
            (TypeError, {"context": "long"}, "`context` is 'long', expected an integer from 0 on"),
            (ValueError, {"dtype": "f99"}, "`dtype`: "),
            (ValueError, {"quant": "q99"}, "`quant`: "),
            (ValueError, {"kv": "q99"}, "`kv`: expected computed or q8"),
            (ValueError, {"speculate": "maybe"}, "`speculate`: "),
        ]
        for kind, options, message in cases:
            with self.subTest(options), self.assertRaisesRegex(kind, message):
                opened(**options)
        with opened(context=64) as model:
            cases = [
                ({"heat": 1}, "there is no option `heat`"),
                ({"max_tokens": -1}, "`max_tokens` is -1, expected an integer from 0 on"),
                ({"stop": 5}, "`stop` is 5, expected a string or a sequence of strings"),
            ]
            for options, message in cases:
                with self.subTest(options), self.assertRaisesRegex(TypeError, message):
                    model.generate("Once", **options)
            self.assertRaises(TypeError, lambda: model.generate(5))
            self.assertRaises(TypeError, lambda: model.chat({"role": "user"}))

    def test_options_of_a_generation_are_followed(self) -> None:
        with opened(context=256) as model:
            stopped = model.generate("Once upon a time", max_tokens=80, stop=[" the"])
            self.assertNotIn(" the", stopped.text())
            self.assertEqual(stopped.finish, "stop")
            draws = [model.generate("Once", max_tokens=20, temperature=1.0, seed=seed).text() for seed in [1, 1, 2]]
            self.assertEqual(draws[0], draws[1])
            self.assertNotEqual(draws[0], draws[2])
            schema = {"type": "object", "properties": {"name": {"enum": ["fox", "owl"]}}, "required": ["name"], "additionalProperties": False}
            for given in [schema, json.dumps(schema)]:
                answer = json.loads(model.chat("Who?", max_tokens=60, json_schema=given).text())
                self.assertIn(answer["name"], ["fox", "owl"])


class Guide(unittest.TestCase):
    """The blocks of the guide run, one after the other, with models that are here."""

    def test_every_block_runs(self) -> None:
        text = (ROOT / "docs/guides/python.md").read_text()
        blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
        self.assertGreater(len(blocks), 5)
        here = {"HuggingFaceTB/SmolLM2-135M-Instruct": DEMO, "google/embeddinggemma-300m": FIXTURES / "embeddinggemma"}
        names = {}
        for block in blocks:
            for name, path in here.items():
                block = block.replace(f'Model("{name}"', f'Model(r"{path}", cache=r"{CACHE}"')
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block, "docs/guides/python.md", "exec"), names)
            if "print(" in block:
                self.assertNotEqual(printed.getvalue().strip(), "", block)
        names["model"].close()


class Package(unittest.TestCase):
    def test_the_compiler_is_pinned_to_that_of_the_tools(self) -> None:
        pins = (ROOT / "tools/xtask/requirements.txt").read_text().splitlines()
        (compiler,) = [pin for pin in pins if pin.startswith("iree-base-compiler==")]
        self.assertIn(compiler, importlib.metadata.requires("tracewright"))
        self.assertEqual(importlib.metadata.version("tracewright"), tracewright.__version__)

    def test_types_describe_what_there_is(self) -> None:
        folder = Path(tracewright.__file__).parent
        self.assertTrue((folder / "py.typed").exists())
        stub = ast.parse((folder / "_native.pyi").read_text())
        for cls in [tracewright.Model, tracewright.Generation]:
            (described,) = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
            names = {node.name for node in described.body if isinstance(node, ast.FunctionDef)}
            public = {name for name in vars(cls) if not name.startswith("_")}
            self.assertEqual({name for name in names if not name.startswith("_")}, public)
            for node in described.body:
                member = getattr(cls, node.name, None) if isinstance(node, ast.FunctionDef) else None
                if callable(member) and not node.name.startswith("_"):
                    described_names = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
                    self.assertEqual(described_names, [name for name in inspect.signature(member).parameters if name != "options"])

    def test_options_are_those_of_the_types(self) -> None:
        with opened(context=64) as model:
            for name in GenerateOptions.__annotations__:
                with self.subTest(name), self.assertRaisesRegex((TypeError, ValueError), f"`{name}`|serializable"):
                    model.generate("Once", **{name: object()})
        for name in OpenOptions.__annotations__:
            with self.subTest(name), self.assertRaisesRegex((TypeError, ValueError), f"`{name}`"):
                tracewright.Model(DEMO, **{name: object()})

    def test_the_command_line_is_whole(self) -> None:
        self.assertEqual(script("tracewright", "--version").stdout, f"tracewright {tracewright.__version__}\n")
        story = script("tracewright", "generate", DEMO, "-p", "Once upon a time", "-n", "24", "--json")
        self.assertEqual(story.returncode, 0, story.stderr)
        with opened() as model:
            self.assertEqual(json.loads(story.stdout)["text"], model.generate("Once upon a time", max_tokens=24).text())
            # The template runs in a process of its own.
            rendered = script("tracewright", "prompt", DEMO, "--chat", "Who are you?")
            self.assertEqual(rendered.stdout, model.render("Who are you?"), rendered.stderr)
        wrong = script("tracewright", "generate")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("error[TW0001]:", wrong.stderr)
        counts = script("trace-dump", DEMO, "--emit", "counts")
        self.assertIn("parameters", counts.stdout)
        doctor = script("tracewright", "doctor").stdout
        self.assertRegex(doctor, r"ok  compiler .*iree/compiler/_mlir_libs/iree-compile")


if __name__ == "__main__":
    unittest.main()
