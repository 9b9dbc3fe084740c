"""A checkpoint with the extents of one layer of Llama 3.1 8B, in bf16, random weights, for `cargo xtask parity --model`.

    .tracewright/oracle/bin/python tests/oracle/layer.py OUT
"""

import sys
from pathlib import Path

from golden import torch, write_checkpoint

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Weights of this size keep what each part adds in one range; `write_checkpoint` makes them three times as large.
CONFIG = dict(
    vocab_size=1024, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128, intermediate_size=14336, num_hidden_layers=1,
    max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=False, initializer_range=0.006, rope_parameters=LLAMA3,
)

if __name__ == "__main__":
    torch.set_num_threads(2)
    write_checkpoint(Path(sys.argv[1]), 1, storage="bf16", **CONFIG)
