"""Runs what `tracewright export --engine xla` wrote, through XLA on one device or on many.

The export decides everything: which modules there are, what each argument is, how each tensor is divided among the devices
of a mesh, where in the checkpoint each weight lies. This package maps, shards and steps.

>>> from tracewright_xla import Program
>>> program = Program.load("export")                                   # doctest: +SKIP
>>> [row.tokens for row in program.generate([[5, 17, 3]], tokens=8)]   # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import CheckpointError, LogitsError, ManifestError, MeshError, ProcessError, PromptError, TracewrightError
from .manifest import Manifest

if TYPE_CHECKING:
    from .program import Program

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "LogitsError",
    "Manifest",
    "ManifestError",
    "MeshError",
    "ProcessError",
    "Program",
    "PromptError",
    "TracewrightError",
]


def __getattr__(name: str) -> type[Program]:
    # jax takes seconds to load: whoever asks for help does not wait for it, and may interrupt what the command line runs.
    if name == "Program":
        from .program import Program

        return Program
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
