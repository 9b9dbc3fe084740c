"""Manifests: types, and what is refused."""

import json
import math
import os
import re
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from tracewright_xla.errors import ManifestError
from tracewright_xla.manifest import MOST_DEVICES, Manifest, TensorType


class Types(unittest.TestCase):
    def test_a_type_reads(self) -> None:
        self.assertEqual(TensorType.parse("f32[2,3]"), TensorType(np.dtype(np.float32), (2, 3)))
        self.assertEqual(TensorType.parse("i32[]").shape, ())
        self.assertEqual(TensorType.parse("bf16[4]").bytes, 8)

    def test_what_is_no_type_is_refused(self) -> None:
        large = [f"f32[{'9' * 5000}]", f"f32[{','.join(['1'] * 17)}]", f"f32[{','.join(['9' * 18] * 4)}]"]
        for text in ["f32", "f32[2", "f33[2]", "[2]", "f32[-2]", "f32[0]", "f32[02]", "f32[2,,3]", "f32[,2]", *large]:
            with self.subTest(text=text[:16]), self.assertRaises(ManifestError):
                TensorType.parse(text)


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def refused(self, content: str, words: str) -> None:
        (self.folder / "manifest.json").write_text(content)
        with self.assertRaisesRegex(ManifestError, words):
            Manifest.read(self.folder)


class Folders(Folder):
    def test_a_folder_without_a_manifest_is_no_export(self) -> None:
        with self.assertRaisesRegex(ManifestError, "is no export directory"):
            Manifest.read(self.folder)

    def test_other_manifests_are_refused(self) -> None:
        for content in ["{", "[" * 200_000, '"\\ud800', "9" * 5000]:
            self.refused(content, "cannot be read")
        self.refused("[]", "is no export for XLA")
        self.refused('{"iree_compiler": "3.13"}', "is no export for XLA; export the model with `--engine xla`")
        for form in ["1", "2.0", "NaN", "null", "true", "[2]"]:
            self.refused(f'{{"engine": "xla", "format": {form}}}', "has format .*, expected 2; export the model again")
        self.refused(json.dumps({"engine": "xla", "format": 2, "weights": [{}]}), r"as it was written: `weights\[0\]\.")


def value(name: str, role: str, ty: str) -> dict[str, Any]:
    rank = len(TensorType.parse(ty).shape)
    return {"name": name, "role": role, "type": ty, "axes": [""] * rank, "sharding": [[]] * rank}


def manifest() -> dict[str, Any]:
    """A manifest as `tracewright export --engine xla` writes it, of a network with one layer."""
    keys = value("keys0", "state(kv.keys, layer 0)", "f32[2,3,32,4]")
    ring = value("keys1", "state(ring(window 5, slack 8).keys, layer 1)", "f32[2,3,12,4]")
    weight = {"key": "w", "type": "f32[7,4]", "sharding": [[], []], "made": False, "stored": "bf16", "offset": 96}

    def entry(name: str, width: int) -> dict[str, Any]:
        return {
            "name": name,
            "module": f"{name}.mlir",
            "module_blake3": blake3(MAIN.encode()).hexdigest(),
            "arguments": [
                value("tokens", "tokens", f"i32[2,{width}]"),
                value("start", "start(context 32)", "i32[2]"),
                value("count", "count", "i32[2]"),
                keys,
                ring,
            ],
            "weights": ["w"],
            "results": [value("logits", "logits", "f32[2,7]"), value("token", "token", "i32[2]"), keys, ring],
        }

    content = {
        "engine": "xla",
        "format": 2,
        "tracewright": "0.1.0",
        "dtype": "f32",
        "simplify": "exact",
        "notes": [],
        "device_bytes": 56,
        "replicated": [],
        "copied": [],
        "context": 32,
        "chunk": 8,
        "batch": 2,
        "vocabulary": 7,
        "mesh": "",
        "axes": [],
        "checkpoint": "/model",
        "entry_points": [entry("prefill", 8), entry("decode", 1)],
        "weights": [weight | {"file": "model.safetensors", "tensor": "w"}],
    }
    return json.loads(json.dumps(content))


MAIN = (
    "  func.func @main(%arg0: tensor<2x1xi32>, %arg1: tensor<2xi32>, %arg2: tensor<2xi32>, "
    "%arg3: tensor<2x3x32x4xf32> {tf.aliasing_output = 2 : i32}, "
    "%arg4: tensor<2x3x12x4xf32> {tf.aliasing_output = 3 : i32}, %weight0: tensor<7x4xf32>) "
    "-> (tensor<2x7xf32>, tensor<2xi32>, tensor<2x3x32x4xf32>, tensor<2x3x12x4xf32>) {\n"
)


class Contents(Folder):
    def changed(self, path: str, new: Any) -> str:
        """The manifest with something else at `weights.0.file`."""
        content = at = manifest()
        *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in keys:
            at = at[key]
        at[last] = new
        return json.dumps(content)

    def test_what_was_written_reads(self) -> None:
        (self.folder / "manifest.json").write_text(json.dumps(manifest()))
        self.assertEqual(Manifest.read(self.folder).entries["prefill"].width, 8)

    def test_sizes_are_those_of_the_entry_points(self) -> None:
        for key, found, who in [
            ("context", 32, "`start` of `prefill`"),
            ("batch", 2, "`tokens` of `prefill`"),
            ("chunk", 8, "`keys1` of `prefill`"),
            ("vocabulary", 7, "`logits` of `prefill`"),
        ]:
            with self.subTest(key=key):
                self.refused(self.changed(key, 16), rf"manifest\.json`.*: `{key}` is 16, and {who} is for {found}")
        self.refused(self.changed("entry_points.1.arguments.3.type", "f32[2,3,64,4]"), "`decode` takes or gives other state")
        self.refused(self.changed("entry_points.1.arguments.0.type", "i32[2,16]"), "`chunk` is 8, and `tokens` of `decode`")
        both = self.changed("entry_points.0.arguments.1.role", "start(context 64)").replace('"context": 32', '"context": 64')
        self.refused(both, "`context` is 64, and `keys0` of `prefill` is for 32")

    def test_a_value_of_another_type_is_named(self) -> None:
        for path, new, words in [
            ("context", "32", r"`context` is '32', expected a whole number from 1 to 1073741824;"),
            ("batch", True, r"`batch` is True, expected a whole number from 1 to 65536;"),
            ("vocabulary", 7.0, r"`vocabulary` is 7\.0, expected"),
            ("chunk", -8, r"`chunk` is -8, expected"),
            ("weights", {}, r"`weights` is \{\}, expected a list"),
            ("entry_points.1", None, r"`entry_points\[1\]` is None, expected an object"),
            ("entry_points.1.weights.0", 5, r"`entry_points\[1\]\.weights\[0\]` is 5, expected text"),
            ("entry_points.1.weights.0", "v", "`decode` takes `v`, which is none of `weights`"),
            ("entry_points.1.arguments.0.type", "f33[2]", r"`entry_points\[1\]\.arguments\[0\]\.type`: .*`f33`"),
            ("entry_points.1.arguments.0.role", "mask", "`decode` takes no tokens"),
            ("entry_points.1.arguments.1.role", "mask", "has the role 'mask', which this version does not know"),
            ("entry_points.1.results.0.sharding", [[1], []], r"`entry_points\[1\]\.results\[0\]\.sharding\[0\]\[0\]` is 1, expected text"),
            ("entry_points", [], "no entry point chooses a token"),
            ("weights.0.stored", "u8", r"`weights\[0\]\.stored`: elements of type `u8`"),
            ("batch", 2**16 + 1, "`batch` is 65537, expected a whole number from 1 to 65536"),
            ("chunk", 33, "`chunk` is 33, expected 1 to 32"),
            ("vocabulary", 0, "`vocabulary` is 0, expected a whole number from 1 to 16777216"),
            ("context", 10**4299, r"`context` is 10*\.\.\.0*, expected a whole number"),
            ("context", float("nan"), "`context` is nan, expected a whole number"),
            ("weights.0.offset", -1, r"`weights\[0\]\.offset` is -1, expected a whole number from 0;"),
            ("entry_points.1.results.0.sharding", 1, r"`entry_points\[1\]\.results\[0\]\.sharding` is 1, expected a list or null"),
            ("entry_points.1.results.0.sharding", None, "`logits` of `decode`, .* is divided as \\[\\]"),
            ("weights.0.offset", 1e9, r"`weights\[0\]\.offset` is 1000000000\.0, expected"),
        ]:
            with self.subTest(path=path, new=new):
                self.refused(self.changed(path, new), words)

    def test_a_key_that_is_missing_is_named(self) -> None:
        for path in ["context", "entry_points", "entry_points.1.module", "entry_points.0.arguments.2.role", "weights.0.made"]:
            content = at = manifest()
            *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
            for key in keys:
                at = at[key]
            del at[last]
            name = re.escape(re.sub(r"\.(\d+)", r"[\1]", path))
            with self.subTest(path=path):
                self.refused(json.dumps(content), rf"manifest\.json` is not as it was written: `{name}` is missing; export")

    def test_a_role_is_there_once_and_where_it_belongs(self) -> None:
        for path, role, words in [
            ("entry_points.1.arguments.2.role", "start(context 32)", r"`decode` takes 'start\(context 32\)' 2 time\(s\), "),
            ("entry_points.1.arguments.2", value("count", "token", "i32[2]"), r"`decode` takes 'token' 1 time\(s\), expected"),
            ("entry_points.1.results.1", value("count", "count", "i32[2]"), r"`decode` gives 'count' 1 time\(s\), expected"),
            ("entry_points.1.arguments.2.role", "count(x", "has the role 'count\\(x', which this version does not know"),
        ]:
            with self.subTest(path=path, role=role):
                self.refused(self.changed(path, role), words)

    def test_tensors_are_divided_evenly_along_axes_of_the_mesh(self) -> None:
        content = manifest()
        content["axes"] = [{"name": "data", "size": 2}, {"name": "model", "size": 4}]
        for sharding in [[["data"], []], [[], ["model"]], [["model"], ["data"]], [["data", "model"], []]]:
            content["weights"][0] |= {"type": "f32[8,4]", "sharding": sharding}
            (self.folder / "manifest.json").write_text(json.dumps(content))
            self.assertEqual(len(Manifest.read(self.folder).weights["w"].sharding), 2)
        twice = [["data", "data"], []], [["data"], ["data"]]
        for sharding in [[["seq"], []], [["data"]], [[], [], []], *twice, [[], ["data", "model"]]]:
            content["weights"][0]["sharding"] = sharding
            with self.subTest(sharding=sharding):
                self.refused(json.dumps(content), r"`w`, f32\[8,4\], is divided as .*, which the mesh `` does not do evenly")
        self.refused(self.changed("entry_points.1.results.0.sharding", [["model"], []]), "`logits` of `decode`, .* is divided")

    def test_a_mesh_has_devices_and_not_more_than_an_export_may_have(self) -> None:
        mesh = (Path(__file__).resolve().parents[3] / "lower/targets/src/mesh.rs").read_text()
        self.assertIn(f"MOST: usize = 1 << {MOST_DEVICES.bit_length() - 1};", mesh)
        for sizes in [(2**20 + 1,), (2**10, 2**11), (2**62, 2**62)]:
            axes = [{"name": f"axis{at}", "size": size} for at, size in enumerate(sizes)]
            with self.subTest(sizes=sizes):
                self.refused(self.changed("axes", axes), rf"`axes.*{math.prod(sizes)}.*, expected .* to {MOST_DEVICES}")
        self.refused(self.changed("axes", [{"name": "model", "size": 0}]), r"`axes\[0\]\.size` is 0, expected a whole number from 1")
        self.refused(self.changed("axes", [{"name": "model", "size": 2}] * 2), "two of `axes` have the same name")

    def test_no_file_lies_outside_of_its_folder(self) -> None:
        for name in ["../decode.mlir", "/decode.mlir", "a/decode.mlir", "..", ".", "", "a\0b"]:
            with self.subTest(name=name):
                self.refused(self.changed("entry_points.1.module", name), r"`entry_points\[1\]\.module`: .* is no ")
        for name in ["../model.safetensors", "/model.safetensors", "a/../../b", ""]:
            with self.subTest(name=name):
                self.refused(self.changed("weights.0.file", name), r"`weights\[0\]\.file`: .* is no file of its folder")
        content = json.loads(self.changed("weights.0.file", "a/model.safetensors"))
        (self.folder / "manifest.json").write_text(json.dumps(content))
        self.assertEqual(Manifest.read(self.folder).weights["w"].file, "a/model.safetensors")
        content["weights"][0]["made"] = True
        self.refused(json.dumps(content), "is no plain file name")

    def test_a_module_takes_and_gives_what_the_manifest_says(self) -> None:
        content, path = manifest(), self.folder / "decode.mlir"
        whole = r"tensor<2x1xi32> \{sdy.sharding = #sdy.sharding<@mesh, \[\{\}, \{\}\]>"
        divided = MAIN.replace("2x1xi32>", '2x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}')
        mesh = '  sdy.mesh @mesh = <["data"=2]>\n'
        for axes, text, words in [
            ([], MAIN, None),
            ([], MAIN.replace("2x3x32x4", "2x3x64x4"), "has tensor<2x3x64x4xf32> where the manifest has tensor<2x3x32x4xf32>"),
            ([], MAIN.replace("7x4xf32", "7x4xi32"), "has tensor<7x4xi32> where the manifest has tensor<7x4xf32>"),
            ([], MAIN.replace(", tensor<2x3x12x4xf32>)", ")"), "has nothing where the manifest has tensor<2x3x12x4xf32>"),
            ([], "module {}", "has nothing where the manifest has tensor<2x1xi32>"),
            ([], "\udcff", "cannot be read"),
            ([{"name": "data", "size": 4}], mesh + divided, 'for another mesh than the manifest, whose axes are "data"=4'),
            ([{"name": "data", "size": 2}], mesh + divided, f"where the manifest has {whole}"),
        ]:
            written = text.encode(errors="surrogateescape")
            content["entry_points"][1]["module_blake3"] = blake3(written).hexdigest()
            (self.folder / "manifest.json").write_text(json.dumps(content | {"axes": axes}))
            read = Manifest.read(self.folder)
            path.write_bytes(written)
            with self.subTest(words=words):
                if words is None:
                    self.assertEqual(read.text(read.entries["decode"]), text)
                    continue
                with self.assertRaisesRegex(ManifestError, rf"decode\.mlir`.* {words}"):
                    read.text(read.entries["decode"])


    def test_a_module_of_types_without_an_end_takes_no_time(self) -> None:
        text = f"func.func @main({'tensor<' * 100_000}"
        content, path = manifest(), self.folder / "decode.mlir"
        path.write_text(text)
        content["entry_points"][1]["module_blake3"] = blake3(text.encode()).hexdigest()
        (self.folder / "manifest.json").write_text(json.dumps(content))
        read, begun = Manifest.read(self.folder), time.monotonic()
        with self.assertRaisesRegex(ManifestError, "has nothing where the manifest has"):
            read.text(read.entries["decode"])
        self.assertLess(time.monotonic() - begun, 5)

    def test_a_module_that_was_changed_is_named_with_both_hashes(self) -> None:
        (self.folder / "manifest.json").write_text(json.dumps(manifest()))
        read, path = Manifest.read(self.folder), self.folder / "decode.mlir"
        path.write_text(MAIN)
        self.assertEqual(read.text(read.entries["decode"]), MAIN)
        path.write_text(MAIN + "  // changed\n")
        hashes = [blake3(text.encode()).hexdigest() for text in (MAIN + "  // changed\n", MAIN)]
        with self.assertRaisesRegex(
            ManifestError,
            rf"decode\.mlir` is not the module that the manifest names \(blake3 {hashes[0]}, expected {hashes[1]}\); export",
        ):
            read.text(read.entries["decode"])
        content = manifest()
        del content["entry_points"][1]["module_blake3"]
        self.refused(json.dumps(content), r"`entry_points\[1\]\.module_blake3` is missing; export the model again")


class Files(unittest.TestCase):
    def test_what_is_no_regular_file_or_too_large_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "manifest.json"
            os.mkfifo(path)
            with self.assertRaisesRegex(ManifestError, r"manifest\.json` cannot be read: it is not a regular file"):
                Manifest.read(folder)
            path.unlink()
            path.symlink_to("/dev/zero")
            with self.assertRaisesRegex(ManifestError, "it is not a regular file"):
                Manifest.read(folder)
            path.unlink()
            path.write_bytes(b"[" + b"[]," * (6 << 20) + b"[]]")
            with self.assertRaisesRegex(ManifestError, "it has more than 16777216 bytes"):
                Manifest.read(folder)


if __name__ == "__main__":
    unittest.main()
