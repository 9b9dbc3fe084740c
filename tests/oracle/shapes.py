"""The parameters of published sizes: names, shapes and totals as transformers makes them, on the meta device.

`python shapes.py` reads `models/presets/*.json` and writes `models/presets/parameters.txt`.
"""

import json
import re
from pathlib import Path

import torch
from transformers import AutoConfig

import golden

CONFIGS = Path(__file__).parents[2] / "models" / "presets"


def parameters(path):
    keys = json.loads(path.read_text())
    keys.pop("auto_map", None)
    config = AutoConfig.for_model(keys.pop("model_type"), **keys).get_text_config()
    with torch.device("meta"):
        model = golden.auto(config).from_config(config)
    saved = model.state_dict()
    # A checkpoint has buffers that are not derived, such as the constants of an activation.
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
    return {name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *buffers]}


def main():
    lines = ["# Written by tests/oracle/shapes.py: what transformers makes of each config.json here."]
    for path in sorted(CONFIGS.glob("*.json")):
        found = parameters(path)
        total = sum(torch.Size(shape).numel() for shape in found.values())
        lines.append(f"\n{path.stem} {total}")
        layers = {}
        for name, shape in found.items():
            layers.setdefault((re.sub(r"\.\d+\.", ".*.", name), shape), []).append(name)
        lines += [f"  {pattern} {'x'.join(map(str, shape)) or '-'} {len(names)}" for (pattern, shape), names in layers.items()]
        print(f"{path.stem}: {total:,}")
    (CONFIGS / "parameters.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
