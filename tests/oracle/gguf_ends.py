"""Writes `tests/fixtures/tokenizers/gguf_ends.json`: vocabularies of GGUF files with unusual token types, and the tokens and
the ends of a text of llama.cpp for each vocabulary. Needs `cyllama` (whose wheel contains llama.cpp) and
`gguf`. The tests write the GGUF files from the JSON file again."""

import json
import os
import tempfile
from pathlib import Path

import gguf
from cyllama import __version__
from cyllama.llama.llama_cpp import LlamaModel, LlamaModelParams, disable_logging

from tiny_gguf import add_network, finish

OUT = Path(__file__).parent.parent / "fixtures" / "tokenizers" / "gguf_ends.json"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
LETTERS = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ<>|/_[]~-.,0123456789") + ["Ġ", "Ċ", "ï", "½", "ľ", "â", "ĸ", "ģ"]
ENDS = [
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
    "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<｜end▁of▁sentence｜>",
]
FILL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
OLD_FILL = ["<PRE>", "<SUF>", "<MID>", "<PAD>", "<REPO>"]
OTHERS = ["<|im_start|>", "<s>", "<|eot|>", "<pad>"]


def bpe(special, types=None, **keys):
    # Without the key, llama.cpp takes token 11 as the end of a text.
    keys.setdefault("eos", LETTERS.index("ģ"))
    return {"model": "gpt2", "tokens": [*LETTERS, *special, "ab"], "types": types and [NORMAL] * len(LETTERS) + types + [NORMAL], "keys": keys}


def spm(special, types=None, bytes_=True, **keys):
    start = [f"<0x{byte:02X}>" for byte in range(256)] if bytes_ else []
    tokens = ["<unk>", "<s>", "</s>", *start, "▁", *LETTERS[:-8], *special]
    return {"model": "llama", "tokens": tokens, "types": types and [UNKNOWN, CONTROL, CONTROL] + types, "keys": keys}


def id_of(vocabulary, text):
    return vocabulary["tokens"].index(text)


ALL = [*ENDS, *FILL, *OTHERS]
CASES = {
    "normal": bpe(["<|im_start|>", "<|im_end|>"], [NORMAL, NORMAL]),
    "no types": bpe(["<|im_start|>", "<|im_end|>"]),
    "control": bpe(["<|im_start|>", "<|im_end|>"], [CONTROL, CONTROL]),
    "all normal": bpe(ALL, [NORMAL] * len(ALL)),
    "all user-defined": bpe(ALL, [USER] * len(ALL)),
    "all unused": bpe(ALL, [UNUSED] * len(ALL)),
    "all without types": bpe(ALL),
    "old fill": bpe(OLD_FILL, [NORMAL] * len(OLD_FILL)),
    "codellama fill": bpe(["▁<PRE>", "▁<SUF>", "▁<MID>"], [NORMAL] * 3),
    "eos by key": bpe(["<|fin|>", "<|turn|>", "<|more|>"], [NORMAL] * 3, eos=len(LETTERS), eot=len(LETTERS) + 1, eom=len(LETTERS) + 2),
    "fill by key": bpe(["<a>", "<b>", "<c>", "<|fim_pad|>", "<|file_sep|>"], [NORMAL] * 5, fim_pad=len(LETTERS), fim_rep=len(LETTERS) + 1, fim_sep=len(LETTERS) + 2),
    "old keys": bpe(["<a>", "<|fim_prefix|>"], [NORMAL] * 2, prefix=len(LETTERS)),
    "harmony": bpe(["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"], [NORMAL] * 7),
    "harmony control": bpe(["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"], [CONTROL] * 7),
    "solar": bpe(["<|end|>", "<|flush|>", "<|calls|>"], [CONTROL] * 3),
    "tool response": bpe(["</s>", "<|tool_response>", "<turn|>"], [NORMAL] * 3),
    "unused word": bpe(["<unused1>", "<|im_end|>"], [CONTROL, NORMAL]),
    "spm normal": spm(["<|im_start|>", "<|im_end|>"], [BYTE] * 256 + [NORMAL] * (len(LETTERS) - 8 + 3)),
    "spm without types": spm(["<|im_start|>", "<|im_end|>"]),
    "spm phi-3": {**spm(["<|end|>", "<|user|>", "<|endoftext|>", "<x>"], [BYTE] * 256 + [NORMAL] * (len(LETTERS) - 8 + 1) + [CONTROL, CONTROL, CONTROL, USER]), "name": "Phi-3 mini"},
}


def texts(vocabulary):
    """Each special text between other text, and all of them together."""
    long = [token for token in vocabulary["tokens"] if len(token) > 1 and not token.startswith("<0x")]
    return [f"a{token}b" for token in long] + [f"a {token} \n b" for token in long[:4]] + ["".join(long), "x é y"]


def write(vocabulary, path):
    writer = gguf.GGUFWriter(path, "llama")
    if "name" in vocabulary:
        writer.add_name(vocabulary["name"])
    writer.add_tokenizer_model(vocabulary["model"])
    writer.add_token_list(vocabulary["tokens"])
    if vocabulary["types"]:
        writer.add_token_types(vocabulary["types"])
    if vocabulary["model"] == "gpt2":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(["a b"])
    else:
        writer.add_token_scores([0.0] * len(vocabulary["tokens"]))
    for key, id in vocabulary["keys"].items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", id)
    add_network(writer, len(vocabulary["tokens"]))
    finish(writer)


def answers(vocabulary):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "v.gguf")
        write(vocabulary, path)
        model = LlamaModel(path, LlamaModelParams())
        vocab = model.get_vocab()
        tokens = lambda text: list(vocab.tokenize(text, False, True))
        ends = [id for id in range(len(vocabulary["tokens"])) if vocab.is_eog(id)]
        return {"texts": [[text, tokens(text)] for text in texts(vocabulary)], "ends": ends}


def main():
    disable_logging()
    cases = [json.dumps({"name": name, "vocabulary": case, **answers(case)}, ensure_ascii=False) for name, case in CASES.items()]
    OUT.write_text(f'{{"by": "llama.cpp of cyllama {__version__}", "cases": [\n' + ",\n".join(cases) + "\n]}\n")


main()
