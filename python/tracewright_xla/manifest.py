"""`manifest.json` of an export for XLA, as `tracewright export --engine xla` writes it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .errors import ManifestError

FORMAT = 1
"""The form of the manifest that this version reads."""

_ELEMENTS: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "i1": np.dtype(np.bool_),
}

Split = tuple[tuple[str, ...], ...]
"""Of each axis of a tensor the mesh's axes along which it is divided."""


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor: `bf16[2,3]`."""

    element: np.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.element.itemsize

    @staticmethod
    def parse(text: str) -> TensorType:
        """Reads `bf16[2,3]`; raises `ManifestError` for anything else."""
        found = re.fullmatch(r"(\w+)\[([\d,]*)\]", text)
        if found is None:
            raise ManifestError(f"`{text}` is no type of a tensor; export the model again")
        extents = tuple(int(extent) for extent in found[2].split(",") if extent)
        return TensorType(element(found[1]), extents)


def element(name: str) -> np.dtype:
    """The NumPy type of an element; raises `ManifestError` if there is none of this name."""
    if name not in _ELEMENTS:
        raise ManifestError(f"elements of type `{name}` are not known; expected one of {', '.join(_ELEMENTS)}")
    return _ELEMENTS[name]


@dataclass(frozen=True)
class Value:
    """An argument or a result of an entry point."""

    name: str
    role: str
    """What it is to the caller: `tokens`, `start(context 512)`, `count`, `state(kv.keys, layer 3)`, `logits`, `token`."""
    type: TensorType
    sharding: Split


@dataclass(frozen=True)
class Weight:
    """A weight, and where its bytes are."""

    key: str
    type: TensorType
    sharding: Split
    file: str
    made: bool
    """Whether the file is in the export's folder, not in the checkpoint's."""
    stored: np.dtype
    """The type of its elements in the file."""
    offset: int

    @property
    def end(self) -> int:
        """The first byte of the file behind it."""
        return self.offset + math.prod(self.type.shape) * self.stored.itemsize


@dataclass(frozen=True)
class Entry:
    """A module: its arguments, then its weights, then its results, in order."""

    name: str
    module: str
    arguments: tuple[Value, ...]
    weights: tuple[str, ...]
    results: tuple[Value, ...]

    @property
    def width(self) -> int:
        """New tokens of each row that it takes."""
        return next(value.type.shape[1] for value in self.arguments if value.role == "tokens")

    @property
    def chooses(self) -> bool:
        """Whether it says which token is the most likely next."""
        return any(value.role == "token" for value in self.results)


@dataclass(frozen=True)
class Manifest:
    """An export directory."""

    folder: Path
    tracewright: str
    context: int
    batch: int
    vocabulary: int
    mesh: str
    """The mesh as it was asked for, `model=4,data=2`; empty for one device."""
    axes: tuple[tuple[str, int], ...]
    """The axes of the mesh and the devices along each, the one that varies slowest first."""
    checkpoint: Path
    entries: dict[str, Entry]
    weights: dict[str, Weight]

    @property
    def devices(self) -> int:
        """The devices that the program is divided among."""
        return math.prod(size for _, size in self.axes)

    @staticmethod
    def read(folder: str | Path) -> Manifest:
        """Reads the manifest of an export directory; raises `ManifestError` if it has none, or one of another form."""
        folder = Path(folder)
        path = folder / "manifest.json"
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ManifestError(f"`{folder}` is no export directory: it has no `manifest.json`") from None
        except (OSError, ValueError) as error:
            raise ManifestError(f"`{path}` cannot be read: {error}") from error
        if not isinstance(content, dict) or content.get("engine") != "xla":
            raise ManifestError(f"`{path}` is no export for XLA; export the model with `--engine xla`")
        if content.get("format") != FORMAT:
            raise ManifestError(
                f"`{path}` has format {content.get('format')}, expected {FORMAT}; "
                "export the model again with the tracewright that this package came with"
            )
        try:
            return Manifest._of(folder, content)
        except (KeyError, TypeError, ValueError) as error:
            raise ManifestError(f"`{path}` is not as it was written ({error!r}); export the model again") from error

    @staticmethod
    def _of(folder: Path, content: dict[str, Any]) -> Manifest:
        weights = [_weight(weight) for weight in content["weights"]]
        entries = [_entry(entry) for entry in content["entry_points"]]
        return Manifest(
            folder=folder,
            tracewright=content["tracewright"],
            context=content["context"],
            batch=content["batch"],
            vocabulary=content["vocabulary"],
            mesh=content["mesh"],
            axes=tuple((axis["name"], axis["size"]) for axis in content["axes"]),
            checkpoint=Path(content["checkpoint"]),
            entries={entry.name: entry for entry in entries},
            weights={weight.key: weight for weight in weights},
        )

    def text(self, entry: Entry) -> str:
        """The text of a module; raises `ManifestError` if its file cannot be read."""
        path = self.folder / entry.module
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise ManifestError(f"`{path}`, which the manifest names, cannot be read: {error}") from error

    def digest(self) -> str:
        """A hash of the manifest and all modules, wherever the checkpoint lies: equal programs have equal ones."""
        content = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        content.pop("checkpoint", None)
        hashed = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for entry in self.entries.values():
            hashed.update(self.text(entry).encode())
        return hashed.hexdigest()[:16]


def _split(sharding: list[list[str]]) -> Split:
    return tuple(tuple(axes) for axes in sharding)


def _value(value: dict[str, Any]) -> Value:
    return Value(value["name"], value["role"], TensorType.parse(value["type"]), _split(value["sharding"]))


def _weight(weight: dict[str, Any]) -> Weight:
    return Weight(
        key=weight["key"],
        type=TensorType.parse(weight["type"]),
        sharding=_split(weight["sharding"]),
        file=weight["file"],
        made=weight["made"],
        stored=element(weight["stored"]),
        offset=weight["offset"],
    )


def _entry(entry: dict[str, Any]) -> Entry:
    return Entry(
        name=entry["name"],
        module=entry["module"],
        arguments=tuple(_value(value) for value in entry["arguments"]),
        weights=tuple(entry["weights"]),
        results=tuple(_value(value) for value in entry["results"]),
    )
