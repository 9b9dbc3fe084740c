"""What one process answers to a prompt, and how sure it is.

    python -m tests.gaps EXPORT_DIR IDS COUNT

The answer is one JSON object: the most likely tokens, and of each how far the second most likely one is behind it, as a part of the
largest logit.
"""

import json
import sys

import jax
import numpy as np

from tracewright_xla.manifest import Manifest


def main() -> None:
    manifest = Manifest.read(sys.argv[1])
    prompt = [int(token) for token in sys.argv[2].split(",")]
    jax.config.update("jax_num_cpu_devices", manifest.devices)

    from tracewright_xla.program import Program

    program = Program.load(manifest)
    gaps: list[float] = []
    call = program.call

    def watched(name: str, *given: np.ndarray) -> dict[str, jax.Array]:
        results = call(name, *given)
        logits = np.sort(program.fetch(results["logits"])[0])
        gaps.append(float((logits[-1] - logits[-2]) / np.abs(logits).max()))
        return results

    program.call = watched  # type: ignore[method-assign]
    (row,) = program.generate([prompt], int(sys.argv[3]))
    print(json.dumps({"tokens": row.tokens, "gaps": gaps[-len(row.tokens) :]}))


if __name__ == "__main__":
    main()
