"""The speed of a model through its export for XLA.

    xla_speed.py MODEL

Four ways to decode are timed: `package` steps as `python -m tracewright_xla run` does, with a token read back at each step;
`calls` starts the compiled program again and again, without reading anything back; `copied tokens` also feeds the chosen
token to the next call; `loop` decodes all tokens of a run in one call, by a loop inside the module.
"""

from __future__ import annotations

import gzip
import re
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import counts, export, medians, model, report, say, settings, sizes, speeds

from tracewright_xla.manifest import Manifest
from tracewright_xla.module import Module
from tracewright_xla.program import Program


def looped(text: str, entry: Any, steps: int) -> str:
    """A module that takes what `decode` takes, decodes `steps` tokens greedily and gives the tokens and the state.

    It calls the old main function inside a `stablehlo.while`.
    """
    head = re.search(r"func\.func @main\((?P<arguments>.*?)\) -> \((?P<results>.*?)\) \{\n", text)
    assert head is not None
    arguments = re.findall(r"%(\w+): (tensor<[^>]*>)", head["arguments"])
    results = re.findall(r"tensor<[^>]*>", head["results"])
    states = [at for at, value in enumerate(entry.arguments) if value.role.startswith("state(")]
    place = {value.role: at for at, value in enumerate(entry.results)}
    token_ty = results[place["token"]]
    batch = entry.results[place["token"]].type.shape[0]
    bare = re.sub(r" \{tf\.aliasing_output = \d+ : i32\}", "", head["arguments"])
    step = f"func.func private @step({bare}) -> ({head['results']}) {{\n"
    roles = [value.role.split("(")[0] for value in entry.arguments]
    first, start, count = (arguments[roles.index(role)] for role in ("tokens", "start", "count"))
    all_ty = f"tensor<{steps}x{batch}xi32>"
    update_ty = f"({all_ty}, tensor<1x{batch}xi32>, tensor<i32>, tensor<i32>)"
    carried = ["tensor<i32>", first[1], start[1], all_ty] + [arguments[at][1] for at in states]
    names = ["i", "token", "at", "all"] + [f"s{at}" for at in states]
    begun = ["zero", first[0], start[0], "none"] + [arguments[at][0] for at in states]
    given = dict(zip([arguments[at][0] for at in states], names[4:])) | {first[0]: "token", start[0]: "at"}
    call = ", ".join(f"%{given.get(name, name)}" for name, _ in arguments)
    types = ", ".join(ty for _, ty in arguments)
    pairs = ", ".join(f"%{name} = %{value}" for name, value in zip(names, begun))
    out = ", ".join(f"%out#{place[entry.arguments[at].role]}" for at in states)
    alias = {arguments[at][0]: at_result for at_result, at in enumerate(states, 1)}
    outer = ", ".join(
        f"%{name}: {ty}" + (f" {{tf.aliasing_output = {alias[name]} : i32}}" if name in alias else "") for name, ty in arguments
    )
    kept = ", ".join([all_ty] + carried[4:])
    back = ", ".join(f"%end#{at}" for at in range(3, len(names)))
    main = f"""  func.func @main({outer}) -> ({kept}) {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %last = stablehlo.constant dense<{steps}> : tensor<i32>
    %none = stablehlo.constant dense<0> : {all_ty}
    %end:{len(names)} = stablehlo.while({pairs}) : {", ".join(carried)}
    cond {{
      %more = stablehlo.compare LT, %i, %last, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %out:{len(results)} = func.call @step({call}) : ({types}) -> ({head["results"]})
      %row = stablehlo.reshape %out#{place["token"]} : ({token_ty}) -> tensor<1x{batch}xi32>
      %kept = stablehlo.dynamic_update_slice %all, %row, %i, %zero : {update_ty} -> {all_ty}
      %fed = stablehlo.reshape %out#{place["token"]} : ({token_ty}) -> {first[1]}
      %next = stablehlo.add %at, %{count[0]} : {start[1]}
      %i2 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %i2, %fed, %next, %kept, {out} : {", ".join(carried)}
    }}
    return {back} : {kept}
  }}
"""
    return text[: head.start()] + step + text[head.end() : text.rindex("}")] + main + "}\n"


class Bench:
    """A program of one batch size on one device."""

    def __init__(self, name: str, program: Program) -> None:
        self.name, self.program = name, program
        self.batch = program.manifest.batch
        self.device = jax.devices()[0]
        generator = np.random.default_rng(0)
        self.prompts = generator.integers(0, program.manifest.vocabulary, (self.batch, sizes().prompt), np.int32)

    def put(self, array: Any) -> jax.Array:
        return jax.device_put(np.asarray(array, np.int32), self.device)

    def scalars(self, entry: str, role: str, value: int) -> jax.Array:
        """A start or a count, the same of every row."""
        found = next(v for v in self.program.manifest.entries[entry].arguments if v.role.split("(")[0] == role)
        return self.put(np.full(found.type.shape, value))

    def weights(self, entry: str) -> list[jax.Array]:
        return [self.program._weights[key] for key in self.program.manifest.entries[entry].weights]

    def state(self) -> list[jax.Array]:
        """Empty caches, made on the device."""
        values = self.program.manifest.entries["decode"].arguments
        zeros = [jnp.zeros(v.type.shape, v.type.element, device=self.device) for v in values if v.role.startswith("state(")]
        return jax.block_until_ready(zeros)

    def compile(self) -> dict[str, float]:
        """Seconds to compile each entry point."""
        found = {}
        for entry in ("prefill", "decode"):
            start = time.perf_counter()
            self.program.module(entry)
            found[entry] = round(time.perf_counter() - start, 2)
            say(f"compiled {entry} of {self.name} for a batch of {self.batch}")
        return found

    def prefill(self) -> float:
        """Seconds to read the prompts."""
        run = self.program.module("prefill")._executable
        tokens = self.put(self.prompts)
        start, count = self.scalars("prefill", "start", 0), self.scalars("prefill", "count", sizes().prompt)
        weights, calls = self.weights("prefill"), 4
        self.filled, self.first = self.state(), None

        def calling() -> None:
            for _ in range(calls):
                out = call(run, [tokens, start, count, *self.filled, *weights])
                self.first, self.filled = out[1], out[2:]
            jax.block_until_ready(self.filled)

        return medians(calling, sizes().runs) / calls

    def decode(self, fed: bool) -> tuple[float, list[list[int]]]:
        """Seconds of a step after the prompt, and the tokens that were chosen if each is `fed` to the next step."""
        run, steps = self.program.module("decode")._executable, sizes().steps
        starts = [self.scalars("decode", "start", sizes().prompt + at) for at in range(steps)]
        count, weights = self.scalars("decode", "count", 1), self.weights("decode")
        column = jax.jit(lambda token: token.reshape(self.batch, 1))
        chosen: list[jax.Array] = []

        def calling() -> None:
            tokens, state = column(self.first), self.filled
            chosen.clear()
            for start in starts:
                out = call(run, [tokens, start, count, *state, *weights])
                state = out[2:]
                if fed:
                    chosen.append(out[1])
                    tokens = column(out[1])
            self.filled = jax.block_until_ready(state)

        seconds = medians(calling, sizes().runs) / steps
        return seconds, np.stack([np.asarray(token) for token in chosen]).T.tolist() if fed else []

    def loop(self) -> tuple[float, float, list[list[int]]]:
        """Seconds of a token and seconds to compile, where one call decodes all tokens; and the tokens."""
        entry, steps = self.program.manifest.entries["decode"], sizes().steps
        text = looped(self.program.manifest.text(entry), entry, steps)
        begun = time.perf_counter()
        module = Module(entry, text, self.program._mesh)
        compiled = time.perf_counter() - begun
        start, count = self.scalars("decode", "start", sizes().prompt), self.scalars("decode", "count", 1)
        tokens, weights, chosen = self.first.reshape(self.batch, 1), self.weights("decode"), []

        def calling() -> None:
            out = call(module._executable, [tokens, start, count, *self.filled, *weights])
            self.filled = jax.block_until_ready(out[1:])
            chosen[:] = [out[0]]

        seconds = medians(calling, sizes().runs) / steps
        keep(f"{self.name}-{self.batch}-loop", module)
        return seconds, compiled, np.asarray(chosen[0]).T.tolist()

    def package(self) -> float:
        """Seconds of a step through `Program.steps`."""
        times = []
        for _ in self.program.steps(self.prompts.tolist(), sizes().steps):
            times.append(time.perf_counter())
        self.program._state.clear()
        # The first two are the prompt and what the first step compiles.
        return statistics.median(b - a for a, b in zip(times[2:], times[3:]))

    def profile(self, entry: str) -> None:
        """Reports what the device spends its time on in a few calls of an entry point, by kind of kernel."""
        run, weights = self.program.module(entry)._executable, self.weights(entry)
        tokens = self.put(self.prompts if entry == "prefill" else self.prompts[:, :1])
        count = self.scalars(entry, "count", tokens.shape[1])
        starts = [self.scalars(entry, "start", 0 if entry == "prefill" else sizes().prompt + at) for at in range(8)]
        folder = Path(settings()["work"]) / f"profile-{self.name}-{self.batch}-{entry}"
        with jax.profiler.trace(str(folder)):
            for start in starts:
                self.filled = call(run, [tokens, start, count, *self.filled, *weights])[2:]
            jax.block_until_ready(self.filled)
        report(profile={"model": self.name, "batch": self.batch, "entry": entry, "calls": len(starts),
                        **kernels(folder, self.program.module(entry).text())})  # fmt: skip


def call(executable: Any, arguments: list[jax.Array]) -> list[jax.Array]:
    """Calls a program of one device, without the shardings that `Module.__call__` puts around its results."""
    return [parts[0] for parts in executable.execute_sharded(arguments).disassemble_into_single_device_arrays()]


def kernels(folder: Path, text: str) -> dict[str, Any]:
    """From a profile: the time between the first and the last kernel, the time of all kernels, and of each kind.

    A kind is an instruction's name without its number, and the type of its result in the compiled module `text`.
    """
    types = {
        name.replace(".", "_").replace("-", "_"): re.sub(r"\{[^}]*\}", "", ty)
        for name, ty in re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) [\w\-]+\(", text, re.M)
    }
    found, times, lines = Counter(), Counter(), []
    first, last = float("inf"), 0.0
    for file in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            if not plane.name.startswith("/device:GPU"):
                continue
            for line in plane.lines:
                lines.append(line.name)
                if not line.name.startswith("Stream"):
                    continue
                for event in line.events:
                    ty = types.get(event.name.replace(".", "_").replace("-", "_"), "")
                    kind = f"{re.sub(r'[._]?[0-9]+', '', event.name)[:60]} {ty[:60]}"
                    found[kind] += event.duration_ns / 1e3
                    times[kind] += 1
                    first, last = min(first, event.start_ns), max(last, event.start_ns + event.duration_ns)
    kinds = {kind: {"times": times[kind], "us": round(us, 1)} for kind, us in found.most_common(30)}
    return {"kernels": sum(times.values()), "span_us": max(0.0, last - first) / 1e3, "busy_us": sum(found.values()),
            "lines": lines, "kinds": kinds}  # fmt: skip


def keep(name: str, module: Module) -> None:
    """Writes what XLA made of a module next to the results."""
    with gzip.open(Path(settings()["out"]) / f"{name}.hlo.gz", "wt", compresslevel=4) as file:
        file.write(re.sub(r", metadata=\{[^}]*\}", "", module.text()))


def memory(module: Module) -> int:
    """Bytes that a call needs: weights, state, the other arguments and results, and what it computes in between."""
    stats = module._executable.get_compiled_memory_stats()
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return held + stats.temp_size_in_bytes


def peak() -> int | None:
    """The most bytes that were in use on the device."""
    statistics_ = jax.devices()[0].memory_stats() or {}
    return statistics_.get("peak_bytes_in_use")


def main() -> None:
    name = sys.argv[1]
    extra = settings()["profile"]
    report(counts={"model": name, **counts(name)})
    shared = None
    for batch in sizes().batches:
        say(f"loading {name} for a batch of {batch}")
        options = ["--context", str(sizes().context), "--chunk", str(sizes().prompt), "--batch", str(batch)]
        folder = export(name, *options)
        start = time.perf_counter()
        if shared is None:
            program = Program.load(folder, model(name), entries=["prefill", "decode"])
            jax.block_until_ready(list(program._weights.values()))
            report(load={"engine": "tracewright", "model": name, "seconds": round(time.perf_counter() - start, 1)})
        else:
            manifest = Manifest.read(folder)
            program = Program(manifest, shared._mesh, shared._weights, 0)
        shared = program
        bench = Bench(name, program)
        about = {"model": name, "batch": batch}
        compile_s = bench.compile()
        keep(f"{name}-{batch}-decode", program.module("decode"))
        keep(f"{name}-{batch}-prefill", program.module("prefill"))
        prefill = bench.prefill()
        say(f"prefill: {prefill * 1e3:.2f} ms")
        step, _ = bench.decode(fed=False)
        say(f"decode: {step * 1e3:.3f} ms a step")
        report(speed={**about, "engine": "tracewright, XLA", "way": "calls", "compile_s": compile_s, "peak_bytes": peak(),
                      "memory": {entry: memory(program.module(entry)) for entry in ("prefill", "decode")},
                      **speeds(name, batch, step, prefill)})  # fmt: skip
        fed, chosen = bench.decode(fed=True)
        report(speed={**about, "engine": "tracewright, XLA", "way": "copied tokens", **speeds(name, batch, fed, None)})
        try:
            looping, compiled, same = bench.loop()
            say(f"loop: {looping * 1e3:.3f} ms a token")
            report(speed={**about, "engine": "tracewright, XLA", "way": "loop", "compile_s": {"decode": round(compiled, 2)},
                          "equal_tokens": same == chosen, **speeds(name, batch, looping, None)})  # fmt: skip
        except Exception as error:  # The other numbers are worth having without it.
            report(failed={"part": f"loop of {name}, batch {batch}", "error": str(error)[:2000]})
        if extra:
            for entry in ("decode", "prefill"):
                bench.profile(entry)
        del bench.filled
        package = bench.package()
        report(speed={**about, "engine": "tracewright, XLA", "way": "package", **speeds(name, batch, package, None)})
        say(f"package: {package * 1e3:.3f} ms a step")


if __name__ == "__main__":
    main()
