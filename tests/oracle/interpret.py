"""Answers of the StableHLO reference interpreter: `python interpret.py DIR` runs `main` of every DIR/NAME.mlir with the
tensors of NAME.arguments.safetensors, in the order of their names, and writes NAME.results.safetensors."""

import sys
import time
from pathlib import Path

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo
from safetensors.numpy import load_file, save_file


def main(folder):
    with ir.Context() as context:
        registry = ir.DialectRegistry()
        _jax_mlir_ext.register_dialects(registry)
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        stablehlo.register_dialect(context)
        for path in sorted(folder.glob("*.mlir")):
            start = time.monotonic()
            arguments = load_file(path.with_suffix(".arguments.safetensors"))
            module = ir.Module.parse(path.read_text())
            attributes = [ir.DenseElementsAttr.get(arguments[name]) for name in sorted(arguments)]
            results = [np.array(result) for result in stablehlo.eval_module(module, attributes)]
            save_file({f"{i:05}": np.ascontiguousarray(x) for i, x in enumerate(results)}, path.with_suffix(".results.safetensors"))
            print(f"{path.stem}: {len(results)} results in {time.monotonic() - start:.1f} s", file=sys.stderr)


main(Path(sys.argv[1]))
