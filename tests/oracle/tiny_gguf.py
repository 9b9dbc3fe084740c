"""The parts of a GGUF file around a vocabulary: cyllama opens no file without a network."""

import numpy as np


def add_network(writer, tokens):
    """Adds a network of zeros with one layer, for a vocabulary of `tokens` tokens."""
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {"token_embd": (tokens, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    for tensor, shape in {**shapes, **{f"blk.0.{name}": (32, 32) for name in matrices}}.items():
        writer.add_tensor(f"{tensor}.weight", np.zeros(shape, np.float32))


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
