"""`manifest.json` of an export for XLA, as `tracewright export --engine xla` writes it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from blake3 import blake3
from jsonschema.validators import Draft202012Validator, extend

from .errors import ManifestError
from .files import CONFIG, LARGE, read_text

_SCHEMA: dict[str, Any] = json.loads(Path(__file__).with_name("manifest.schema.json").read_text())["$defs"]

FORMAT: int = _SCHEMA["XlaManifest"]["properties"]["format"]["const"]
"""The form of the manifest that this version reads."""

# JSON Schema counts 7.0 as an integer; Rust, which reads the manifest too, does not.
_TYPES = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, found: type(found) is int)
_VALIDATOR = extend(Draft202012Validator, type_checker=_TYPES)({"$ref": "#/$defs/XlaManifest", "$defs": _SCHEMA})

MOST_DEVICES = 1 << 20
"""Devices of a mesh at most: the limit of `export --mesh`."""

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

NAMES = {dtype: name for name, dtype in _ELEMENTS.items()}
"""What types of elements are called."""

_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "object": "an object",
    "string": "text",
}
"""The types of JSON, in words."""

T = TypeVar("T")

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

    def __str__(self) -> str:
        return f"{NAMES[self.element]}[{','.join(map(str, self.shape))}]"

    @staticmethod
    def parse(text: str) -> TensorType:
        """Reads `bf16[2,3]`; raises `ManifestError` for anything else, and for more elements or axes than any tensor has."""
        found = re.fullmatch(r"(\w+)\[((?:[1-9][0-9]{0,17}(?:,[1-9][0-9]{0,17}){0,15})?)\]", text)
        extents = tuple(int(extent) for extent in found[2].split(",") if extent) if found else ()
        if found is None or math.prod(extents) >= 1 << 60:
            raise ManifestError(f"{reprlib.repr(text)} is no type of a tensor")
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

    @property
    def original(self) -> int | None:
        """Of an argument that is 1 for rows with more tokens than this number, and 0 for others: the number."""
        found = re.fullmatch(r"extended\(original (\d{1,18})\)", self.role)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Weight:
    """A weight, and where its bytes are."""

    key: str
    type: TensorType
    sharding: Split
    file: str
    tensor: str
    """What the file calls the tensor that it is, or is a part of."""
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
    blake3: str
    """The hash of its text."""
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
    def originals(self) -> set[int]:
        """The lengths above which rows have another rotary embedding."""
        values = (value.original for entry in self.entries.values() for value in entry.arguments)
        return {original for original in values if original is not None}

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
            content: Any = json.loads(read_text(path, CONFIG))
        except FileNotFoundError:
            raise ManifestError(f"`{folder}` is no export directory: it has no `manifest.json`") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ManifestError(f"`{path}` cannot be read: {error}") from error
        if not isinstance(content, dict) or content.get("engine") != "xla":
            raise ManifestError(f"`{path}` is no export for XLA; export the model with `--engine xla`")
        form = content.get("format")
        if type(form) is not int or form != FORMAT:
            raise ManifestError(
                f"`{path}` has format {reprlib.repr(form)}, expected {FORMAT}; "
                "export the model again with the tracewright that this package came with"
            )
        try:
            return Manifest._of(folder, content)
        except ManifestError as error:
            raise ManifestError(f"`{path}` is not as it was written: {error}; export the model again") from None

    @staticmethod
    def _of(folder: Path, content: dict[str, Any]) -> Manifest:
        _check_schema(content)
        weights = [_weight(weight, f"weights[{at}]") for at, weight in enumerate(content["weights"])]
        entries = [_entry(entry, f"entry_points[{at}]") for at, entry in enumerate(content["entry_points"])]
        manifest = Manifest(
            folder=folder,
            tracewright=content["tracewright"],
            context=content["context"],
            batch=content["batch"],
            vocabulary=content["vocabulary"],
            mesh=content["mesh"],
            axes=_axes(content["axes"]),
            checkpoint=Path(content["checkpoint"]),
            entries={entry.name: entry for entry in entries},
            weights={weight.key: weight for weight in weights},
        )
        if len(manifest.entries) < len(entries) or len(manifest.weights) < len(weights):
            raise ManifestError("two entry points or two weights have the same name")
        _check(manifest, content["chunk"])
        return manifest

    def text(self, entry: Entry) -> str:
        """The text of a module.

        Raises `ManifestError` if its file cannot be read, is not the one that was exported, or takes or gives something else
        than the manifest says: XLA compares bytes alone, so that f16 would pass for bf16.
        """
        path = self.folder / entry.module
        try:
            text = read_text(path, LARGE)
        except (OSError, ValueError) as error:
            raise ManifestError(f"`{path}`, which the manifest names, cannot be read: {error}") from error
        found = blake3(text.encode()).hexdigest()
        if found != entry.blake3:
            raise ManifestError(
                f"`{path}` is not the module that the manifest names (blake3 {found}, expected {entry.blake3}); "
                "export the model again"
            )
        mesh = ", ".join(f'"{name}"={size}' for name, size in self.axes)
        if self.axes and f"sdy.mesh @mesh = <[{mesh}]>" not in text:
            raise ManifestError(f"`{path}` is for another mesh than the manifest, whose axes are {mesh}")
        values = (*entry.arguments, *(self.weights[key] for key in entry.weights), *entry.results)
        main = re.search(r"^ *func\.func @main\(.*", text, re.MULTILINE)
        written = _TENSOR.findall(main[0] if main else "")
        for found, expected in zip_longest(written, (_spelled(value, bool(self.axes)) for value in values)):
            if found != expected:
                raise ManifestError(f"`{path}` has {found or 'nothing'} where the manifest has {expected or 'nothing'}")
        return text

    def digest(self) -> str:
        """A hash of the manifest and all modules, wherever the checkpoint lies: equal programs have equal ones."""
        content = json.loads(read_text(self.folder / "manifest.json", CONFIG))
        content.pop("checkpoint", None)
        hashed = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for entry in self.entries.values():
            hashed.update(self.text(entry).encode())
        return hashed.hexdigest()[:16]


def _check_schema(content: dict[str, Any]) -> None:
    """Raises `ManifestError` for the first value that the schema refuses: its key, the value, what is expected."""
    error = next(_VALIDATOR.iter_errors(content), None)
    if error is None:
        return
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.absolute_path)
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        raise ManifestError(f"`{f'{where}.{missing}'.lstrip('.')}` is missing")
    schema: dict[str, Any] = error.schema
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    bounds = "".join(f" {word} {schema[key]}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema)
    expected = " or ".join(_KINDS[kind] for kind in kinds) + bounds
    raise ManifestError(f"`{where.lstrip('.')}` is {reprlib.repr(error.instance)}, expected {expected}")


def _parsed(parse: Callable[[str], T], content: dict[str, Any], key: str, at: str) -> T:
    """The text under a key, read; `at` is where the object stands."""
    try:
        return parse(content[key])
    except ManifestError as error:
        raise ManifestError(f"`{at}.{key}`: {error}") from None


def _path(text: str) -> str:
    """The path of a file in a folder, which it does not leave."""
    path = PurePosixPath(text)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in text:
        raise ManifestError(f"{reprlib.repr(text)} is no file of its folder")
    return text


def _name(text: str) -> str:
    """The name of a file, without folders."""
    if len(PurePosixPath(_path(text)).parts) != 1:
        raise ManifestError(f"{reprlib.repr(text)} is no plain file name")
    return text


def _axes(axes: list[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """The axes of a mesh, of which none is there twice."""
    read = tuple((axis["name"], axis["size"]) for axis in axes)
    if len(dict(read)) < len(read):
        raise ManifestError("two of `axes` have the same name")
    devices = math.prod(size for _, size in read)
    if devices > MOST_DEVICES:
        raise ManifestError(f"`axes` have {devices} devices, expected 1 to {MOST_DEVICES}")
    return read


def _split(content: dict[str, Any]) -> Split:
    # The schema shares arguments and results with IREE's manifests, which have no such key.
    return tuple(tuple(axes) for axes in content.get("sharding") or ())


def _values(entry: dict[str, Any], key: str, at: str) -> tuple[Value, ...]:
    return tuple(
        Value(value["name"], value["role"], _parsed(TensorType.parse, value, "type", f"{at}.{key}[{i}]"), _split(value))
        for i, value in enumerate(entry[key])
    )


def _weight(weight: dict[str, Any], at: str) -> Weight:
    made = weight["made"]
    return Weight(
        key=weight["key"],
        type=_parsed(TensorType.parse, weight, "type", at),
        sharding=_split(weight),
        # A checkpoint may have folders; the export has none.
        file=_parsed(_name if made else _path, weight, "file", at),
        tensor=weight["tensor"],
        made=made,
        stored=_parsed(element, weight, "stored", at),
        offset=weight["offset"],
    )


def _entry(entry: dict[str, Any], at: str) -> Entry:
    return Entry(
        name=entry["name"],
        module=_parsed(_name, entry, "module", at),
        blake3=entry["module_blake3"],
        arguments=_values(entry, "arguments", at),
        weights=tuple(entry["weights"]),
        results=_values(entry, "results", at),
    )


_TENSOR = re.compile(r"tensor<[^<>]*>(?: \{sdy\.sharding = #sdy\.sharding<@mesh, \[[^]<]*\]>)?")
"""An argument or a result of a module, and how it is divided. Nothing of it reaches into the next one, so that the time is
that of one look at a text."""


def _spelled(value: Value | Weight, divided: bool) -> str:
    """The same as a module has it."""
    shape, name = value.type.shape, NAMES[value.type.element]
    text = f"tensor<{'x'.join([*map(str, shape), name])}>"
    axes = ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in value.sharding)
    return text + (f" {{sdy.sharding = #sdy.sharding<@mesh, [{axes}]>" if divided else "")


def _check(manifest: Manifest, chunk: int) -> None:
    """Compares what the manifest says in several places; raises `ManifestError` where it differs."""
    entries = list(manifest.entries.values())
    if not any(entry.chooses for entry in entries):
        raise ManifestError("no entry point chooses a token")
    sizes = {"context": manifest.context, "chunk": chunk, "batch": manifest.batch, "vocabulary": manifest.vocabulary}
    if chunk > manifest.context:
        raise ManifestError(f"`chunk` is {chunk}, expected 1 to {manifest.context}")
    for key, weight in manifest.weights.items():
        _check_split(manifest, f"`{key}`", weight)
    for entry in entries:
        lost = [key for key in entry.weights if key not in manifest.weights]
        if lost:
            raise ManifestError(f"`{entry.name}` takes `{lost[0]}`, which is none of `weights`")
        roles = {value.role for value in entry.arguments}, {value.role for value in entry.results}
        if "tokens" not in roles[0] or "logits" not in roles[1]:
            raise ManifestError(f"`{entry.name}` takes no tokens or gives no logits")
        # State that one gives and another does not take would be empty there.
        for values in (entry.arguments, entry.results):
            if _state(values) != _state(entries[0].arguments):
                raise ManifestError(f"`{entry.name}` takes or gives other state than `{entries[0].name}` takes")
        for value in (*entry.arguments, *entry.results):
            for key, size in _sizes(value).items():
                if sizes[key] != size:
                    raise ManifestError(f"`{key}` is {sizes[key]}, and `{value.name}` of `{entry.name}` is for {size}")
            _check_split(manifest, f"`{value.name}` of `{entry.name}`", value)
        for verb, values, known in (("takes", entry.arguments, _TAKEN), ("gives", entry.results, _GIVEN)):
            for role, count in Counter(value.role for value in values).items():
                if count > 1 or role.split("(")[0] not in known:
                    expected = f"each of {', '.join(sorted(known))} once"
                    raise ManifestError(f"`{entry.name}` {verb} {reprlib.repr(role)} {count} time(s), expected {expected}")
    longest = max(entries, key=lambda entry: entry.width)
    if longest.width != chunk:
        raise ManifestError(f"`chunk` is {chunk}, and `tokens` of `{longest.name}` are {longest.width}")


def _check_split(manifest: Manifest, what: str, value: Value | Weight) -> None:
    """Raises `ManifestError` if a tensor is not divided evenly along axes of the mesh, each of them once."""
    sizes, shape, used = dict(manifest.axes), value.type.shape, [axis for axes in value.sharding for axis in axes]
    known = len(value.sharding) == len(shape) and len(set(used)) == len(used) and sizes.keys() >= set(used)
    if not known or any(extent % math.prod(sizes[axis] for axis in axes) for extent, axes in zip(shape, value.sharding)):
        split = reprlib.repr([list(axes) for axes in value.sharding])
        raise ManifestError(f"{what}, {value.type}, is divided as {split}, which the mesh `{manifest.mesh}` does not do evenly")


def _state(values: tuple[Value, ...]) -> dict[str, tuple[TensorType, Split]]:
    return {value.role: (value.type, value.sharding) for value in values if value.role.startswith("state(")}


_TAKEN, _GIVEN = {"tokens", "start", "count", "extended", "state"}, {"logits", "token", "state"}
"""The roles of arguments, and those of results."""


def _sizes(value: Value) -> dict[str, int]:
    """What an argument or a result tells of the sizes of the program; raises `ManifestError` if it is none that is known."""
    role, shape = value.role, value.type.shape
    start, extended = re.fullmatch(r"start\(context (\d{1,18})\)", role), value.original is not None
    ring = re.match(r"state\(ring\(window \d+, slack (\d{1,18})\)\.", role)
    match role.split("(")[0] if start or extended or role.startswith("state(") else role, NAMES[value.type.element], shape:
        case "tokens", "i32", (batch, _):
            return {"batch": batch}
        case "start", "i32", () | (_,) if start:  # A single row has no axis.
            return {"batch": math.prod(shape), "context": int(start[1])}
        case "count" | "extended", "i32", () | (_,):
            return {"batch": math.prod(shape)}
        case "logits", "f32", (batch, *_, vocabulary):
            return {"batch": batch, "vocabulary": vocabulary}
        case "token", "i32", (batch,):
            return {"batch": batch}
        case "state", _, (batch, *_, slots, _) if role.startswith("state(kv."):
            return {"batch": batch, "context": slots}
        case "state", _, (batch, *_) if ring:
            return {"batch": batch, "chunk": int(ring[1])}
        case "state", _, (batch, *_):
            return {"batch": batch}
    raise ManifestError(f"`{value.name}`, {value.type}, has the role {reprlib.repr(role)}, which this version does not know")
