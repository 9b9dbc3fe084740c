#!/usr/bin/env python3
"""Tracewright beside llama.cpp, and torch: the same random weights, round by round in turn, two threads each.

    python3 -m venv SCRATCH/venv && SCRATCH/venv/bin/pip install -r tests/benches/peers/requirements.txt
    SCRATCH/venv/bin/python tests/benches/peers/llama_cpp.py config.json --work SCRATCH

builds llama.cpp from the source in its Python package (without AMX, which traps on some virtual machines), makes random bf16
weights for a `config.json`, exports them and writes them as GGUF in each format, measures in pairs that follow each other, because a
shared machine changes its speed within seconds, and prints medians as a table. What was made before in SCRATCH is used again. Needs `cargo build --release --features iree` and iree-compile on PATH.

A large model fits with fewer layers. `--layers` also reduces the vocabulary by the same factor, so that the output head keeps its share of the work:

    llama_cpp.py models/presets/qwen3-30b-a3b.json --work SCRATCH/qwen3 --llama-cpp SCRATCH --layers 4 --formats q8 q4
    llama_cpp.py tests/benches/peers/granite-4.0-h-tiny.json --work SCRATCH/granite --llama-cpp SCRATCH --layers 10 --formats q8 q4
    llama_cpp.py models/presets/gpt-oss-20b.json --work SCRATCH/gpt-oss --llama-cpp SCRATCH --layers 4 --formats mxfp4

With `mxfp4` and with the names of llama.cpp's formats, such as `Q4_K_M`, both programs read the same GGUF file. The experts of `mxfp4` are
MXFP4 and its other matrices are Q8_0, as in llama.cpp's own conversion of gpt-oss. A GGUF file of your own needs no random weights:

    llama_cpp.py MODEL-Q4_K_M.gguf --work SCRATCH/model --llama-cpp SCRATCH --prompts 128

With `--torch PYTHON`, of an environment with torch and transformers as `cargo xtask parity` installs one into .tracewright/oracle, torch runs the bf16 weights, too.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path

from gguf_model import experts_of, write_gguf

HERE = Path(__file__).parent
SOURCE = "llama-cpp-python==0.3.36"
# Formats of GGUF files that ours reads too, and the name of the file on the command line.
MIXTURES = ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS"]
GIVEN = "the file"
# Ours, theirs. Ours reads the same GGUF file where the file is in `SAME_FILE`, and converts the checkpoint otherwise.
FORMATS = {"bf16": (["--quant", "none"], "BF16"), "q8": (["--quant", "q8"], "Q8_0"), "q4": (["--quant", "q4:pure"], "Q4_0"), "q4_k": (["--quant", "q4_k:pure"], "Q4_K_S"), "mxfp4": (["--dtype", "bf16"], "MXFP4_MOE")}
FORMATS |= {name: ([], name) for name in [*MIXTURES, GIVEN]}
SAME_FILE = {"MXFP4_MOE", *MIXTURES, GIVEN}

# What a case is called in which another program is busy.
BUSY = ", a busy neighbour"

# ggml's options, and Linux's names of what they need.
X86_OPTIONS = {
    "SSE42": ["sse4_2"],
    "AVX": ["avx"],
    "AVX_VNNI": ["avx_vnni"],
    "AVX2": ["avx2"],
    "BMI2": ["bmi2"],
    "FMA": ["fma"],
    "F16C": ["f16c"],
    "AVX512": ["avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"],
    "AVX512_VBMI": ["avx512vbmi"],
    "AVX512_VNNI": ["avx512_vnni"],
    "AVX512_BF16": ["avx512_bf16"],
}


def run(*words):
    """What a program prints; it ends this one where it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def for_this_processor():
    """What ggml is told of this processor: all that it uses of it, but for AMX, which its own switches leave in where GGML_NATIVE is on."""
    if platform.machine() != "x86_64":
        return ["GGML_NATIVE=ON"]
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    return ["GGML_NATIVE=OFF", *(f"GGML_{option}={'ON' if set(needed) <= set(flags) else 'OFF'}" for option, needed in X86_OPTIONS.items())]


def build(work):
    """The folder of llama.cpp's programs."""
    programs = work / "llama.cpp" / "bin"
    if not (programs / "llama-bench").exists():
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", work, SOURCE)
        with tarfile.open(next(work.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(work, filter="data")
        source = next(work.glob("llama_cpp_python-*/vendor/llama.cpp"))
        tools = Path(sys.executable).parent
        options = [*for_this_processor(), "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_SERVER=OFF", "LLAMA_CURL=OFF"]
        ninja = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
        run(tools / "cmake", "-S", source, "-B", work / "llama.cpp", "-G", "Ninja", ninja, "-DCMAKE_BUILD_TYPE=Release", *(f"-D{option}" for option in options))
        run(tools / "ninja", "-C", work / "llama.cpp", "llama-bench", "llama-quantize", "llama-imatrix")
    return programs


def quantize(programs, work, form):
    """A GGUF file with all matrices in one form, or the mixture that llama.cpp makes for a form in `SAME_FILE`."""
    pure = [] if form in SAME_FILE else ["--pure"]
    run(programs / "llama-quantize", *pure, work / "BF16.gguf", work / f"{form}.gguf", form)


def context(arguments):
    """Positions that every case fits in."""
    return max(512, max(arguments.prompts, default=0) + 64, max(arguments.depths, default=0) + arguments.decode + 2)


def with_layers(path, layers, out):
    """Writes the `config.json` of a network with the first of its layers, and with a vocabulary smaller by the same factor."""
    config = json.loads(path.read_text())
    config["vocab_size"] = -(-config["vocab_size"] * layers // config["num_hidden_layers"] // 256) * 256
    config["num_hidden_layers"] = layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    for key in [key for key in config if key.endswith("_token_id")]:
        del config[key]
    out.write_text(json.dumps(config))
    return out


def file_of(arguments, name):
    """The GGUF file that llama.cpp reads."""
    return arguments.config if name == GIVEN else arguments.work / f"{FORMATS[name][1]}.gguf"


def source(arguments, name):
    """The model that ours reads."""
    return file_of(arguments, name) if FORMATS[name][1] in SAME_FILE else arguments.work / "model"


def sizes(arguments):
    """The sizes of the network that a measurement needs, as in its `config.json`."""
    if GIVEN not in arguments.formats:
        return json.loads(arguments.config.read_text())
    with arguments.config.open("rb") as file:
        has_experts = b".expert_count" in file.read(1 << 16)
    # Every vocabulary has so many tokens, and to read all of them takes long.
    return {"vocab_size": 1000, "num_experts": int(has_experts)}


def prepare(arguments, programs):
    """Exports and GGUF files of each format; the bytes of weights that a decoded token reads, by format."""
    work, ours = arguments.work, arguments.tracewright
    streamed = {}
    for name in arguments.formats:
        flags, theirs = FORMATS[name]
        if not source(arguments, name).exists() or not file_of(arguments, name).exists():
            write_models(arguments, programs, theirs)
        manifest = export(arguments, name) / "manifest.json"
        # Another program may write another module.
        if not manifest.exists() or manifest.stat().st_mtime < arguments.tracewright.stat().st_mtime:
            run(ours, "export", source(arguments, name), "-o", export(arguments, name), "--context", context(arguments), "--cache", work / "cache", *flags)
        plan = json.loads(run(ours, "plan", source(arguments, name), "--context", context(arguments), "--json", *flags))
        streamed[name] = plan["streamed_bytes"]
    return streamed


def write_models(arguments, programs, theirs):
    """Writes the random checkpoint and its GGUF file in a format, by way of BF16.gguf."""
    work, model = arguments.work, arguments.work / "model"
    if not model.exists():
        run(arguments.tracewright, "random", arguments.config, "-o", model, "--seed", 1, "--dtype", "bf16")
    if not (work / "BF16.gguf").exists():
        write_gguf(model, work / "BF16.gguf")
    if not (work / f"{theirs}.gguf").exists():
        quantize(programs, work, theirs)


def export(arguments, name):
    """The folder of an exported program."""
    return arguments.work / f"export-{name}-{context(arguments)}"


def cases(arguments):
    """What is measured: its name, the tokens that are read before, and llama-bench's words."""
    for tokens in arguments.prompts:
        yield f"prefill {tokens}", tokens, ("-p", tokens, "-n", 0)
    for depth in arguments.depths:
        for beside in ("", BUSY) if arguments.neighbour else ("",):
            yield f"decode at {depth}{beside}", max(depth, 1), ("-p", 0, "-n", arguments.decode, "-d", depth)


def pair(arguments, programs, name, case):
    """Tokens a second of each program, one right behind the other; before, the bytes that the machine reads in a second."""
    read = {"read": float(run(arguments.work / "read", arguments.threads)) * 1e9}
    if not case[0].endswith(BUSY):
        return read | speeds(arguments, programs, name, case)
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return read | speeds(arguments, programs, name, case)
    finally:
        neighbour.kill()
        neighbour.wait()


def speeds(arguments, programs, name, case):
    """Tokens a second of each program, one right behind the other."""
    work, threads, (what, tokens, words) = arguments.work, arguments.threads, case
    if what.startswith("prefill"):
        # Both have read their weights once before: llama-bench warms up, and so does `bench`.
        words_of_ours = ["--tokens", tokens, "--context", context(arguments), "--rounds", 1, "--threads", threads, *FORMATS[name][0]]
        run(arguments.tracewright, "bench", "prefill", source(arguments, name), *words_of_ours, "--cache", work / "cache", "--json", work / "ours.json")
        ours = tokens / json.loads((work / "ours.json").read_text())["cases"][0]["seconds"]["median"]
    else:
        vocabulary = sizes(arguments)["vocab_size"]
        prompt = ",".join(str(i * 7919 % vocabulary) for i in range(tokens))
        said = run(arguments.tracewright, "generate", export(arguments, name), "--tokens", prompt, "-n", arguments.decode + 1, "--ignore-eos", "--json", "--threads", threads)
        ours = json.loads(said)["timings"]["decode_tokens_per_s"]
    theirs = run(programs / "llama-bench", "-m", file_of(arguments, name), "-t", threads, "-r", 1, "-o", "json", *words)
    found = {"ours": ours, "llama.cpp": json.loads(theirs)[0]["avg_ts"]}
    if arguments.torch and name == "bf16":
        decode = 0 if what.startswith("prefill") else arguments.decode
        said = run(arguments.torch, HERE / "torch_speed.py", work / "model", "--tokens", tokens, "--decode", decode, "--threads", threads)
        found["torch"] = json.loads(said)["tokens_per_s"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of a model of a family in gguf_model.py, or a GGUF file")
    parser.add_argument("--work", type=Path, required=True, help="folder for builds and results, one for each config.json")
    parser.add_argument("--llama-cpp", type=Path, metavar="SCRATCH", help="folder in which llama.cpp is built [default: that of --work]")
    parser.add_argument("--layers", type=int, help="measure with the first layers only, and with a vocabulary smaller by the same factor")
    parser.add_argument("--tracewright", type=Path, default=HERE / "../../../target/release/tracewright")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["bf16", "q8", "q4", "q4_k"])
    parser.add_argument("--prompts", nargs="*", type=int, default=[128, 448])
    parser.add_argument("--depths", nargs="*", type=int, default=[0], help="tokens before the first decoded one")
    parser.add_argument("--decode", type=int, default=48, help="tokens that are decoded")
    parser.add_argument("--neighbour", action="store_true", help="also decode while another program keeps one core busy")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="also measure torch in bf16, with this Python")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the speeds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    programs = build(arguments.llama_cpp or arguments.work)
    if arguments.config.suffix == ".gguf":
        arguments.formats = [GIVEN]
    elif arguments.layers:
        arguments.config = with_layers(arguments.config, arguments.layers, arguments.work / "config.json")
    run("cc", "-O3", "-march=native", "-pthread", HERE / "read.c", "-o", arguments.work / "read")
    streamed = prepare(arguments, programs)
    found = {(name, case): [] for name in arguments.formats for case in cases(arguments)}
    for number in range(arguments.rounds):
        for (name, case), pairs in found.items():
            print(f"round {number + 1} of {arguments.rounds}: {name}, {case[0]}", file=sys.stderr)
            pairs.append(pair(arguments, programs, name, case))
        # A round may take minutes, and all of them longer than one may wait.
        saved = [[name, what, pairs] for (name, (what, *_)), pairs in found.items()]
        (arguments.work / "rounds.json").write_text(json.dumps(saved))
    has_experts = experts_of(sizes(arguments)) > 0
    others = ["llama.cpp"] + ["torch"] * bool(arguments.torch)
    columns = "".join(f" {other} | median of the pairs' ratios | ratios |" for other in others)
    print(f"| format | what | ours, tokens/s |{columns} of the read bandwidth |\n|---|---|---|{'---|---|---|' * len(others)}---|")
    for (name, (what, *_)), pairs in found.items():
        share = statistics.median(pair["ours"] * streamed[name] / pair["read"] for pair in pairs)
        # A token reads only some experts, and `plan` counts all.
        share = "" if what.startswith("prefill") or has_experts else f"{share:.2f}"
        beside = "".join(comparison(pairs, other) for other in others)
        print(f"| {name} | {what} | {median(pairs, 'ours'):.1f} |{beside} {share} |")
    read = [pair["read"] / 1e9 for pairs in found.values() for pair in pairs]
    print(f"\nread bandwidth: median {statistics.median(read):.1f} GB/s ({min(read):.1f}–{max(read):.1f})")
    if arguments.plot:
        plot(arguments.plot, found, ["ours", *others])


def median(pairs, program):
    """The median of a program's speeds."""
    return statistics.median(pair[program] for pair in pairs)


def comparison(pairs, other):
    """The cells of a program that ours is compared with; empty ones where it was not measured."""
    if other not in pairs[0]:
        return " | | |"
    ratios = [pair["ours"] / pair[other] for pair in pairs]
    return f" {median(pairs, other):.1f} | **{statistics.median(ratios):.2f}** | {min(ratios):.2f}–{max(ratios):.2f} |"


def plot(path, found, programs):
    """Draws a bar for each program and format, as high as its median, and a dot for each round; what is measured side by side."""
    from matplotlib import pyplot

    cases = list(dict.fromkeys(what for _, (what, *_) in found))
    formats = list(dict.fromkeys(name for name, _ in found))
    figure, all_axes = pyplot.subplots(1, len(cases), figsize=(4 * len(cases), 4), squeeze=False, layout="constrained")
    for axes, what in zip(all_axes[0], cases):
        for place, program in enumerate(programs):
            measured = {formats.index(name): pairs for (name, case), pairs in found.items() if case[0] == what and program in pairs[0]}
            at = [number + (place - (len(programs) - 1) / 2) * 0.8 / len(programs) for number in measured]
            axes.bar(at, [median(pairs, program) for pairs in measured.values()], 0.8 / len(programs), label=program, color=f"C{place}", alpha=0.6)
            for x, pairs in zip(at, measured.values()):
                axes.plot([x] * len(pairs), [pair[program] for pair in pairs], ".", color=f"C{place}", markersize=4)
        axes.set_xticks(range(len(formats)), formats)
        axes.set_title(what)
    all_axes[0][0].set_ylabel("tokens/s")
    all_axes[0][-1].legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
