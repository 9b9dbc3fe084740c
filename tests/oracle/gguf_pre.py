"""Writes `tests/fixtures/gguf/tokens-gemma4.gguf`, and `tokens-pre.json`: the tokens of llama.cpp for further values of
`tokenizer.ggml.pre`, with the vocabulary of `tokens-gpt-2.gguf`. Needs `cyllama` (whose wheel contains llama.cpp) and `gguf`."""

import json
import re
import tempfile
from pathlib import Path

import gguf
from cyllama import __version__
from cyllama.llama.llama_cpp import LlamaModel, LlamaModelParams, disable_logging

from tiny_gguf import add_network, finish

HERE = Path(__file__).parent
OUT = HERE.parent / "fixtures" / "gguf"
PRE = ["starcoder", "refact", "command-r", "exaone4", "seed-coder", "llama4"]
TEXTS = json.loads((OUT / "tokens.json").read_text())["texts"]
# Tokens of several lines and spaces, which merges make only where the text is split at line breaks alone.
GEMMA_TEXTS = [*TEXTS, "a\n\n\n\nb", "  two   three", "\n \n", "x\u2581y", "\u00e9t\u00e9 \U0001f40d"]


def tokenized(fill, texts, count):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "v.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        fill(writer)
        add_network(writer, count)
        finish(writer)
        model = LlamaModel(path, LlamaModelParams())
        vocab = model.get_vocab()
        return [list(vocab.tokenize(text, True, True)) for text in texts]


def gpt2(pre):
    fields = gguf.GGUFReader(OUT / "tokens-gpt-2.gguf").fields
    tokens, types, merges, bos, eos = (
        fields[f"tokenizer.ggml.{key}"].contents() for key in ["tokens", "token_type", "merges", "bos_token_id", "eos_token_id"]
    )

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        writer.add_bos_token_id(bos)
        writer.add_eos_token_id(eos)

    return tokenized(fill, TEXTS, len(tokens))


def merged(lines, count):
    """Pairs that occur often, joined one after the other."""
    merges = []
    lines = [list(line) for line in lines]
    while len(merges) < count:
        pairs = {}
        for line in lines:
            for pair in zip(line, line[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(sorted(pairs), key=pairs.get)
        merges.append(best)
        for line in lines:
            at = 0
            while at + 1 < len(line):
                if (line[at], line[at + 1]) == best:
                    line[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def gemma4():
    stories = [(HERE / "README.md").read_text(), *[text for text in TEXTS if "<s>" not in text]]
    # As the published vocabulary: runs of line breaks and runs of spaces are tokens.
    lines = [run.replace(" ", "▁") for story in stories for run in re.findall(r"[^\n]+|\n+", story)]
    merges = [("\n", "\n"), ("\n\n", "\n\n"), ("▁", "▁"), ("▁▁", "▁▁")]
    merges += [pair for pair in merged(lines, 400) if pair not in merges]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    letters = sorted({letter for line in lines for letter in line if 0 < ord(letter) < 0x2600} | {"▁", "\n"})
    tokens = [*special, *[f"<0x{byte:02X}>" for byte in range(256)], *letters]
    tokens += [pair for pair in dict.fromkeys(a + b for a, b in merges) if pair not in tokens]
    merges = [(a, b) for a, b in merges if {a, b, a + b} <= set(tokens)]

    def fill(writer):
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3, 3, 2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 262))
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_merges([" ".join(pair) for pair in merges])
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)
        writer.add_pad_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(False)

    writer = gguf.GGUFWriter(OUT / "tokens-gemma4.gguf", "llama")
    fill(writer)
    finish(writer)
    return tokenized(fill, GEMMA_TEXTS, len(tokens))


def main():
    disable_logging()
    found = {"by": f"llama.cpp of cyllama {__version__}", "texts": TEXTS, "tokens": {pre: gpt2(pre) for pre in PRE}}
    found |= {"gemma_texts": GEMMA_TEXTS, "gemma4": gemma4()}
    (OUT / "tokens-pre.json").write_text(json.dumps(found, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")


main()
