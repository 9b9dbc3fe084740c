"""`python -m tracewright_xla run DIR -p "…"`: data on stdout, talk on stderr; exit codes 0, 1, 2 (usage), 130."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from .errors import MeshError, ProcessError, TracewrightError
from .manifest import Manifest
from .processes import Group, agree, first_host, from_environment, join, versions
from .text import Text, ends

_PORT = 8476

_MOST_PRETENDED = 1 << 12
"""Devices that a processor pretends to have at most, whose start takes 13 s: that of three times as many takes two minutes."""


def main(words: list[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    try:
        _open_closed()
        arguments = _parser().parse_args(words)
        _keep_stdout()
        group = _group(arguments)
        manifest = Manifest.read(arguments.folder)
        _devices(arguments, manifest, group)
        return _collectives(arguments, manifest) if arguments.command == "collectives" else _run(arguments, manifest, group)
    except KeyboardInterrupt:
        _say("interrupted")
        return _leave(130)
    except TracewrightError as error:
        _say(f"error: {error}")
        return _leave(1)
    except MemoryError as error:
        _say("error: there is not enough memory" + (f": {error}" if str(error) else ""))
        return _leave(1)
    except BrokenPipeError:
        _drop_stdout()
        return _leave(0)
    except OSError as error:
        _drop_stdout()
        _say(f"error: {error}")
        return _leave(1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(_escaped(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m tracewright_xla", description="Run an export of `tracewright export --engine xla`."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="continue text or tokens")
    collectives = commands.add_parser("collectives", help="count the collectives in a call of each entry point")
    for command in (run, collectives):
        command.set_defaults(refuse=command.error)
        command.add_argument("folder", type=Path, help="the export directory")
        command.add_argument("--devices", type=_number(1, _MOST_PRETENDED), metavar="N", help="number of devices that "
                             "the CPU of this process acts as [default: its part of the mesh]")
        command.add_argument("--platform", help="platform: cpu, cuda, tpu [default: the best that jax finds]")
    prompt = run.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", action="append", help="text to continue; may be repeated, for a batch")
    prompt.add_argument("--tokens", action="append", type=_ids, metavar="IDS",
                        help="token ids to continue, such as 5,17,3; may be repeated, for a batch")
    run.add_argument("-n", "--max-tokens", type=_number(0), default=128, metavar="N", help="maximum number of new tokens [default: 128]")
    run.add_argument("--temp", type=_temperature, default=0.0, help="temperature: 0 takes the most likely token [default: 0]")
    run.add_argument("--seed", type=_number(0), default=0, help="seed of the random draws [default: 0]")
    run.add_argument("--ignore-eos", action="store_true", help="continue past the model's end-of-text tokens")
    run.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="folder of the checkpoint [default: as in the manifest]")
    run.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    run.add_argument("--processes", type=_number(1), metavar="N", help="number of processes [default: from SLURM]")
    run.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    run.add_argument("--process-id", type=_number(0), metavar="I",
                     help="number of this process [default: from SLURM or Kubernetes]")
    return parser


def _group(arguments: argparse.Namespace) -> Group | None:
    """The processes that were asked for; none if this is the only one. What makes no group is wrong usage."""
    if arguments.command != "run":
        return None
    processes, process = from_environment(os.environ)
    # A variable alone starts no group: whoever runs one process in a job of many says nothing.
    if arguments.processes is None and arguments.coordinator is None and arguments.process_id is None:
        return None
    processes = arguments.processes if arguments.processes is not None else processes
    process = arguments.process_id if arguments.process_id is not None else process
    host = first_host(os.environ)
    coordinator = arguments.coordinator or (f"{host}:{_PORT}" if host else None)
    missing = [
        flag
        for flag, value in (("--processes N", processes), ("--process-id I", process), ("--coordinator HOST:PORT", coordinator))
        if value is None
    ]
    if missing:
        arguments.refuse(f"{', '.join(missing)} must be given too: neither SLURM nor Kubernetes sets it")
    group = Group(processes, coordinator, process)
    try:
        group.check()
    except ProcessError as error:
        arguments.refuse(str(error))
    return group


def _devices(arguments: argparse.Namespace, manifest: Manifest, group: Group | None) -> None:
    """Sets what jax finds, before it looks; and joins the group."""
    processes = group.processes if group else 1
    if manifest.devices % processes != 0:
        raise MeshError(
            f"the mesh `{manifest.mesh}` has {manifest.devices} devices, which {processes} processes cannot share equally"
        )
    _load_jax()
    import jax

    if arguments.platform is not None:
        jax.config.update("jax_platforms", arguments.platform)
    # A processor is as many devices as it is told to be; what accelerators there are, they know themselves.
    pretended = manifest.devices // processes if arguments.devices is None else arguments.devices
    if pretended > _MOST_PRETENDED:
        raise MeshError(
            f"the mesh `{manifest.mesh}` has {manifest.devices} devices, of which this process would pretend to have "
            f"{pretended}, expected {_MOST_PRETENDED} at most; start more processes"
        )
    if group is not None:
        join(group, pretended)
    else:
        jax.config.update("jax_num_cpu_devices", pretended)


def _load_jax() -> None:
    """Loads jax. An interrupt waits for the end of it: its library crashes where Python raises one."""
    held = False

    def hold(*_: object) -> None:
        nonlocal held
        held = True

    usual = signal.signal(signal.SIGINT, hold)
    try:
        import jax  # noqa: F401
    finally:
        signal.signal(signal.SIGINT, usual)
    if held and callable(usual):
        usual(signal.SIGINT, None)


def _run(arguments: argparse.Namespace, manifest: Manifest, group: Group | None) -> int:
    import jax

    from .checkpoint import Checkpoint
    from .mesh import device_mesh
    from .program import Program

    first = group is None or group.process == 0
    text = Text(manifest.folder) if arguments.prompt else None
    prompts = [text.tokens(prompt) for prompt in arguments.prompt] if text else arguments.tokens
    if group is not None:
        asked = json.dumps([prompts, arguments.max_tokens, arguments.temp, arguments.seed, arguments.ignore_eos])
        facts, problem = versions() | {"prompt": asked}, None
        try:
            device_mesh(manifest)  # First: who does not look for devices keeps the others from finding theirs.
            facts["program"] = manifest.digest()
            with Checkpoint(manifest, arguments.checkpoint) as files:
                files.check(list(manifest.weights.values()))
        except TracewrightError as error:
            problem = str(error)
        agree(group, facts, problem)
    begun = time.monotonic()
    try:
        program = Program.load(manifest, arguments.checkpoint)
    except jax.errors.JaxRuntimeError as error:
        raise TracewrightError(f"XLA cannot take the weights: {error}") from error
    loaded = time.monotonic()
    stop = frozenset() if arguments.ignore_eos else ends(manifest.folder)
    rows = []
    shown = ""
    try:
        for rows in program.steps(prompts, arguments.max_tokens, arguments.temp, arguments.seed, stop):
            if first and text and len(prompts) == 1 and not arguments.json:
                shown = _show(text, [token for token in rows[0].tokens if token not in stop], shown)
    except jax.errors.JaxRuntimeError as error:
        if group is None:
            raise TracewrightError(f"XLA stopped: {error}") from error
        line = str(error).strip().split("\n")[0]
        raise ProcessError(f"process {group.process} lost another one of the {group.processes}: {line}") from error
    ran = time.monotonic()
    if not first:
        return 0
    answers = [[token for token in row.tokens if token not in stop] for row in rows[: len(prompts)]]
    if arguments.json:
        report = {
            "tokens": answers,
            "text": [text.text(answer) for answer in answers] if text else None,
            "load_s": round(loaded - begun, 3),
            "run_s": round(ran - loaded, 3),
            "bytes_read": program.bytes_read,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(report), flush=True)
    elif text and len(prompts) == 1:
        print(_rest(text.text(answers[0]), shown), flush=True)
    else:
        for answer in answers:
            print(text.text(answer) if text else " ".join(map(str, answer)), flush=True)
    return 0


def _show(text: Text, tokens: list[int], shown: str) -> str:
    """Writes what the text has gained; a character whose last bytes are still to come waits."""
    now = text.text(tokens)
    if not now.endswith("\ufffd") and now.startswith(shown):
        print(now[len(shown) :], end="", flush=True)
        return now
    return shown


def _rest(whole: str, shown: str) -> str:
    """What is still to be shown of a text: a character that never became whole; all of it, if it is spelled otherwise now."""
    return whole[len(shown) :] if whole.startswith(shown) else f"\n{whole}"


def _collectives(arguments: argparse.Namespace, manifest: Manifest) -> int:
    """Compiles each entry point, and reads no weight."""
    from .mesh import device_mesh
    from .module import Module

    mesh = device_mesh(manifest)
    report = {}
    for entry in manifest.entries.values():
        found = Module(entry, manifest.text(entry), mesh).collectives()
        report[entry.name] = [{"op": op, "type": ty, "count": count} for (op, ty), count in sorted(found.items())]
    print(json.dumps(report), flush=True)
    return 0


def _escaped(text: str) -> str:
    """A message without control characters: it may name what a file of somebody else says."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _say(text: str) -> None:
    """Writes a line to stderr; where nobody takes it the exit code says enough."""
    try:
        print(_escaped(text.rstrip()), file=sys.stderr, flush=True)
    except OSError:
        pass


def _open_closed() -> None:
    """Opens those of stdin, stdout and stderr that were closed at the start: a file that is opened later would be one of them,
    and get what is written there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest number that is free.
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)


def _keep_stdout() -> None:
    """Keeps stdout for data: what libraries print there, as Gloo does, goes to stderr. Raises `OSError` if it was closed."""
    if sys.stdout is None:
        raise OSError("stdout is closed, where the answer goes; `>/dev/null` throws it away")
    data = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(data, "w", encoding="utf-8")


def _drop_stdout() -> None:
    """Throws away what cannot be written, at which the interpreter would fail once more at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _number(least: int, most: int = 2**64 - 1) -> Callable[[str], int]:
    """Reads a whole number of an argument."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,20}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"`{text}`, expected a whole number from {least} to {most}")
        return int(text)

    return read


def _temperature(text: str) -> float:
    try:
        temperature = float(text)
    except ValueError:
        temperature = math.nan
    if not (math.isfinite(temperature) and temperature >= 0):
        raise argparse.ArgumentTypeError(f"`{text}`, expected a number from 0")
    return temperature


def _ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of tokens, expected one such as 5,17,3")
    return [int(word) for word in words]


def _leave(code: int) -> int:
    """The exit code. Of a group nobody waits for the others: they end by themselves. An interrupt ends the process here: the end
    of the interpreter crashes where it came while XLA compiled."""
    jax = sys.modules.get("jax")
    if code == 130 or (jax is not None and jax.distributed.is_initialized()):
        os._exit(code)  # What was written is flushed.
    return code


if __name__ == "__main__":
    sys.exit(main())
