#!/usr/bin/env python3
"""What quantizing costs, beside llama.cpp: the mean KL divergence from the f32 logits, of the same random weights.

    SCRATCH/venv/bin/python benches/peers/quality.py config.json --work SCRATCH

for the `config.json` of a Llama or a Gemma 3 with a tied head whose extents are multiples of 256, and an environment as that of
`llama_cpp.py`. All matrices are quantized by either program, and activations are rounded as it does; keys and values stay f32.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from llama_cpp import HERE, build, quantize, run, tensors, write_gguf

# Ours, theirs.
FORMATS = {"f32": ([], "BF16"), "q8": (["--quant", "q8"], "Q8_0"), "q4": (["--quant", "q4"], "Q4_0")}


def ours(arguments, model, tokens, flags):
    """Our logits, f32 [positions, vocabulary]."""
    out = arguments.work / "ours.safetensors"
    out.unlink(missing_ok=True)
    words = [arguments.tracewright, "generate", model, "--dtype", "f32", "--tokens", ",".join(map(str, tokens)), "-n", 1, "--ignore-eos"]
    run(*words, "--save-logits", out, "--all-positions", "--json", "--cache", arguments.work / "cache", "--kernels", arguments.kernels, *flags)
    return tensors(out, np.float32)("prompt_logits")


def theirs(arguments, programs, form, tokens):
    """Those of llama.cpp."""
    work = arguments.work
    if not (work / f"{form}.gguf").exists():
        quantize(programs, work, form)
    np.array(tokens, np.int32).tofile(work / "tokens")
    run(work / "logits", work / f"{form}.gguf", work / "tokens", work / "theirs", arguments.threads)
    return np.fromfile(work / "theirs", np.float32).reshape(len(tokens), -1)


def divergence(reference, found):
    """The mean over positions of KL(reference || found), in nats."""

    def log_softmax(rows):
        rows = rows.astype(np.float64)
        rows -= rows.max(-1, keepdims=True)
        return rows - np.log(np.exp(rows).sum(-1, keepdims=True))

    def of(rows):
        p, q = log_softmax(reference[rows]), log_softmax(found[rows])
        return (np.exp(p) * (p - q)).sum(-1)

    return np.concatenate([of(slice(i, i + 64)) for i in range(0, len(reference), 64)]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of a Llama or a Gemma 3 with a tied head")
    parser.add_argument("--work", type=Path, required=True, help="a folder for what is built and measured")
    parser.add_argument("--tracewright", type=Path, default=HERE / "../../target/release/tracewright")
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3, help="random networks, each with a sequence of its own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", choices=["on", "off"], default="on")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    programs = build(arguments.work)
    source = next(arguments.work.glob("llama_cpp_python-*/vendor/llama.cpp"))
    includes = [f"-I{source / folder}" for folder in ("include", "ggml/include")]
    run("cc", "-O2", *includes, HERE / "logits.c", "-o", arguments.work / "logits", f"-L{programs}", "-lllama", f"-Wl,-rpath,{programs}")
    config = json.loads(arguments.config.read_text())
    print("| weights | format | ours | llama.cpp | ratio |\n|---|---|---|---|---|")
    base = arguments.work
    for seed in range(1, arguments.seeds + 1):
        arguments.work = base / f"{config['model_type']}-{seed}"
        arguments.work.mkdir(exist_ok=True)
        (arguments.work / "logits").unlink(missing_ok=True)
        (arguments.work / "logits").symlink_to(base / "logits")
        model = arguments.work / "model"
        if not model.exists():
            run(arguments.tracewright, "random", arguments.config, "-o", model, "--seed", seed, "--dtype", "bf16")
        if not (arguments.work / "BF16.gguf").exists():
            write_gguf(model, arguments.work / "BF16.gguf")
        tokens = np.random.default_rng(seed).integers(0, config["vocab_size"], arguments.positions).tolist()
        reference = ours(arguments, model, tokens, [])
        for name, (flags, form) in FORMATS.items():
            found = theirs(arguments, programs, form, tokens)
            if name == "f32":
                print(f"| {config['model_type']}, seed {seed} | bf16 weights |  | {divergence(reference, found):.2e} | |", flush=True)
                continue
            a, b = divergence(reference, ours(arguments, model, tokens, flags)), divergence(reference, found)
            print(f"| {config['model_type']}, seed {seed} | {name}, {form} | {a:.3e} | {b:.3e} | **{a / b:.3f}** |", flush=True)


main()
