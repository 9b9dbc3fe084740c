"""The compiler in the Python package `iree-base-compiler`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def path() -> Path | None:
    """The program `iree-compile` itself, which starts faster than its Python script; `None` without the package."""
    try:
        spec = importlib.util.find_spec("iree.compiler")
    except ModuleNotFoundError:
        return None
    for folder in (spec and spec.submodule_search_locations) or []:
        program = Path(folder, "_mlir_libs", "iree-compile.exe" if os.name == "nt" else "iree-compile")
        if program.exists():
            return program
    return None
