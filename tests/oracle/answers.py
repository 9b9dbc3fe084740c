"""Answers to StableHLO programs: `python answers.py interpreter|xla DIR` runs `main` of every DIR/NAME.mlir with the tensors
of NAME.arguments.safetensors, in the order of their names, in the reference interpreter or compiled by XLA for the CPU, and
writes NAME.results.safetensors, or NAME.error.txt."""

import os
import sys
import time
from pathlib import Path

# As the program says: no term is moved and no rounding left out.
os.environ["XLA_FLAGS"] = "--xla_disable_hlo_passes=algsimp --xla_allow_excess_precision=false"

import numpy as np
from jaxlib import _jax, xla_client
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo
from safetensors.numpy import load_file, save_file


def interpreter():
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)

    def run(text, arguments):
        with ir.Context() as context:
            context.append_dialect_registry(registry)
            context.load_all_available_dialects()
            stablehlo.register_dialect(context)
            attributes = [ir.DenseElementsAttr.get(argument) for argument in arguments]
            return [np.array(result) for result in stablehlo.eval_module(ir.Module.parse(text), attributes)]

    return run


class Exported:
    """A buffer of XLA as NumPy takes it: JAX, which would do that, is not needed for anything else."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __dlpack__(self, **_):
        return _jax.buffer_to_dlpack_managed_tensor(self.buffer)

    def __dlpack_device__(self):
        return (1, 0)


def xla():
    client = xla_client.make_cpu_client()
    device = client.local_devices()[0]
    devices = xla_client.DeviceList((device,))

    def run(text, arguments):
        executable = client.compile_and_load(text, devices, xla_client.CompileOptions())
        buffers = [_jax.dlpack_managed_tensor_to_buffer(x.__dlpack__(), device, None) for x in arguments]
        results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [np.from_dlpack(Exported(result[0])) for result in results]

    return run


def main(form, folder):
    run = {"interpreter": interpreter, "xla": xla}[form]()
    for path in sorted(folder.glob("*.mlir")):
        start = time.monotonic()
        arguments = load_file(path.with_suffix(".arguments.safetensors"))
        try:
            results = run(path.read_text(), [arguments[name] for name in sorted(arguments)])
        except Exception as error:
            path.with_suffix(".error.txt").write_text(str(error))
            continue
        save_file({f"{i:05}": np.ascontiguousarray(x) for i, x in enumerate(results)}, path.with_suffix(".results.safetensors"))
        print(f"{form} {path.stem}: {len(results)} results in {time.monotonic() - start:.1f} s", file=sys.stderr)


main(sys.argv[1], Path(sys.argv[2]))
