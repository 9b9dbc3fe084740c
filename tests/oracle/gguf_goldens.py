"""Write the GGUF files of `tests/fixtures/gguf` and what llama.cpp says of them, and those that a fuzzer begins with:
`python gguf_goldens.py [blocks] [tokens] [corpus] [NAME …]`, where NAME is one of the networks below; all of it without arguments. Needs what `gguf.txt` names."""

import ctypes
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

HERE = Path(__file__).parent
OUT = HERE.parent / "fixtures" / "gguf"
REFERENCE = f"llama.cpp of llama-cpp-python {llama_cpp.__version__}, one thread, keys and values in f32, greedy"
# The length of the prompts, and how many tokens follow; the prefill chunk and the context they are laid around.
PROMPT, STEPS, CHUNK, CONTEXT = 20, 6, 8, 40
# A choice closer than this, in units of the row's largest logit, may be decided by the order of a sum, or by a rounding to bytes.
NEAR_TIE, NEAR_TIE_IN_BYTES = 1e-3, 0.1
GGML = ctypes.CDLL(str(next(Path(llama_cpp.__file__).parent.rglob("libggml-base.*"))))
GGML.ggml_quantize_chunk.restype = ctypes.c_size_t
GGML.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]


def quantized(numbers, kind):
    """The blocks of a matrix, as llama.cpp makes them."""
    numbers = np.ascontiguousarray(numbers, np.float32)
    rows = numbers.reshape(-1, numbers.shape[-1])
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros((*numbers.shape[:-1], numbers.shape[-1] // block * size), np.uint8)
    made = GGML.ggml_quantize_chunk(int(kind), rows.ctypes.data, blocks.ctypes.data, 0, *rows.shape, None)
    assert made == blocks.nbytes, (kind, made, blocks.nbytes)
    return blocks


def unusual(blocks, kind):
    """Blocks of which the largest integer is not the one that rounding makes the largest, as other programs write them."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    each = blocks.reshape(-1, size)
    if kind == T.Q8_0:
        each[:, 2:] = (each[:, 2:].view(np.int8) // 2).view(np.uint8)
    if kind == T.Q4_0:
        low, high = each[:, 2:] & 15, each[:, 2:] >> 4
        each[:, 2:] = np.maximum(low, 1) | np.maximum(high, 1) << 4
    return blocks


# The networks. A weight is stored as `kind` says, or as `kinds` says of its part; norms and biases are F32.
BASE = dict(arch="llama", vocab=40, width=24, hidden=36, layers=2, heads=3, kv=1, head=8, kind=T.F32, eps=1e-5, base=10000.0)
NEOX = dict(base=5000.0, vocab=37)
GEMMA = dict(vocab=37, width=16, hidden=20, heads=2, window=6, sandwich=True, tied=True, eps=1e-6, layers=4)
# Rows that are whole blocks of 32, and of 256.
BLOCKS = dict(vocab=64, width=64, hidden=64, heads=4, kv=2, head=16)
LONG = dict(vocab=32, width=256, hidden=256, layers=1, heads=2, kv=1, head=128)
NETWORKS = {
    "llama": {},
    "llama-tied": dict(tied=True, kv=3),
    "llama-f16": dict(kind=T.F16),
    "llama-bf16": dict(kind=T.BF16),
    # Llama 3.1's scaling, whose factors are a tensor.
    "llama-rope3": dict(base=500000.0, rope_freqs=[1.0, 1.5, 4.0, 8.0]),
    "llama-linear": dict(scaling=("linear", 4.0)),
    "llama-yarn": dict(scaling=("yarn", 4.0, 16)),
    "llama-bias": dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "mixtral": dict(experts=4, used=2, hidden=20),
    "smollm3": dict(arch="smollm3", layers=4, tied=True, hidden=20),
    "qwen2": dict(NEOX, arch="qwen2", qkv_bias=True),
    "qwen3": dict(NEOX, arch="qwen3", head=16, qk_norm="head", tied=True),
    "olmo2": dict(NEOX, arch="olmo2", qk_norm="all", behind=True),
    "phi3": dict(NEOX, arch="phi3", fused=True, window=0, original=64),
    "phi3-longrope": dict(NEOX, arch="phi3", fused=True, window=0, original=16, factors=([1.0, 1.1, 1.3, 1.6], [1.0, 2.0, 3.0, 4.5]), loudness=1.19),
    "gemma2": dict(GEMMA, arch="gemma2", softcaps=(50.0, 30.0), head=16),
    "gemma3": dict(GEMMA, arch="gemma3", layers=7, base=100000.0, qk_norm="head", scaling=("linear", 8.0)),
    "gpt2": dict(arch="gpt2", kv=3, positions=64),
    "lfm2": dict(NEOX, arch="lfm2", layers=3, conv=[True, False, True], qk_norm="head", tied=True, taps=3),
    "q8_0": dict(BLOCKS, kind=T.Q8_0, tied=True),
    "q4_0": dict(BLOCKS, kind=T.Q4_0, kinds={"output": T.Q8_0}),
    # As llama.cpp mixes them: blocks of 256, and of 32 where rows are no multiple of that.
    "q4_k": dict(LONG, kind=T.Q4_K, kinds={"token_embd": T.Q6_K, "attn_k": T.Q5_K, "attn_v": T.Q6_K, "ffn_down": T.Q6_K, "output": T.Q8_0, "ffn_gate": T.Q5_0}),
    "q5_k": dict(LONG, kind=T.Q5_K, kinds={"token_embd": T.Q4_0, "attn_v": T.Q6_K, "ffn_up": T.Q5_1, "ffn_gate": T.Q4_1, "ffn_down": T.Q5_0}, tied=True, hidden=96),
}


class Network:
    """The tensors of a network, in the order and the layout of a GGUF file: random, so that nothing needs to be converted. As `plain`,
    each weight is the F32 numbers that it means in its own format: llama.cpp rounds no activations for these."""

    def __init__(self, name, writer, rng, plain=False):
        self.plain = plain
        self.config, self.writer, self.rng = BASE | NETWORKS[name], writer, rng
        config = self.config
        self.architecture = config["arch"]
        self.kinds = config.get("kinds", {})

    def norm(self, name, size, bias=False):
        self.writer.add_tensor(f"{name}.weight", (1 + 0.2 * self.rng.standard_normal(size)).astype(np.float32))
        if bias:
            self.bias(name, size)

    def bias(self, name, size):
        self.writer.add_tensor(f"{name}.bias", (0.2 * self.rng.standard_normal(size)).astype(np.float32))

    def weight(self, name, *shape, scale=None, bias=False):
        numbers = self.rng.standard_normal(shape) * (scale or 2 * shape[-1] ** -0.5)
        kind = self.kinds.get(name.split(".")[-1], self.config["kind"])
        if kind in (T.F32, T.F16, T.BF16):
            data = gguf.quants.quantize(numbers.astype(np.float32), kind)
        else:
            data = unusual(quantized(numbers, kind), kind)
        if self.plain:
            data, kind = gguf.quants.dequantize(data, kind), T.F32
        self.writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        if bias:
            self.bias(name, shape[0])

    def write(self):
        c, writer = self.config, self.writer
        layers, heads, kv, head, width, hidden = (c[key] for key in ("layers", "heads", "kv", "head", "width", "hidden"))
        gpt2, conv = self.architecture == "gpt2", c.get("conv", [False] * layers)
        writer.add_uint32("general.alignment", 32)
        writer.add_context_length(64)
        writer.add_embedding_length(width)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(hidden)
        writer.add_head_count(heads)
        writer.add_head_count_kv([0 if convolves else kv for convolves in conv] if any(conv) else kv)
        writer.add_vocab_size(c["vocab"])
        if gpt2:
            writer.add_layer_norm_eps(c["eps"])
        else:
            writer.add_layer_norm_rms_eps(c["eps"])
            writer.add_key_length(head)
            writer.add_value_length(head)
            writer.add_rope_dimension_count(head)
            writer.add_rope_freq_base(c["base"])
        if "window" in c:
            writer.add_sliding_window(c["window"])
        if "softcaps" in c:
            writer.add_attn_logit_softcapping(c["softcaps"][0])
            writer.add_final_logit_softcapping(c["softcaps"][1])
        if "scaling" in c:
            kind, factor, *original = c["scaling"]
            writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
            writer.add_rope_scaling_factor(factor)
            for context in original:
                writer.add_rope_scaling_orig_ctx_len(context)
        if "original" in c:
            writer.add_rope_scaling_orig_ctx_len(c["original"])
        if "loudness" in c:
            writer.add_rope_scaling_attn_factors(c["loudness"])
        if "experts" in c:
            writer.add_expert_count(c["experts"])
            writer.add_expert_used_count(c["used"])
        if "taps" in c:
            writer.add_shortconv_l_cache(c["taps"])
        writer.add_tokenizer_model("none")

        self.weight("token_embd", c["vocab"], width, scale=1.0)
        if gpt2:
            self.weight("position_embd", c["positions"], width, scale=0.5)
        if "rope_freqs" in c:
            writer.add_tensor("rope_freqs.weight", np.array(c["rope_freqs"], np.float32))
        for name, factors in zip(("short", "long"), c.get("factors", ())):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(factors, np.float32))
        for layer in range(layers):
            self.layer(f"blk.{layer}", conv[layer])
        self.norm("token_embd_norm" if self.architecture == "lfm2" else "output_norm", width, bias=gpt2)
        if not c.get("tied"):
            self.weight("output", c["vocab"], width)

    def layer(self, at, convolves):
        c = self.config
        heads, kv, head, width, hidden = (c[key] for key in ("heads", "kv", "head", "width", "hidden"))
        gpt2, behind, sandwich = self.architecture == "gpt2", c.get("behind"), c.get("sandwich")
        biases = c.get("qkv_bias", gpt2), c.get("out_bias", gpt2), c.get("mlp_bias", gpt2)
        if not behind:
            self.norm(f"{at}.attn_norm", width, bias=gpt2)
        if convolves:
            self.weight(f"{at}.shortconv.in_proj", 3 * width, width)
            self.writer.add_tensor(f"{at}.shortconv.conv.weight", self.rng.standard_normal((width, c["taps"])).astype(np.float32))
            self.weight(f"{at}.shortconv.out_proj", width, width)
        else:
            if gpt2 or c.get("fused"):
                self.weight(f"{at}.attn_qkv", (heads + 2 * kv) * head, width, bias=biases[0])
            else:
                for part, count in [("attn_q", heads), ("attn_k", kv), ("attn_v", kv)]:
                    self.weight(f"{at}.{part}", count * head, width, bias=biases[0])
            if norm := c.get("qk_norm"):
                for part, count in [("attn_q_norm", heads), ("attn_k_norm", kv)]:
                    self.norm(f"{at}.{part}", head if norm == "head" else count * head)
            self.weight(f"{at}.attn_output", width, heads * head, bias=biases[1])
        if behind or sandwich:
            self.norm(f"{at}.post_attention_norm", width)
        if not behind:
            self.norm(f"{at}.ffn_norm", width, bias=gpt2)
        if "experts" in c:
            self.writer.add_tensor(f"{at}.ffn_gate_inp.weight", self.rng.standard_normal((c["experts"], width)).astype(np.float32))
            for part, shape in [("gate", (hidden, width)), ("down", (width, hidden)), ("up", (hidden, width))]:
                self.weight(f"{at}.ffn_{part}_exps", c["experts"], *shape)
        else:
            if not gpt2 and not c.get("fused"):
                self.weight(f"{at}.ffn_gate", hidden, width, bias=biases[2])
            self.weight(f"{at}.ffn_up", hidden * (2 if c.get("fused") else 1), width, bias=biases[2])
            self.weight(f"{at}.ffn_down", width, hidden, bias=biases[2])
        if behind or sandwich:
            self.norm(f"{at}.post_ffw_norm", width)


def model(path, **options):
    return llama_cpp.Llama(
        str(path), n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1, n_threads_batch=1, logits_all=True, flash_attn=False, type_k=0, type_v=0,
        verbose=False, use_mmap=False, **options,
    )


def logits(llm, tokens):
    """The logits at all positions, all tokens being read at once."""
    llm.reset()
    llm.eval(tokens)
    return np.array(llm.scores[: len(tokens)], np.float32)


def written(path, name, seed, plain):
    writer = gguf.GGUFWriter(path, (BASE | NETWORKS[name])["arch"])
    made = Network(name, writer, np.random.default_rng(seed), plain)
    made.write()
    finish(writer)
    return made


def golden(name, seed, vocab, kind, llm, path):
    """Store llama.cpp's logits and tokens for the F32 weights in `llm`, and its logits for the file at `path`."""
    rng = random.Random(seed)
    near = NEAR_TIE_IN_BYTES if kind not in (T.F32, T.F16, T.BF16) else NEAR_TIE
    lead = 0.0
    while lead < near:
        prompt = [rng.randrange(vocab) for _ in range(PROMPT)]
        tokens, steps = [], STEPS if near == NEAR_TIE else 1
        while len(tokens) < steps:
            rows = logits(llm, prompt + tokens)
            tokens.append(int(rows[-1].argmax()))
        top = np.sort(rows[PROMPT - 1 :], axis=1)
        gaps = top[:, -1] - top[:, -2]
        lead = float((gaps / np.abs(rows[PROMPT - 1 :]).max(1)).min())
    golden = {
        "name": name, "reference": REFERENCE, "seed": seed, "storage": "f32", "vocab_size": vocab, "chunk": CHUNK, "context": CONTEXT,
        "prompts": [{"prompt_tokens": prompt, "tokens": tokens, "min_gap": float(gaps.min()), "full": True}],
    }
    (OUT / f"{name}.json").write_text(json.dumps(golden, indent=1) + "\n")
    rounded = {} if kind == T.F32 else {"prompts.0.rounded": logits(model(path), prompt + tokens[:-1])}
    save_file({"prompts.0.logits": rows} | rounded, OUT / f"{name}.safetensors")
    print(f"{name}: {path.stat().st_size / 1e3:.0f} kB, smallest gap {gaps.min():.2e} of {np.abs(rows).max():.1f}, tokens {tokens}", flush=True)
    return prompt + tokens[:-1], rows


def network(name, seed):
    path = OUT / f"{name}.gguf"
    made = written(path, name, seed, plain=False)
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder) / "plain.gguf", name, seed, plain=True)
        llm = model(Path(folder) / "plain.gguf")
    golden(name, seed, made.config["vocab"], made.config["kind"], llm, path)


def blocks():
    """Two rows of each format, and what the package `gguf` makes of them: of numbers that llama.cpp quantized, of any bytes with scales
    that are numbers."""
    rng, made = np.random.default_rng(0), {}
    writer = gguf.GGUFWriter(OUT / "blocks.gguf", "llama")
    for kind in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        real = quantized(rng.standard_normal((2, 256)), kind)
        noise = rng.integers(0, 256, (2, 256 // block, size), dtype=np.uint8)
        # The scales are two bytes at the beginning, the least numbers two behind them; of Q6_K the scale is at the end.
        halves = {T.Q4_1: 2, T.Q5_1: 2, T.Q4_K: 2, T.Q5_K: 2}.get(kind, 1)
        scales = rng.standard_normal((2, 256 // block, halves)).astype(np.float16).view(np.uint8)
        if kind == T.Q6_K:
            noise[..., -2:] = scales
        else:
            noise[..., : 2 * halves] = scales
        for name, data in [("real", real), ("noise", noise.reshape(2, -1))]:
            writer.add_tensor(f"{name}.{kind.name}", data, raw_dtype=kind)
            made[f"{name}.{kind.name}"] = gguf.quants.dequantize(data, kind)
    for kind in (T.F32, T.F16, T.BF16):
        numbers = rng.standard_normal((3, 5)).astype(np.float32)
        data = gguf.quants.quantize(numbers, kind)
        writer.add_tensor(f"real.{kind.name}", data, raw_dtype=kind)
        made[f"real.{kind.name}"] = gguf.quants.dequantize(data, kind)
    finish(writer)
    save_file(made, OUT / "blocks.safetensors")
    print(f"blocks: {(OUT / 'blocks.gguf').stat().st_size / 1e3:.0f} kB", flush=True)


# What tokenizers part in: spaces at both ends and in rows, digits, contractions, capitals, lines, marks, other scripts, bytes.
TEXTS = [
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    " a leading space,  two, and one behind ",
    "I'm sure they'll say it's OK; WE'VE seen 'em, HE'S here",
    "1 12 123 1234 12345.67890 -3e10 2026-11-22",
    "line\nbreaks\n\nand\ttabs\r\n  indented\n\n\n",
    "snake_case camelCase HTTPServer XMLHttpRequest Straße",
    "naïve café — “quoted” … ½ ² ①",
    "你好，世界。 こんにちは 안녕하세요 Привет мир",
    "👍🏽 👨‍👩‍👧 🇩🇪 \u200b\u00a0\u3000",
    "a+b=c; x<=y && !z || p->q[0] // {json: \"yes\"}",
    "<s>a special one</s>, <|im_start|>user\nhi<|im_end|> <0x41>",
    "",
    "e\u0301 \u0301 \ufffd \x00\x7f",
    "Once upon a time there was a little fox, who lived in the woods.",
]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
PRE = ["gpt-2", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "smollm", "default", "glm4", "minimax-m2", "qwen35", "deepseek-v3"]


def spelled():
    """Bytes as GPT-2 spells them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    return spelling | {byte: chr(256 + i) for i, byte in enumerate(others)}


def merged(texts, count, mark):
    """Pairs that occur often, joined one after the other: a small vocabulary for words as `mark` gives them."""
    words, merges = {}, []
    for text in texts:
        for word in mark(text):
            words[word] = words.get(word, 0) + 1
    words = {tuple(word): n for word, n in words.items()}
    while len(merges) < count:
        pairs = {}
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        if not pairs:
            break
        best = max(sorted(pairs), key=pairs.get)
        merges.append(best)
        joined = {}
        for word, n in words.items():
            new, i = [], 0
            while i < len(word):
                if word[i : i + 2] == best:
                    new.append(word[i] + word[i + 1])
                    i += 2
                else:
                    new.append(word[i])
                    i += 1
            joined[tuple(new)] = joined.get(tuple(new), 0) + n
        words = joined
    return merges


def tokens():
    stories = [line for line in TEXTS if line.isascii()] + [(HERE / name).read_text() for name in ("README.md",)]
    found = {}
    spelling = spelled()
    # Whole lines, not words: what a pattern does not keep together is joined where it does, so that patterns can be told apart.
    bytes_of = lambda text: ["".join(spelling[byte] for byte in line.encode()) for line in text.splitlines(keepends=True)]
    merges = [(a, b) for a, b in zip("1234", "2345")][:1] + [("12", "3"), ("123", "4"), ("1234", "5"), (spelling[39], "s"), (spelling[39], "S")]
    merges += [pair for pair in merged([text for text in TEXTS if "<s>" not in text], 450, bytes_of) if pair not in merges]
    for pre in PRE:
        writer = gguf.GGUFWriter(OUT / f"tokens-{pre}.gguf", "llama")
        vocabulary = [*spelling.values(), *dict.fromkeys(a + b for a, b in merges)]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([*vocabulary, *SPECIAL])
        writer.add_token_types([1] * len(vocabulary) + [3, 3, 3, 4])
        writer.add_token_merges([" ".join(pair) for pair in merges])
        writer.add_bos_token_id(len(vocabulary))
        writer.add_eos_token_id(len(vocabulary) + 1)
        found[f"tokens-{pre}"] = tokenized(writer, OUT / f"tokens-{pre}.gguf")
    words = lambda text: ["▁" + word for word in re.findall(r"[^\s]+", text)]
    pieces = merged(stories, 300, words)
    letters = sorted({letter for text in stories for letter in text if letter not in " \n\r\t"} | {"▁"})
    for name, prefix in [("tokens-spm", True), ("tokens-spm-plain", False)]:
        writer = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
        special = ["<unk>", "<s>", "</s>"]
        of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
        joined = [*dict.fromkeys(a + b for a, b in pieces)]
        vocabulary = [*special, *of_bytes, *joined, "▁▁", "▁▁▁▁", *letters, "<|im_start|>", "<|im_end|>"]
        ordinary = len(vocabulary) - len(special) - 256 - 2
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(vocabulary)
        writer.add_token_scores([0.0] * (len(special) + 256) + [-float(i) for i in range(ordinary)] + [0.0, 0.0])
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * ordinary + [3, 4])
        writer.add_add_space_prefix(prefix)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        if prefix:
            writer.add_add_eos_token(True)
            writer.add_chat_template("{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}{{ eos_token }}")
        found[name] = tokenized(writer, OUT / f"{name}.gguf")
    (OUT / "tokens.json").write_text(json.dumps({"reference": REFERENCE, "texts": TEXTS, "tokens": found}, ensure_ascii=False, indent=1) + "\n")


def tokenized(writer, path):
    finish(writer)
    llm = model(path, vocab_only=True)
    found = [llm.tokenize(text.encode(), add_bos=True, special=True) for text in TEXTS]
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB, {sum(map(len, found))} tokens", flush=True)
    return found


def corpus():
    """Small files of every kind."""
    folder = HERE.parents[1] / "fuzz" / "corpus" / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in ("llama", "gemma3", "lfm2", "mixtral"):
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", (BASE | NETWORKS[name])["arch"])
        kind = {"llama": T.Q8_0, "gemma3": T.Q4_0}.get(name, T.F16)
        sizes = dict(width=32, hidden=32, heads=2, kv=1, head=16, vocab=8, layers=1, kind=kind, conv=[True] * (name == "lfm2") or [False])
        made = Network(name, writer, rng)
        made.config |= sizes if name != "mixtral" else sizes | dict(width=8, hidden=8, head=4)
        made.write()
        tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "ab"]
        writer.kv_data[-1].pop("tokenizer.ggml.model")
        writer.add_tokenizer_model("llama" if name != "lfm2" else "gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 4])
        if name == "lfm2":
            writer.add_tokenizer_pre("lfm2")
            writer.add_token_merges(["▁ a", "a b"])
        else:
            writer.add_token_scores([0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0])
        writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}")
        finish(writer)
    writer = gguf.GGUFWriter(folder / "blocks.gguf", "llama")
    for kind in (T.Q4_0, T.Q5_1, T.Q4_K, T.Q6_K):
        writer.add_tensor(kind.name, quantized(rng.standard_normal((1, 256)), kind), raw_dtype=kind)
    finish(writer)
    print("corpus:", {path.name: path.stat().st_size for path in sorted(folder.iterdir())}, flush=True)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    parts = sys.argv[1:] or ["blocks", "tokens", "corpus", *NETWORKS]
    if "blocks" in parts:
        blocks()
    if "tokens" in parts:
        tokens()
    if "corpus" in parts:
        corpus()
    for seed, name in enumerate(NETWORKS, start=1):
        if name in parts:
            network(name, seed)


if __name__ == "__main__":
    main()
