"""Several processes as one program: they find each other, agree on what they run before a weight is read, and end together.

What connects them is `jax.distributed`; collectives run over Gloo between processors and NCCL between NVIDIA's devices.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ProcessError

HEARTBEAT = 10
"""Seconds without a sign of life after which a process counts as dead."""
JOIN = 300
"""Seconds that the processes have to find each other."""
AGREE = 120
"""Seconds that each has to say what it would run."""


@dataclass(frozen=True)
class Group:
    """The processes of a program."""

    processes: int
    coordinator: str
    """`HOST:PORT` of process 0, where it can be reached from all."""
    process: int
    """Which of them this one is."""

    def check(self) -> None:
        """Raises `ProcessError` if the numbers make no group."""
        if self.processes < 1 or not 0 <= self.process < self.processes:
            raise ProcessError(f"process {self.process} is none of {self.processes}; they are numbered from 0")
        port = re.fullmatch(r".+:([0-9]{1,5})", self.coordinator)
        if port is None or not 1 <= int(port[1]) <= 65535:
            raise ProcessError(f"`{self.coordinator}` is no address of process 0; expected HOST:PORT")


def from_environment(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """How many processes there are and which of them this one is, as SLURM or an indexed job of Kubernetes says."""

    def number(*names: str) -> int | None:
        said = (environment.get(name, "") for name in names)
        return next((int(text) for text in said if re.fullmatch("[0-9]{1,9}", text)), None)

    return number("SLURM_NTASKS"), number("SLURM_PROCID", "JOB_COMPLETION_INDEX")


def first_host(environment: Mapping[str, str]) -> str | None:
    """The first of the hosts that SLURM gave to the job step: `node001` of `node[001-004,7],other`."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    found = re.match(r"([^,\[]+)(?:\[([^,\]-]+)[^\]]*\])?", nodes or "")
    return found[1] + (found[2] or "") if found else None


def join(group: Group, local_devices: int | None) -> None:
    """Makes this process one of the group; before anything asks for devices.

    `local_devices` are how many a processor pretends to have, `None` where devices are what they are. Raises `ProcessError`
    if the others are not there in time.
    """
    import jax

    group.check()
    if local_devices is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_num_cpu_devices", local_devices)
    try:
        jax.distributed.initialize(
            group.coordinator,
            group.processes,
            group.process,
            initialization_timeout=JOIN,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (RuntimeError, ValueError) as error:
        raise ProcessError(
            f"process {group.process} of {group.processes} does not reach the others through `{group.coordinator}`: "
            f"{_first_line(error)}"
        ) from error


def versions() -> dict[str, str]:
    """What must be the same in all processes, beside the program."""
    import jax
    import jaxlib
    import numpy

    from . import __version__

    return {
        "tracewright_xla": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def agree(group: Group, facts: Mapping[str, str], problem: str | None) -> None:
    """Tells the others what this process runs, or what keeps it from running; and hears what they do.

    Raises `ProcessError` if one has a problem, says nothing in time or runs something else: the same in all.
    """
    from jax._src import distributed

    client: Any = distributed.global_state.client
    client.key_value_set(f"tracewright/{group.process}", json.dumps({"facts": dict(facts), "problem": problem}))
    until = time.monotonic() + AGREE
    said: list[dict[str, Any]] = []
    for process in range(group.processes):
        left = max(1, int((until - time.monotonic()) * 1000))
        try:
            said.append(json.loads(client.blocking_key_value_get(f"tracewright/{process}", left)))
        except RuntimeError as error:
            raise ProcessError(f"process {process} said nothing for {AGREE} s, or died: {_first_line(error)}") from error
    problems = [f"process {at}: {one['problem']}" for at, one in enumerate(said) if one["problem"] is not None]
    if not problems:
        problems = differences([one["facts"] for one in said])
    if problems:
        # Nobody leaves before all have read it: with process 0 goes what carries it.
        _wait(client, group)
        raise ProcessError("\n".join(problems))


def differences(facts: list[dict[str, str]]) -> list[str]:
    """In what processes differ from the first, a line for each."""
    names = sorted({name for one in facts for name in one})
    return [
        f"process {at} has {name} {one.get(name, 'none')}, process 0 has {facts[0].get(name, 'none')}; "
        "expected the same in all processes"
        for at, one in enumerate(facts)
        for name in names
        if one.get(name) != facts[0].get(name)
    ]


def _wait(client: Any, group: Group) -> None:
    try:
        client.wait_at_barrier("tracewright/said", AGREE * 1000)
    except RuntimeError:
        pass  # One died meanwhile: what is wrong is known all the same.


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
