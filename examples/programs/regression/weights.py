"""The weights with which src/bin/regression.rs computes 1 + |a - b| + c / 2.

    python weights.py
"""

import numpy as np
from safetensors.numpy import save_file

weights = {
    "up.weight": [[1, -1, 0], [-1, 1, 0], [0, 0, 1], [0, 0, -1]],
    "up.bias": [0, 0, 0, 0],
    "down.weight": [[1, 1, 0.5, -0.5]],
    "down.bias": [1],
}
save_file({key: np.array(value, np.float32) for key, value in weights.items()}, "model.safetensors")
