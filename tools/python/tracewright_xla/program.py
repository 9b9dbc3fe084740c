"""A program: its modules, its weights, and the state of each row. It steps, and decides nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .checkpoint import Checkpoint, Index
from .errors import LogitsError, PromptError
from .manifest import Entry, Manifest, Value, Weight
from .mesh import device_mesh, sharding
from .module import Module


@dataclass
class Row:
    """A sequence: what is still to be read, and what was chosen."""

    pending: list[int]
    """Tokens that the network has not seen."""
    prompt: tuple[int, ...] = ()
    """The tokens that others are chosen after."""
    original: float = math.inf
    """The largest number of tokens with which the state of the row is valid."""
    seen: int = 0
    """How many it has."""
    tokens: list[int] = field(default_factory=list)
    """Those that were chosen."""
    done: bool = False


class Program:
    """What an export becomes on the devices of its mesh."""

    def __init__(self, manifest: Manifest, mesh: Mesh, weights: dict[str, jax.Array], bytes_read: int) -> None:
        """See `Program.load`."""
        self.manifest = manifest
        self.bytes_read = bytes_read
        """How many bytes of weights this process has read."""
        self._mesh = mesh
        self._weights = weights
        self._modules: dict[str, Module] = {}
        self._state: dict[str, jax.Array] = {}
        whole = NamedSharding(mesh, PartitionSpec())
        self._whole = jax.jit(lambda x: x, out_shardings=whole)
        self._decides = jax.jit(lambda x: (x < jnp.inf).all(-1) & (x > -jnp.inf).any(-1), out_shardings=whole)

    @staticmethod
    def load(
        folder: str | Path | Manifest, checkpoint: Path | None = None, entries: Sequence[str] | None = None
    ) -> Program:
        """Reads this process's parts of all weights that `entries` need (those that choose tokens, unless said).

        Raises `ManifestError`, `MeshError` or `CheckpointError` for what does not fit, before a weight is read.
        """
        manifest = folder if isinstance(folder, Manifest) else Manifest.read(folder)
        mesh = device_mesh(manifest)
        chosen = [entry for entry in manifest.entries.values() if entry.chooses]
        if entries is not None:
            chosen = [manifest.entries[name] for name in entries]
        keys = sorted({key for entry in chosen for key in entry.weights})
        wanted = [manifest.weights[key] for key in keys]
        for entry in chosen:
            manifest.text(entry)  # What does not fit is told now.
        with Checkpoint(manifest, checkpoint) as files:
            files.check(wanted)
            weights = {weight.key: _put(files, weight, mesh) for weight in wanted}
            return Program(manifest, mesh, weights, files.bytes_read)

    def module(self, name: str) -> Module:
        """An entry point, compiled when it is first needed."""
        if name not in self._modules:
            entry = self.manifest.entries[name]
            self._modules[name] = Module(entry, self.manifest.text(entry), self._mesh)
        return self._modules[name]

    def call(
        self, name: str, tokens: np.ndarray, start: np.ndarray, count: np.ndarray, length: np.ndarray | None = None
    ) -> dict[str, jax.Array]:
        """Calls an entry point, and remembers the state it gives: what it gives besides, by role.

        `tokens` is `i32[B,S]`, `start` and `count` are `i32[B]`: how many tokens each row has seen, and how many of its new
        ones are real. `length` is how many tokens each row has with those of later calls, `start + count` unless given: a
        network can have another rotary embedding for long rows.
        """
        module = self.module(name)
        given = {"tokens": tokens, "start": start, "count": count, "length": start + count if length is None else length}
        arguments = [self._argument(value, given) for value in module.entry.arguments]
        weights = [self._weights[key] for key in module.entry.weights]
        # What was donated is gone: nothing may refer to it when the call fails.
        self._state.clear()
        results = dict(zip((value.role for value in module.entry.results), module(arguments + weights), strict=True))
        self._state = {role: array for role, array in results.items() if role.startswith("state(")}
        return {role: array for role, array in results.items() if role not in self._state}

    def fetch(self, array: jax.Array) -> np.ndarray:
        """All of an array, in every process."""
        if array.is_fully_addressable or array.is_fully_replicated:
            return np.asarray(array)
        return np.asarray(self._whole(array).addressable_data(0))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        ends: frozenset[int] = frozenset(),
    ) -> list[Row]:
        """The rows with at most this many new tokens each: see `steps`."""
        rows: list[Row] = []
        for rows in self.steps(prompts, tokens, temperature, seed, ends):
            pass
        return rows

    def steps(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        ends: frozenset[int] = frozenset(),
    ) -> Iterator[list[Row]]:
        """The rows before the first call and after each.

        The most likely token is taken, or at a temperature one by its probability; a row is done with the tokens that were
        asked for, or with one of `ends`, which is its last. Equal seeds draw equal tokens, in every process.

        Raises `PromptError` for prompts that the program does not take and settings that are none, `LogitsError` where no token
        can be chosen.
        """
        if not (math.isfinite(temperature) and temperature >= 0):
            raise PromptError(f"the temperature is {temperature}, expected a number from 0")
        if tokens < 0 or seed < 0:
            raise PromptError(f"{tokens} new tokens are asked for and the seed is {seed}; expected numbers from 0")
        rows = self._rows(prompts, tokens)
        draw = [np.random.default_rng([seed, row]) for row in range(len(rows))]
        self._state = {}
        yield rows
        while any(not row.done for row in rows):
            for row in rows:
                self._extend(row)
            entry = self._entry(max(len(row.pending) for row in rows if not row.done))
            results = self._feed(entry, rows)
            chosen = self.fetch(results["token"])
            # The logit of the chosen token does not tell: a maximum over several devices passes over NaN.
            reads = temperature > 0 or not self.fetch(self._decides(results["logits"])).all()
            logits = self.fetch(results["logits"]) if reads else None
            for at, row in enumerate(rows):
                if row.done or row.pending:
                    continue
                if logits is not None:
                    _check(logits[at], len(row.tokens))
                token = int(chosen[at]) if temperature == 0 else _sample(logits[at], temperature, draw[at])
                if not 0 <= token < self.manifest.vocabulary:
                    raise LogitsError(f"the program chose the token {token}, expected one below {self.manifest.vocabulary}")
                row.tokens.append(token)
                row.pending = [token]
                row.done = token in ends or len(row.tokens) >= tokens
            yield rows

    def _rows(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Row]:
        batch = self.manifest.batch
        if not 1 <= len(prompts) <= batch:
            raise PromptError(f"there are {len(prompts)} prompts, expected 1 to {batch}; `export --batch N` takes more")
        for prompt in prompts:
            if not prompt:
                raise PromptError("a prompt is empty; expected at least one token")
            wrong = [token for token in prompt if not 0 <= token < self.manifest.vocabulary]
            if wrong:
                raise PromptError(f"token {wrong[0]} is none of the model's {self.manifest.vocabulary}")
            if len(prompt) + tokens > self.manifest.context:
                raise PromptError(
                    f"{len(prompt)} tokens and {tokens} new ones are more than the context of {self.manifest.context}; "
                    "`export --context N` makes it longer, up to the model's own"
                )
        rows = [Row(list(prompt), tuple(prompt), done=tokens == 0) for prompt in prompts]
        return rows + [Row([], done=True) for _ in range(batch - len(rows))]

    def _extend(self, row: Row) -> None:
        """Begins a row again that has become too long for its rotary embedding."""
        length = row.seen + len(row.pending)
        original = min((most for most in self.manifest.originals if most >= length), default=math.inf)
        if original != row.original and not row.done:
            row.pending, row.seen, row.original = [*row.prompt, *row.tokens], 0, original

    def _entry(self, tokens: int) -> Entry:
        """The smallest entry point that takes so many tokens at once, or the largest."""
        steps = sorted((entry for entry in self.manifest.entries.values() if entry.chooses), key=lambda e: e.width)
        return next((entry for entry in steps if entry.width >= tokens), steps[-1])

    def _feed(self, entry: Entry, rows: list[Row]) -> dict[str, jax.Array]:
        tokens = np.zeros((len(rows), entry.width), np.int32)
        start, count, length = (np.zeros(len(rows), np.int32) for _ in range(3))
        for at, row in enumerate(rows):
            start[at], length[at] = row.seen, row.seen + len(row.pending)
            if not row.done:
                new = row.pending[: entry.width]
                tokens[at, : len(new)], count[at] = new, len(new)
                row.pending, row.seen = row.pending[len(new) :], row.seen + len(new)
        if not self.manifest.originals:
            return self.call(entry.name, tokens, start, count)
        return self.call(entry.name, tokens, start, count, length)

    def _argument(self, value: Value, given: dict[str, np.ndarray]) -> jax.Array:
        role = value.role.split("(")[0]
        if role == "state":
            return self._state[value.role] if value.role in self._state else self._empty(value)
        original = value.original
        array = given[role] if original is None else (given["length"] > original).astype(np.int32)
        array = array.reshape(value.type.shape)
        return jax.make_array_from_callback(
            value.type.shape, sharding(self._mesh, value.sharding), lambda index: array[index]
        )

    def _empty(self, value: Value) -> jax.Array:
        """State before the first token, whatever it holds: position 0 sees nothing of it."""

        def part(index: Index) -> np.ndarray:
            bounds = (bound.indices(extent) for bound, extent in zip(index, value.type.shape))
            return np.zeros([stop - start for start, stop, _ in bounds], value.type.element)

        return jax.make_array_from_callback(value.type.shape, sharding(self._mesh, value.sharding), part)


def _put(files: Checkpoint, weight: Weight, mesh: Mesh) -> jax.Array:
    """A weight on the devices; devices of this process that hold the same share what was read."""
    read: dict[str, np.ndarray] = {}

    def part(index: Index) -> np.ndarray:
        if str(index) not in read:
            read[str(index)] = files.read(weight, index)
        return read[str(index)]

    return jax.make_array_from_callback(weight.type.shape, sharding(mesh, weight.sharding), part)


def _check(logits: np.ndarray, step: int) -> None:
    """Raises `LogitsError` if the logits `f32[V]` of a row choose no token, of which `step` were chosen before."""
    wrong = np.flatnonzero(np.isnan(logits) | np.isposinf(logits))
    if wrong.size > 0:
        found = str(logits[wrong[0]]).replace("nan", "NaN")
        problem = f"logit of token {wrong[0]} is {found}, expected a number below infinity"
    elif np.isneginf(logits).all():
        problem = f"all {logits.size} logits are -inf, expected at least one finite logit"
    else:
        return
    raise LogitsError(f"step {step}: {problem}; the weights or the compiled program are broken")


def _sample(logits: np.ndarray, temperature: float, draw: np.random.Generator) -> int:
    """A token by its probability at a temperature, from logits `f32[V]`."""
    # Of differences no temperature makes NaN; of the last of the sums, which is their total, no rounding makes a token past it.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - logits.max()) / temperature
    sums = np.cumsum(np.exp(scaled))
    return int(np.searchsorted(sums, draw.random() * sums[-1], side="right"))
