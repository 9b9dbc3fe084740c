"""Manifests: types, and what is refused."""

import json
import tempfile
import unittest
from pathlib import Path

import numpy as np

from tracewright_xla.errors import ManifestError
from tracewright_xla.manifest import Manifest, TensorType


class Types(unittest.TestCase):
    def test_a_type_reads(self) -> None:
        self.assertEqual(TensorType.parse("f32[2,3]"), TensorType(np.dtype(np.float32), (2, 3)))
        self.assertEqual(TensorType.parse("i32[]").shape, ())
        self.assertEqual(TensorType.parse("bf16[4]").bytes, 8)

    def test_what_is_no_type_is_refused(self) -> None:
        for text in ["f32", "f32[2", "f33[2]", "[2]", "f32[-2]"]:
            with self.subTest(text=text), self.assertRaises(ManifestError):
                TensorType.parse(text)


class Folders(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def refused(self, content: str, words: str) -> None:
        (self.folder / "manifest.json").write_text(content)
        with self.assertRaisesRegex(ManifestError, words):
            Manifest.read(self.folder)

    def test_a_folder_without_a_manifest_is_no_export(self) -> None:
        with self.assertRaisesRegex(ManifestError, "is no export directory"):
            Manifest.read(self.folder)

    def test_other_manifests_are_refused(self) -> None:
        self.refused("{", "cannot be read")
        self.refused("[]", "is no export for XLA")
        self.refused('{"iree_compiler": "3.13"}', "is no export for XLA; export the model with `--engine xla`")
        self.refused('{"engine": "xla", "format": 2}', "has format 2, expected 1")
        self.refused(json.dumps({"engine": "xla", "format": 1, "weights": [{}]}), "is not as it was written")


if __name__ == "__main__":
    unittest.main()
