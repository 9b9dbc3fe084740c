#!/usr/bin/env python3
"""What quantizing costs, beside llama.cpp: the mean KL divergence from the f32 logits, of the same random weights.

    SCRATCH/venv/bin/python tests/benches/peers/quality.py --work SCRATCH [config.json …]

for a small network of every family, or for those of some `config.json` whose extents are multiples of 256, and an environment as
that of `llama_cpp.py`. All matrices are quantized by either program, and activations are rounded as it does; keys and values stay f32.

    SCRATCH/venv/bin/python tests/benches/peers/quality.py --work SCRATCH --model MODEL.gguf [--calibrate TEXT]

for real weights: the default formats of both programs, with their bytes, on `quality.txt` in windows of 256 tokens. The truth is what
either program computes of the file's weights in f32. With a text both are calibrated: by `quantize`, and by `llama-imatrix`.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from gguf_model import tensors, write_gguf
from llama_cpp import HERE, build, quantize, run

# A small network of each family: what its `config.json` says beside what all say.
COMMON = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
}
GEMMA = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64, "sliding_window": 512}
FAMILIES = {
    "llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {}, "olmo2": {"tie_word_embeddings": False, "head_dim": None},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]}, "phi3": {"original_max_position_embeddings": 4096, "head_dim": None, "pad_token_id": 0},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {**GEMMA, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "lfm2": {"rms_norm_eps": None, "hidden_act": None, "norm_eps": 1e-5, "conv_L_cache": 3, "layer_types": ["conv", "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
}
GPT2 = {
    "vocab_size": 4096, "n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 4096, "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new", "torch_dtype": "bfloat16",
}

# Default formats of real weights.
OURS_MIXED = ["q8", "q4", "q4_k"]
THEIRS_MIXED = ["Q8_0", "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M"]
WINDOW = 256

# Theirs, by ours; Q4_K_S is what a file of Q4_K blocks alone is called.
FORMATS = {"f32": "BF16", "q8": "Q8_0", "q4": "Q4_0", "q4_k": "Q4_K_S"}


def ours(arguments, model, tokens, flags):
    """Our logits, f32 [positions, vocabulary]."""
    out = arguments.work / "ours.safetensors"
    out.unlink(missing_ok=True)
    words = [arguments.tracewright, "generate", model, "--dtype", "f32", "--tokens", ",".join(map(str, tokens)), "-n", 1, "--ignore-eos"]
    run(*words, "--save-logits", out, "--all-positions", "--json", "--cache", arguments.work / "cache", "--kernels", arguments.kernels, *flags)
    _, tensor = tensors(out)
    return tensor("prompt_logits")


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
    parser.add_argument("configs", type=Path, nargs="*", help="config.json of a network [default: a small one of every family]")
    parser.add_argument("--work", type=Path, required=True, help="folder for builds and results")
    parser.add_argument("--tracewright", type=Path, default=HERE / "../../../target/release/tracewright")
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3, help="number of random networks, each with its own sequence")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", nargs="+", choices=[name for name in FORMATS if name != "f32"], default=[name for name in FORMATS if name != "f32"])
    parser.add_argument("--kernels", choices=["on", "off"], default="on")
    parser.add_argument("--model", type=Path, help="a GGUF file with real weights, instead of random ones")
    parser.add_argument("--calibrate", type=Path, help="a text for that model")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    programs = build(arguments.work)
    source = next(arguments.work.glob("llama_cpp_python-*/vendor/llama.cpp"))
    includes = [f"-I{source / folder}" for folder in ("include", "ggml/include")]
    run("cc", "-O2", *includes, HERE / "logits.c", "-o", arguments.work / "logits", f"-L{programs}", "-lllama", f"-Wl,-rpath,{programs}")
    if arguments.model:
        real(arguments, programs)
        return
    print("| weights | format | ours | llama.cpp | ratio |\n|---|---|---|---|---|")
    for path in arguments.configs or small(arguments.work):
        for seed in range(1, arguments.seeds + 1):
            compare(arguments, programs, path, seed)


def real(arguments, programs):
    """Prints the lines of a model: of each file its bytes, the KL divergence, and the share of positions with the same best token."""
    work, text = arguments.work, HERE / "quality.txt"
    print("| file | bytes | KL | same token |\n|---|---|---|---|")
    ours = [(name, arguments.model, ["--quant", name]) for name in OURS_MIXED]
    if arguments.calibrate:
        for name in OURS_MIXED[1:]:
            out = work / f"calibrated-{name}"
            if not out.exists():
                run(arguments.tracewright, "quantize", arguments.model, "-o", out, "--quant", name, "--calibrate", arguments.calibrate, "--cache", work / "cache")
            ours.append((f"{name}, calibrated", out, []))
    for name, model, flags in ours:
        words = [arguments.tracewright, "quality", model, "-f", text, "--window", WINDOW, "--json", "--cache", work / "cache", *flags]
        found = json.loads(run(*words, *(["--against", arguments.model, "--dtype", "f32"] if model != arguments.model else [])))
        quality = found["quality"]
        print(f"| {name} | {found['bytes']} | {quality['mean_kl']:.4f} | {quality['same_token']:.3f} |", flush=True)

    tokens = json.loads(run(arguments.tracewright, "tokenize", arguments.model, "-f", text, "--plain", "--json"))["texts"][0]["tokens"]
    tokens = [token["id"] for token in tokens][: len(tokens) // WINDOW * WINDOW]
    np.array(tokens, np.int32).tofile(work / "tokens")

    def logits(path):
        run(work / "logits", path, work / "tokens", work / "theirs", arguments.threads, WINDOW)
        rows = np.fromfile(work / "theirs", np.float32).reshape(len(tokens) // WINDOW, WINDOW, -1)
        rows = rows[:, WINDOW // 2 : WINDOW - 1]
        return rows.reshape(-1, rows.shape[-1])

    exact = work / "F32.gguf"
    if not exact.exists():
        run(programs / "llama-quantize", "--allow-requantize", arguments.model, exact, "F32")
    importance = work / "imatrix.gguf"
    if arguments.calibrate and not importance.exists():
        run(programs / "llama-imatrix", "-m", exact, "-f", arguments.calibrate, "-o", importance, "-c", 512)
    reference = logits(exact)
    for name in THEIRS_MIXED:
        for flags in [[], ["--imatrix", importance]] if arguments.calibrate else [[]]:
            path = work / f"default-{name}{'-imatrix' if flags else ''}.gguf"
            if not path.exists():
                run(programs / "llama-quantize", *flags, exact, path, name)
            found = logits(path)
            same = (found.argmax(-1) == reference.argmax(-1)).mean()
            print(f"| {name}{', imatrix' if flags else ''} | {path.stat().st_size} | {divergence(reference, found):.4f} | {same:.3f} |", flush=True)


def small(work):
    """A `config.json` of each family."""
    networks = {name: {"model_type": name, **COMMON, **differs} for name, differs in FAMILIES.items()} | {"gpt2": {"model_type": "gpt2", **GPT2}}
    for name, config in networks.items():
        path = work / name / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        yield path


def compare(arguments, programs, path, seed):
    """Prints the lines of one random network."""
    config = json.loads(path.read_text())
    work = arguments.work / f"{config['model_type']}-{seed}"
    work.mkdir(exist_ok=True)
    (work / "logits").unlink(missing_ok=True)
    (work / "logits").symlink_to(arguments.work / "logits")
    arguments = argparse.Namespace(**{**vars(arguments), "work": work})
    model = work / "model"
    if not model.exists():
        run(arguments.tracewright, "random", path, "-o", model, "--seed", seed, "--dtype", "bf16")
    if not (work / "BF16.gguf").exists():
        write_gguf(model, work / "BF16.gguf")
    tokens = np.random.default_rng(seed).integers(0, config["vocab_size"], arguments.positions).tolist()
    reference = ours(arguments, model, tokens, [])
    name = f"{config['model_type']}, seed {seed}"
    for form in ["f32", *arguments.formats]:
        their_form = FORMATS[form]
        b = divergence(reference, theirs(arguments, programs, their_form, tokens))
        if form == "f32":
            print(f"| {name} | bf16 weights |  | {b:.2e} | |", flush=True)
            continue
        a = divergence(reference, ours(arguments, model, tokens, ["--quant", form if form == "q8" else f"{form}:pure"]))
        print(f"| {name} | {form}, {their_form} | {a:.3e} | {b:.3e} | **{a / b:.3f}** |", flush=True)


main()
