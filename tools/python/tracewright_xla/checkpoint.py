"""Weights from the files of a checkpoint, slice by slice: a process reads the bytes of its own parts and no others."""

from __future__ import annotations

import itertools
import json
import math
import os
import reprlib
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import CheckpointError
from .manifest import NAMES, Manifest, Weight

Index = tuple[slice, ...]
"""A part of a tensor: of each axis the elements from one on up to another."""


class _Held(NamedTuple):
    """A tensor in a file."""

    start: int
    end: int
    """Its first byte and the first behind it."""
    stored: str
    """The type of its elements, in the manifest's words."""
    shape: tuple[int, ...]


_LONGEST_HEADER = 100 << 20
"""Bytes of a safetensors header at most: the limit of the format's own library."""

_ARCHIVE = struct.Struct("<4s2H3Q7Q")
"""The header of a parameter archive: magic, version, its size, the next one, flags, entries; offset and length of the
entries, of names and metadata, of the data."""

_ENTRY = struct.Struct("<QIQ4QQ2Q")
"""An entry that has data: its size, type and flags; offset and length of its name and of its metadata; alignment; offset
and length of its data."""

_DATA = 2
"""The type of such an entry."""


class Checkpoint:
    """The files that weights are read from.

    Nothing is mapped: what is read is counted, and no page that belongs to another process's part is touched.
    """

    def __init__(self, manifest: Manifest, folder: Path | None = None) -> None:
        """The files of an export; those of the checkpoint in `folder` if it has moved since."""
        self._made = manifest.folder
        self._folder = folder or manifest.checkpoint
        self._files: dict[Path, int] = {}
        self.bytes_read = 0
        """How many bytes of weights have been read."""

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def path(self, weight: Weight) -> Path:
        """The file that has a weight."""
        return (self._made if weight.made else self._folder) / weight.file

    def check(self, weights: list[Weight]) -> None:
        """Compares the headers of all files with what was exported, before a weight is read.

        Raises `CheckpointError` with everything that is missing or differs.
        """
        by_file: dict[Path, list[Weight]] = {}
        for weight in weights:
            by_file.setdefault(self.path(weight), []).append(weight)
        problems: list[str] = []
        for path, held in by_file.items():
            try:
                if not path.is_file():
                    problems.append(f"`{path}` is missing, which has {len(held)} weights")
                    continue
                size = path.stat().st_size
            except OSError as error:
                problems.append(f"`{path}`, which has {len(held)} weights, cannot be read: {error.strerror}")
                continue
            tensors = _archived(path, size) if held[0].made else _tensors(path, size)
            for weight in held:
                if weight.tensor not in tensors:
                    problems.append(f"`{path}` has no tensor `{weight.tensor}` for `{weight.key}`")
                    continue
                tensor, shape = tensors[weight.tensor], weight.type.shape
                if weight.offset < tensor.start or weight.end > tensor.end:
                    problems.append(
                        f"`{path}` has `{weight.tensor}` at bytes {tensor.start} to {tensor.end}, "
                        f"expected `{weight.key}` at {weight.offset} to {weight.end}"
                    )
                elif weight.end > size:
                    problems.append(f"`{path}` has {size} bytes and `{weight.key}` ends at {weight.end}: it is not whole")
                elif tensor.stored != NAMES[weight.stored]:
                    problems.append(f"`{path}` has `{weight.key}` in {tensor.stored}, expected {NAMES[weight.stored]}")
                elif tensor.shape[len(tensor.shape) - len(shape) + 1 :] != shape[1:]:
                    # A part has other rows than the whole, and no other extents.
                    problems.append(f"`{path}` has `{weight.tensor}` of shape {list(tensor.shape)}, expected {list(shape)}")
        if problems:
            listed = "\n  ".join(problems[:8]) + ("\n  …" if len(problems) > 8 else "")
            raise CheckpointError(
                f"the checkpoint is not the one that was exported: {len(problems)} problem(s)\n  {listed}\n"
                "`--checkpoint FOLDER` says where it lies now; if it has changed, export the model again"
            )

    def read(self, weight: Weight, index: Index) -> np.ndarray:
        """The elements of a part of a weight, as the program computes with them.

        Raises `CheckpointError` if the file cannot be read or ends before.
        """
        bounds = [part.indices(extent)[:2] for part, extent in zip(index, weight.type.shape, strict=True)]
        shape = tuple(stop - start for start, stop in bounds)
        out = np.empty(shape, weight.stored)
        flat = memoryview(out.reshape(-1).view(np.uint8))
        done = 0
        for start, length in _runs(weight, bounds):
            self._fill(weight, flat[done : done + length], start)
            done += length
        self.bytes_read += done
        return out if weight.stored == weight.type.element else out.astype(weight.type.element)

    def _fill(self, weight: Weight, out: memoryview, at: int) -> None:
        path = self.path(weight)
        try:
            if path not in self._files:
                self._files[path] = os.open(path, os.O_RDONLY)
            while len(out) > 0:
                count = os.preadv(self._files[path], [out], at)
                if count == 0:
                    raise CheckpointError(f"`{path}` ends before byte {at} of `{weight.key}`; the checkpoint was changed")
                out, at = out[count:], at + count
        except OSError as error:
            raise CheckpointError(f"`{path}` cannot be read for `{weight.key}`: {error}") from error


def _runs(weight: Weight, bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where the bytes of a part lie: first byte and length of each run, in row-major order."""
    shape = weight.type.shape
    strides = [weight.stored.itemsize] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    divided = [axis for axis, (start, stop) in enumerate(bounds) if (start, stop) != (0, shape[axis])]
    if not divided:
        return [(weight.offset, weight.end - weight.offset)]
    last = divided[-1]
    first, length = bounds[last][0] * strides[last], (bounds[last][1] - bounds[last][0]) * strides[last]
    outer = itertools.product(*(range(start, stop) for start, stop in bounds[:last]))
    offsets = (sum(i * stride for i, stride in zip(at, strides)) for at in outer)
    return [(weight.offset + offset + first, length) for offset in offsets] if length else []


def _tensors(path: Path, size: int) -> dict[str, _Held]:
    """First byte, end and elements of each tensor of a safetensors file; raises `CheckpointError` if it is none."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise ValueError(f"its header would have {length} bytes")
            header = json.loads(file.read(length))
        tensors = {}
        for name, info in header.items():
            if name != "__metadata__":
                start, end = _numbers(info["data_offsets"])
                # The manifest's words, but for one.
                stored = info["dtype"].lower().replace("bool", "i1")
                tensors[name] = _Held(8 + length + start, 8 + length + end, stored, _numbers(info["shape"]))
        return tensors
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"`{path}` is no safetensors file: {error}") from error


def _numbers(found: Any) -> tuple[int, ...]:
    """Extents or offsets; raises `ValueError` if they are none."""
    if not isinstance(found, list) or any(type(one) is not int or not 0 <= one < 1 << 63 for one in found):
        raise ValueError(f"{reprlib.repr(found)} are no extents or offsets")
    return tuple(found)


def _archived(path: Path, size: int) -> dict[str, _Held]:
    """The same of a parameter archive that `export` wrote, which has data alone, and says of each what it is."""
    try:
        with open(path, "rb") as file:
            magic, _, _, header, following, _, count, *segments = _ARCHIVE.unpack(file.read(_ARCHIVE.size))
            entries, entries_length, words, words_length, data, _ = segments
            if (magic, header, following) != (b"IRPA", _ARCHIVE.size, 0):
                raise ValueError("its header is another")
            if max(entries_length, words_length) > min(_LONGEST_HEADER, size):
                raise ValueError(f"its table would have {entries_length + words_length} bytes")
            file.seek(entries)
            table = file.read(entries_length)
            file.seek(words)
            said = file.read(words_length)
        tensors, at = {}, 0
        for _ in range(count):
            length, kind, _, name, name_length, about, about_length, _, start, held = _ENTRY.unpack_from(table, at)
            if (length, kind) != (_ENTRY.size, _DATA):
                raise ValueError(f"it has an entry of {length} bytes, of type {kind}")
            at += -(-length // 16) * 16
            info = json.loads(said[about : about + about_length])
            key = said[name : name + name_length].decode()
            tensors[key] = _Held(data + start, data + start + held, info["dtype"], _numbers(info["shape"]))
        return tensors
    except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise CheckpointError(f"`{path}` is no parameter archive that `export` wrote: {error}") from error
