"""The exported module in other words, and with other options of XLA: what would be faster.

    variants.py MODEL
"""

from __future__ import annotations

import re
import sys
from typing import Any

from common import counts, export, model, report, say, settings, sizes, speeds
from xla_speed import Bench

from tracewright_xla.manifest import Manifest
from tracewright_xla.module import Module
from tracewright_xla.program import Program

# A matmul in f32 of bf16 operands, and on a later line what rounds its result.
_ROUNDED = re.compile(
    r"^(?P<indent> +)(?P<wide>%\d+) = (?P<dot>stablehlo\.dot_general .*?) -> tensor<(?P<shape>[\dx]*x)f32>(?P<loc>.*)\n"
    r"(?P<between>(?:.*\n){0,2}?) +(?P<narrow>%\d+) = stablehlo\.convert (?P=wide) : "
    r"\(tensor<[^>]*>\) -> tensor<(?P=shape)bf16>.*\n",
    re.M,
)


def narrow(text: str) -> str:
    """Each matmul whose result is only rounded to bf16 gives bf16."""

    def spelled(found: re.Match[str]) -> str:
        if "xf32>" in found["dot"]:
            return found[0]
        dot = f"{found['indent']}{found['narrow']} = {found['dot']} -> tensor<{found['shape']}bf16>{found['loc']}\n"
        return found["between"] + dot

    return _ROUNDED.sub(spelled, text)


# A matmul of one row: the row `[1, K]` and the weight `[N, K]`.
_ROW = re.compile(
    r"^( +)(%\d+) = stablehlo\.dot_general (%\d+), (%\w+), contracting_dims = \[1\] x \[1\] : "
    r"\(tensor<1x(\d+)xbf16>, tensor<(\d+)x\d+xbf16>\) -> tensor<1x\d+x(\w+)>.*$",
    re.M,
)


def sums(text: str) -> str:
    """Each matmul of a single row as a sum of products in f32, which XLA computes in one pass over the weight."""

    def spelled(found: re.Match[str]) -> str:
        indent, name, row, weight, inner, outer, element = found.groups()
        flat, wide = f"tensor<{inner}xf32>", f"tensor<{outer}x{inner}xf32>"
        n = name[1:]
        lines = [
            f"%a{n} = stablehlo.convert {row} : (tensor<1x{inner}xbf16>) -> tensor<1x{inner}xf32>",
            f"%b{n} = stablehlo.reshape %a{n} : (tensor<1x{inner}xf32>) -> {flat}",
            f"%c{n} = stablehlo.broadcast_in_dim %b{n}, dims = [1] : ({flat}) -> {wide}",
            f"%d{n} = stablehlo.convert {weight} : (tensor<{outer}x{inner}xbf16>) -> {wide}",
            f"%e{n} = stablehlo.multiply %c{n}, %d{n} : {wide}",
            f"%f{n} = stablehlo.constant dense<0.0> : tensor<f32>",
            f"%g{n} = stablehlo.reduce(%e{n} init: %f{n}) applies stablehlo.add across dimensions = [1] : "
            f"({wide}, tensor<f32>) -> tensor<{outer}xf32>",
            f"%h{n} = stablehlo.reshape %g{n} : (tensor<{outer}xf32>) -> tensor<1x{outer}xf32>",
            f"{name} = stablehlo.convert %h{n} : (tensor<1x{outer}xf32>) -> tensor<1x{outer}x{element}>",
        ]
        return "\n".join(indent + line for line in lines)

    return _ROW.sub(spelled, text)


VARIANTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("as exported", None, {}),
    ("bf16 results", narrow, {}),
    ("bf16 results, no merged weights", narrow, {"xla_gpu_dot_merger_threshold_mb": 0}),
    ("bf16 results, no Triton matmuls", narrow, {"xla_gpu_enable_triton_gemm": False}),
    ("bf16 results, neither", narrow, {"xla_gpu_dot_merger_threshold_mb": 0, "xla_gpu_enable_triton_gemm": False}),
    ("sums of products", sums, {}),
]
"""The name, what is done to the text, and the options of XLA."""


class Varied(Bench):
    """A program with other modules."""

    def vary(self, change: Any, options: dict[str, Any]) -> None:
        # A CPU has no such options.
        found = [] if settings()["rehearse"] else list(options.items())
        for name in ("prefill", "decode"):
            entry = self.program.manifest.entries[name]
            text = self.program.manifest.text(entry)
            self.program._modules[name] = Module(entry, change(text) if change else text, self.program._mesh, found)


def main() -> None:
    name = sys.argv[1]
    shared = None
    for batch in sizes().batches:
        options = ["--context", str(sizes().context), "--chunk", str(sizes().prompt), "--batch", str(batch)]
        folder = export(name, *options)
        if shared is None:
            program = Program.load(folder, model(name), entries=["prefill", "decode"])
        else:
            program = Program(Manifest.read(folder), shared._mesh, shared._weights, 0)
        shared = program
        bench = Varied(name, program)
        for variant, change, flags in VARIANTS:
            if change is sums and batch > 1:
                continue
            try:
                bench.vary(change, flags)
                prefill = bench.prefill()
                step, _ = bench.decode(fed=False)
                say(f"batch {batch}, {variant}: {step * 1e3:.3f} ms a step, {prefill * 1e3:.2f} ms a prompt")
                report(variant={"model": name, "batch": batch, "variant": variant, **speeds(name, batch, step, prefill)})
            except Exception as error:
                say(f"{variant}: {str(error)[:300]}")
                report(failed={"part": f"{variant} of {name}, batch {batch}", "error": str(error)[:2000]})
    report(counts={"model": name, **counts(name)})


if __name__ == "__main__":
    main()
