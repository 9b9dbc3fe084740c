"""A module, compiled for the devices of a mesh."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import Mesh

from .errors import TracewrightError
from .manifest import Entry
from .mesh import sharding

# Asynchronous collectives are two instructions, of which the first is counted.
_COLLECTIVE = re.compile(
    r"= (?P<type>[^=]*?) (?P<op>all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)

# A processor multiplies bf16 as f32. The scheduler for many idle cores widens the weights of all layers before it multiplies with
# the first one, which takes twice their bytes beside them; this one widens a weight where it is needed.
_CPU = [("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED")]


class Module:
    """An entry point that can be called."""

    def __init__(self, entry: Entry, text: str, mesh: Mesh, settings: Sequence[tuple[str, str | bool | int]] = ()) -> None:
        """Compiles `text` for all devices of `mesh`, with `settings` of XLA by name.

        Raises `TracewrightError` with what XLA says if it does not compile.
        """
        self.entry = entry
        self._shardings = [sharding(mesh, value.sharding) for value in entry.results]
        devices = tuple(mesh.devices.flat)
        options = xla_client.CompileOptions()
        options.num_replicas, options.num_partitions = 1, len(devices)
        build = options.executable_build_options
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
        build.num_replicas, build.num_partitions = 1, len(devices)
        options.env_option_overrides = [*(_CPU if devices[0].platform == "cpu" else []), *settings]
        assignment = np.array([[device.id for device in devices]])
        build.device_assignment = xla_client.DeviceAssignment.create(assignment)
        try:
            self._executable = devices[0].client.compile_and_load(text, xla_client.DeviceList(devices), options)
        except jax.errors.JaxRuntimeError as error:
            raise TracewrightError(f"XLA does not compile `{entry.module}`: {error}") from error

    def __call__(self, arguments: list[jax.Array]) -> list[jax.Array]:
        """The results, for the arguments and then the weights, in the order of the manifest. State is given away."""
        results = self._executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
        pairs = zip(self.entry.results, self._shardings, results, strict=True)
        return [
            jax.make_array_from_single_device_arrays(value.type.shape, divided, list(parts))
            for value, divided, parts in pairs
        ]

    def text(self) -> str:
        """What XLA made of it, as one device runs it."""
        return self._executable.hlo_modules()[0].to_string()

    def argument_bytes(self) -> int:
        """The bytes of all that a device is given: weights, state and the rest, its own parts of them."""
        return int(self._executable.get_compiled_memory_stats().argument_size_in_bytes)

    def collectives(self) -> Counter[tuple[str, str]]:
        """How often a call has each collective with each type of result: `("all-reduce", "f32[1,1,144]")`."""
        return collectives(self.text())


def collectives(text: str) -> Counter[tuple[str, str]]:
    """The same of the text of a compiled module."""
    found = _COLLECTIVE.finditer(text)
    return Counter((match["op"], re.sub(r"\{[^}]*\}", "", match["type"]).strip()) for match in found)
