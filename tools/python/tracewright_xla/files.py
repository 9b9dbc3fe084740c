"""Small files, read whole: none that is no regular file, which may have no end, and none that is too large."""

from __future__ import annotations

import os
import stat
from pathlib import Path

CONFIG = 16 << 20
"""Bytes of a manifest or a configuration at most: the limit of `tracewright` itself."""
LARGE = 256 << 20
"""Bytes of a tokenizer or a module at most; modules of the largest networks have some millions."""


def read_text(path: Path, most: int) -> str:
    """The text of a file of so many bytes at most; raises `OSError` if it cannot be read, `ValueError` if it is no such file or
    no UTF-8."""
    # A pipe would wait here for whoever writes to it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return content.decode()
