"""The default configurations of families that have no confirmed preset, as transformers saves them, and the number of parameters that it makes
of each, on the meta device.

`python defaults.py` writes `models/tests/defaults.json`.
"""

import json
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING

import golden

FAMILIES = [
    "deepseek_v3", "ernie4_5", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "gpt_oss", "lfm2_moe", "minimax_m2", "ministral3", "mistral4", "olmo3", "qwen3_moe",
]
# Layers whose kind has no default.
LAYERS = {"lfm2_moe": dict(num_hidden_layers=24, layer_types=["conv", "conv", "full_attention", "conv"] * 6)}


def main():
    found = {}
    for name in FAMILIES:
        config = CONFIG_MAPPING[name](**LAYERS.get(name, {}))
        with torch.device("meta"):
            model = golden.auto(config).from_config(config)
        saved = model.state_dict()
        buffers = [buffer for key, buffer in model.named_buffers() if key in saved]
        keys = config.to_dict() | {"architectures": [type(model).__name__]}
        found[name] = {"parameters": sum(p.numel() for p in [*model.parameters(), *buffers]), "config": keys}
        print(f"{name}: {found[name]['parameters']:,}")
    text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in found.items())
    (Path(__file__).parents[2] / "models" / "tests" / "defaults.json").write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main()
