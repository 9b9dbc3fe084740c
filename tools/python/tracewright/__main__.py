"""The command line `tracewright`: `python -m tracewright`, or the script of that name."""

from __future__ import annotations

import os
import signal
import sys

from . import _compiler, _native

# `-P` keeps the working directory out of the module path.
AGAIN = [sys.executable, "-P", "-m", "tracewright"]


def main() -> int:
    """Runs the command line on the arguments of this process, and returns the exit code."""
    compiler = _compiler.path()
    if compiler is not None:
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(compiler.parent)])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # The command line handles Ctrl-C itself, and would also call Python's handler.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.run(["tracewright", *sys.argv[1:]], AGAIN)


def trace_dump() -> int:
    """Runs `trace-dump` on the arguments of this process, and returns the exit code."""
    return _native.trace_dump(["trace-dump", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
