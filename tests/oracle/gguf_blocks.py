"""Write `tests/fixtures/gguf/random_blocks.json`: hashes of what the package `gguf` makes of random blocks of each type. The test
makes the same bytes by SplitMix64, and replaces single bytes by `edges`, so that scales are zero, infinite and NaN in known blocks."""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

OUT = Path(__file__).parent.parent / "fixtures" / "gguf" / "random_blocks.json"
BLOCKS = 4096
# The places of the scales of 16 bits in a block of each type.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [], T.NVFP4: [],
    T.IQ1_S: [0], T.IQ1_M: [], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0],
    T.TQ1_0: [52], T.TQ2_0: [64], T.Q1_0: [0],
}
# Zeros, infinities, NaN, the least and the largest number.
EDGES = [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x0001, 0x7BFF]


def splitmix(seed, count):
    states = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (states ^ states >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)


def fnv(words):
    hash = 0xCBF29CE484222325
    for word in words.tolist():
        hash = (hash ^ word) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{hash:016x}"


def of_signs(rows):
    """Q1_0, which the package does not decode: the scale, negated where a bit is 0 (`ggml-quants.c`)."""
    scales = rows[:, :2].copy().view(np.float16).astype(np.float32)
    return np.where(np.unpackbits(rows[:, 2:], axis=1, bitorder="little") == 1, scales, -scales)


made = {}
for kind, halves in HALVES.items():
    _, size = gguf.GGML_QUANT_SIZES[kind]
    seed = int(kind)
    data = splitmix(seed, -(-BLOCKS * size // 8)).view(np.uint8)[: BLOCKS * size].copy()
    edges = []
    for block, word in enumerate(EDGES):
        for at in halves:
            edges += [(block * size + at, word & 255), (block * size + at + 1, word >> 8)]
    blocks = range(0, BLOCKS * size, size)
    if kind == T.MXFP4:
        # 255 is no exponent: ggml has a number for it, and Tracewright refuses it.
        edges = [(block, 254) for block in blocks if data[block] == 255]
    if kind == T.NVFP4:
        # 127 is NaN in e4m3: ggml has a number for it, and Tracewright refuses it.
        scales = [block + scale for block in blocks for scale in range(4)]
        edges = [(at, 126) for at in scales if data[at] & 127 == 127] + [(at, value) for at, value in enumerate([0, 1, 7, 8])]
    if kind == T.IQ1_M:
        # The four upper bits of each of four words are the scale.
        for block, word in enumerate(EDGES):
            ats = [(block * size + 49 + 2 * part, word >> 4 * part & 15) for part in range(4)]
            edges += [(at, int(data[at]) & 15 | bits << 4) for at, bits in ats]
    for at, byte in edges:
        data[at] = byte
    rows = data.reshape(BLOCKS, size)
    with np.errstate(all="ignore"):
        numbers = of_signs(rows) if kind == T.Q1_0 else gguf.quants.dequantize(rows, kind)
    words = np.where(np.isnan(numbers), np.uint32(0x7FC00000), numbers.view(np.uint32))
    made[kind.name] = {"blocks": BLOCKS, "seed": seed, "edges": edges, "hash": fnv(words.ravel())}
OUT.write_text(json.dumps(made) + "\n")
