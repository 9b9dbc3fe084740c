"""What a program answers to several prompts, one after the other, and what its devices exchange.

    python -m tests.answers EXPORT_DIR < prompts.json

`prompts.json` has `prompts`, each a list of rows, and `tokens`, how many each gets. The answer is one JSON object.
"""

import json
import sys

import jax

from tracewright_xla.manifest import Manifest


def main() -> None:
    manifest = Manifest.read(sys.argv[1])
    asked = json.load(sys.stdin)
    jax.config.update("jax_num_cpu_devices", manifest.devices)

    from tracewright_xla.program import Program

    program = Program.load(manifest, entries=list(manifest.entries))
    answers = [[row.tokens for row in program.generate(rows, asked["tokens"])] for rows in asked["prompts"]]
    counts = {
        name: [[op, ty, count] for (op, ty), count in sorted(program.module(name).collectives().items())]
        for name in manifest.entries
    }
    modules = {name: program.module(name) for name in manifest.entries}
    aliases = {name: module.text().count("may-alias") + module.text().count("must-alias") for name, module in modules.items()}
    given = {name: module.argument_bytes() for name, module in modules.items()}
    report = {"answers": answers, "collectives": counts, "aliases": aliases, "argument_bytes": given}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
