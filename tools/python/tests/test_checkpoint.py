"""Slices of weights: the right elements, from no other bytes; and checkpoints that are not what was exported."""

import contextlib
import json
import struct
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np

from tracewright_xla.checkpoint import Checkpoint
from tracewright_xla.errors import CheckpointError
from tracewright_xla.manifest import Manifest, TensorType, Weight

SHAPE = (3, 4, 5)


class Slices(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)
        self.values = np.arange(60, dtype=np.float32).reshape(SHAPE)
        before, content = b"\xff" * 7, self.values.tobytes()
        header = {
            "before": {"dtype": "U8", "shape": [7], "data_offsets": [0, 7]},
            "w": {"dtype": "F32", "shape": list(SHAPE), "data_offsets": [7, 7 + len(content)]},
            "__metadata__": {"format": "pt"},
        }
        text = json.dumps(header).encode()
        (self.folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + before + content)
        self.weight = Weight(
            key="w",
            type=TensorType(np.dtype(np.float32), SHAPE),
            sharding=((), (), ()),
            file="model.safetensors",
            tensor="w",
            made=False,
            stored=np.dtype(np.float32),
            offset=8 + len(text) + 7,
        )
        self.manifest = Manifest(
            self.folder, "0", 8, 1, 10, "", (), self.folder, {}, {"w": self.weight}
        )

    def test_each_part_is_that_of_numpy_and_no_other_byte_is_read(self) -> None:
        whole = slice(None)
        for index in [
            (whole, whole, whole),
            (slice(1, 3), whole, whole),
            (whole, slice(2, 4), whole),
            (whole, whole, slice(1, 3)),
            (slice(2, 3), slice(0, 2), slice(4, 5)),
            (slice(0, 2), whole, slice(0, 5)),
            (slice(1, 1), whole, whole),
        ]:
            with self.subTest(index=index), Checkpoint(self.manifest) as files:
                part = files.read(self.weight, index)
                np.testing.assert_array_equal(part, self.values[index])
                self.assertEqual(files.bytes_read, part.size * 4)

    def test_elements_become_those_that_the_program_computes_with(self) -> None:
        narrow = replace(self.weight, type=TensorType(np.dtype(ml_dtypes.bfloat16), SHAPE))
        with Checkpoint(self.manifest) as files:
            part = files.read(narrow, (slice(0, 1), slice(None), slice(None)))
        np.testing.assert_array_equal(part, self.values[:1].astype(ml_dtypes.bfloat16))

    def test_what_fits_is_accepted(self) -> None:
        Checkpoint(self.manifest).check([self.weight])

    def test_a_missing_file_is_named_with_how_many_weights_it_has(self) -> None:
        gone = replace(self.weight, file="model-00002-of-00002.safetensors")
        with self.assertRaisesRegex(CheckpointError, r"model-00002-of-00002\.safetensors` is missing, which has 1"):
            Checkpoint(self.manifest).check([self.weight, gone])

    def test_other_offsets_are_another_checkpoint(self) -> None:
        moved = replace(self.weight, offset=self.weight.offset + 4)
        with self.assertRaisesRegex(CheckpointError, r"has `w` at bytes \d+ to \d+, expected `w` at \d+ to \d+"):
            Checkpoint(self.manifest).check([moved])

    def test_a_tensor_of_another_name_at_the_same_bytes_is_another_checkpoint(self) -> None:
        path = self.folder / "model.safetensors"
        # Saved again in another order: what lies there now has the same type and extents.
        path.write_bytes(path.read_bytes().replace(b'"w"', b'"v"'))
        with self.assertRaisesRegex(CheckpointError, "has no tensor `w` for `w`"):
            Checkpoint(self.manifest).check([self.weight])

    def test_a_file_that_is_cut_off_is_not_whole(self) -> None:
        path = self.folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        with self.assertRaisesRegex(CheckpointError, r"model\.safetensors` has \d+ bytes and `w` ends at \d+: it is not whole"):
            Checkpoint(self.manifest).check([self.weight])
        with self.assertRaisesRegex(CheckpointError, r"model\.safetensors` ends before byte \d+ of `w`"):
            Checkpoint(self.manifest).read(self.weight, (slice(None),) * 3)

    def test_no_weight_lies_behind_the_end(self) -> None:
        for offset in (10_000, 2**80):
            behind = replace(self.weight, offset=offset)
            with self.subTest(offset=offset), self.assertRaisesRegex(CheckpointError, "has `w` at bytes"):
                Checkpoint(self.manifest).check([behind])

    def test_elements_of_another_type_are_another_checkpoint(self) -> None:
        other = replace(self.weight, stored=np.dtype(np.int32))
        with self.assertRaisesRegex(CheckpointError, "has `w` in f32, expected i32"):
            Checkpoint(self.manifest).check([other])

    def test_a_tensor_that_was_saved_with_its_axes_swapped_is_another_checkpoint(self) -> None:
        path = self.folder / "model.safetensors"
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"[3, 4, 5]", b"[3, 5, 4]"))
        with self.assertRaisesRegex(CheckpointError, r"has `w` of shape \[3, 5, 4\], expected \[3, 4, 5\]"):
            Checkpoint(self.manifest).check([self.weight])
        # Two rows of the three are a part of it.
        part = replace(self.weight, type=TensorType(np.dtype(np.float32), (2, 4, 5)), offset=self.weight.offset + 80)
        path.write_bytes(whole)
        Checkpoint(self.manifest).check([part])

    def test_what_is_no_safetensors_file_is_refused(self) -> None:
        def of(header: bytes) -> bytes:
            return len(header).to_bytes(8, "little") + header

        def held(offsets: str, shape: str) -> bytes:
            return of(f'{{"w": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode())

        offsets = ["[NaN, NaN]", "[0.0, 9e9]", "[-9, 999]", "[true, 999]", f"[0, {'9' * 4300}]", "[0]", '"09"', "null"]
        for content in [
            b"", b"short", b"\xff" * 64, of(b"oops"), of(b"[" * 200_000), of(b"[]"), of(b'{"w": 5}'),
            *(held(one, "[3, 4, 5]") for one in offsets), held("[0, 999]", "[3, 4, NaN]"),
        ]:  # fmt: skip
            (self.folder / "model.safetensors").write_bytes(content)
            with self.subTest(content=content[:16]), self.assertRaisesRegex(CheckpointError, "no safetensors file"):
                Checkpoint(self.manifest).check([self.weight])

    def test_a_checkpoint_that_moved_is_found_where_one_says(self) -> None:
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        (self.folder / "model.safetensors").rename(elsewhere / "model.safetensors")
        Checkpoint(self.manifest, elsewhere).check([self.weight])


class Made(unittest.TestCase):
    """Weights that the export itself has, in a parameter archive."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.path = Path(held.name) / "made.irpa"
        self.values = np.arange(60, dtype=np.float32).reshape(SHAPE)
        words = [
            ("other", b'{"dtype": "i8", "shape": [7]}', 0, 7),
            ("w", b'{"dtype": "f32", "shape": [3, 4, 5]}', 64, self.values.nbytes),
        ]
        table, said = b"", b""
        for name, about, start, length in words:
            at, name = len(said), name.encode()
            said += name + about
            entry = struct.pack(
                "<QIQ4QQ2Q", 76, 2, 0, at, len(name), at + len(name), len(about), 64, start, length
            )
            table += entry.ljust(80, b"\0")
        self.data = 96 + len(table) + len(said) + 64 & -64
        segments = (96, len(table), 96 + len(table), len(said), self.data, 64 + self.values.nbytes)
        header = struct.pack("<4s2H4Q6Q", b"IRPA", 0, 0, 88, 0, 0, len(words), *segments)
        self.bytes = (header.ljust(96, b"\0") + table + said).ljust(self.data + 64, b"\0") + self.values.tobytes()
        self.path.write_bytes(self.bytes)
        element, whole = np.dtype(np.float32), ((), (), ())
        self.weight = Weight("w", TensorType(element, SHAPE), whole, "made.irpa", "w", True, element, self.data + 64)
        self.manifest = Manifest(self.path.parent, "0", 8, 1, 10, "", (), self.path.parent, {}, {"w": self.weight})

    def refused(self, weight: Weight, said: str) -> None:
        with self.assertRaisesRegex(CheckpointError, said):
            Checkpoint(self.manifest).check([weight])

    def test_what_is_where_the_manifest_says_is_read(self) -> None:
        with Checkpoint(self.manifest) as files:
            files.check([self.weight])
            np.testing.assert_array_equal(files.read(self.weight, (slice(None),) * 3), self.values)

    def test_other_offsets_names_and_elements_are_another_archive(self) -> None:
        for offset in (self.weight.offset + 4, self.data, 2**80):
            with self.subTest(offset=offset):
                self.refused(replace(self.weight, offset=offset), r"has `w` at bytes \d+ to \d+, expected `w` at")
        self.refused(replace(self.weight, tensor="v"), "has no tensor `v` for `w`")
        swapped = TensorType(np.dtype(np.float32), (3, 5, 4))
        self.refused(replace(self.weight, type=swapped), r"has `w` of shape \[3, 4, 5\], expected \[3, 5, 4\]")
        self.refused(replace(self.weight, stored=np.dtype(np.int32)), "has `w` in f32, expected i32")

    def test_one_that_is_cut_off_is_not_whole(self) -> None:
        self.path.write_bytes(self.bytes[:-1])
        self.refused(self.weight, r"has \d+ bytes and `w` ends at \d+: it is not whole")

    def test_what_is_no_archive_is_refused(self) -> None:
        for content in [b"", b"IRPA", b"\xff" * 200, self.bytes[:100], b"irpa" + self.bytes[4:]]:
            self.path.write_bytes(content)
            with self.subTest(content=content[:16]):
                self.refused(self.weight, "no parameter archive that `export` wrote")

    def test_no_damage_of_its_table_is_more_than_an_error(self) -> None:
        for at in range(self.data):
            for value in (0, 1, 0x7F, 0xFF):
                self.path.write_bytes(self.bytes[:at] + bytes([value]) + self.bytes[at + 1 :])
                with contextlib.suppress(CheckpointError):
                    Checkpoint(self.manifest).check([self.weight])


if __name__ == "__main__":
    unittest.main()
