"""Tokenizers, whatever they ask for or lack, and the tokens that end an answer."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tracewright_xla.errors import PromptError
from tracewright_xla.text import Text, ends

ROOT = Path(__file__).resolve().parents[3]


def tokenizer(**parts: Any) -> str:
    """A `tokenizer.json` of four words, with these of its parts."""
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "?": 3}, "unk_token": "?"}
    return json.dumps({"added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": words} | parts)


CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
UNKNOWN = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def text(self, content: str) -> Text:
        (self.folder / "tokenizer.json").write_text(content)
        return Text(self.folder)


class Tokenizers(Folder):
    def test_a_file_asks_for_no_truncation_and_no_padding(self) -> None:
        truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
        padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
        for parts in ({}, {"truncation": truncation}, {"padding": padding}):
            with self.subTest(parts=parts):
                self.assertEqual(self.text(tokenizer(**parts)).tokens("a b c a"), [0, 1, 2, 0])

    def test_what_is_no_tokenizer_is_an_error(self) -> None:
        for content in ["", "{}", "[" * 100_000, tokenizer()[:-1], tokenizer(normalizer=CHARSMAP), tokenizer(model=5)]:
            with self.subTest(content=content[:64]), self.assertRaisesRegex(PromptError, r"tokenizer\.json` is no tokenizer: "):
                self.text(content)

    def test_one_that_gives_up_is_an_error_that_is_said_once(self) -> None:
        with self.assertRaisesRegex(PromptError, "the tokenizer cannot encode the prompt: "):
            self.text(tokenizer(post_processor=UNKNOWN)).tokens("a")
        shown = """import sys
from pathlib import Path
from tracewright_xla.text import PromptError, Text
try:
    Text(Path(sys.argv[1])).tokens("a")
except PromptError:
    print("PromptError")"""
        for content in (tokenizer(normalizer=CHARSMAP), tokenizer(post_processor=UNKNOWN)):
            (self.folder / "tokenizer.json").write_text(content)
            words = [sys.executable, "-c", shown, str(self.folder)]
            ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "tools/python", check=False)
            self.assertEqual((ran.stdout, ran.stderr), ("PromptError\n", ""))


class Ends(Folder):
    def test_generation_config_says_first_then_config_then_the_text_within(self) -> None:
        five, within = {"eos_token_id": 5}, {"text_config": {"eos_token_id": [7, 8]}}
        for generation, config, tokens in [
            (five, {"eos_token_id": 6}, {5}),
            ({"eos_token_id": None}, {"eos_token_id": 6}, {6}),
            ({}, within, {7, 8}),
            ({}, five | within, {5}),
            ({}, {"text_config": []}, set()),
        ]:
            for name, content in (("generation_config.json", generation), ("config.json", config)):
                (self.folder / name).write_text(json.dumps(content))
            with self.subTest(generation=generation, config=config):
                self.assertEqual(ends(self.folder), tokens)

    def test_tokens_that_end_an_answer_are_token_ids(self) -> None:
        path = self.folder / "config.json"
        for text, tokens in [("5", {5}), ("[5, 6]", {5, 6}), ("[]", set()), ("null", set())]:
            path.write_text(f'{{"eos_token_id": {text}}}')
            self.assertEqual(ends(self.folder), tokens)
        for text in ['"5"', "[5, [6]]", "true", "-1", "5.0", "NaN", str(1 << 20)]:
            path.write_text(f'{{"eos_token_id": {text}}}')
            with self.subTest(text=text), self.assertRaisesRegex(PromptError, r"`eos_token_id` of `.*config\.json` is"):
                ends(self.folder)


if __name__ == "__main__":
    unittest.main()
