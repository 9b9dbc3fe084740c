"""Train a demo model, `python train.py llama|gemma3`: a byte-level BPE tokenizer and a small network on the stories of
`stories.py`.

Seeds are fixed, but sums depend on the machine and its threads: a second run gives a model of the same kind, not the
same bytes, so the goldens are made anew after it. About five minutes on one idle core for the Llama, seven for the
Gemma 3.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

import stories

VOCAB, CONTEXT = 1024, 1024
WINDOW, BATCH = 256, 8
# Words with their leading space, digits in groups of at most three, punctuation, line ends.
WORDS = r"'[a-z]{1,2}\b|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def llama(tokenizer):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=144, intermediate_size=384, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, tie_word_embeddings=True, initializer_range=0.04,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
        **LLAMA.ids(tokenizer),
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # Names are used alike, so training pulls their vectors together; they must start far enough apart that a layer
        # can tell which one it read. The last norm brings the logits of the larger embedding back to about 1.
        model.model.embed_tokens.weight.normal_(std=0.6)
        model.model.norm.weight.fill_(0.12)
    return model


def gemma3(tokenizer):
    # Two layers look back 20 tokens, a third over the whole text; a story has 100 to 250.
    layer_types = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=132, intermediate_size=352, num_hidden_layers=len(layer_types), num_attention_heads=6, num_key_value_heads=2,
        head_dim=24, query_pre_attn_scalar=20, max_position_embeddings=CONTEXT, sliding_window=20, layer_types=layer_types, initializer_range=0.04,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 2.0},
        },
        pad_token_id=0, **GEMMA3.ids(tokenizer),
    )
    model = Gemma3ForCausalLM(config)
    with torch.no_grad():
        # The embedding is multiplied by √132 on its way in, so this is as far apart as in the Llama. A half is
        # normalized before it joins the residual: at its full size twelve of them would drown the token.
        model.model.embed_tokens.weight.normal_(std=0.08)
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight.fill_(-0.7)
            layer.post_feedforward_layernorm.weight.fill_(-0.7)
    return model


@dataclass
class Family:
    """What a shipped model is made of: its special tokens (`bos` and those of `eos` among them), a turn of a chat and
    what the assistant is called there, the network, and the rate at which its embedding is learned."""

    specials: list
    bos: str
    eos: list
    turn: str
    assistant: str
    model: Callable
    embedding_rate: float
    out: str

    def ids(self, tokenizer):
        return {"bos_token_id": tokenizer.token_to_id(self.bos), "eos_token_id": [tokenizer.token_to_id(e) for e in self.eos]}

    @property
    def template(self):
        """The chat template that writes what `documents` does."""
        before, after, tail = re.split(r"{role}|{content}", self.turn)
        role = "message['role']" if self.assistant == "assistant" else f"('{self.assistant}' if message['role'] == 'assistant' else message['role'])"
        before, after, tail = (part.replace("\n", "\\n") for part in (before, after, tail))
        return (
            "{{- bos_token }}\n"
            "{%- for message in messages %}\n"
            f"    {{{{- '{before}' + {role} + '{after}' + message['content'] | trim + '{tail}' }}}}\n"
            "{%- endfor %}\n"
            "{%- if add_generation_prompt %}\n"
            f"    {{{{- '{before}{self.assistant}{after}' }}}}\n"
            "{%- endif %}\n"
        )


LLAMA = Family(
    specials=["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    bos="<|begin_of_text|>", eos=["<|end_of_text|>", "<|eot_id|>"], turn="<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
    assistant="assistant", model=llama, embedding_rate=0.004, out="demo",
)
GEMMA3 = Family(
    specials=["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"],
    bos="<bos>", eos=["<eos>", "<end_of_turn>"], turn="<start_of_turn>{role}\n{content}<end_of_turn>\n",
    assistant="model", model=gemma3, embedding_rate=0.001, out="demo-gemma3",
)
FAMILIES = {"llama": LLAMA, "gemma3": GEMMA3}


def documents(family, seed, count):
    """Two stories for each conversation, with their special tokens spelled out."""
    rng = random.Random(seed)
    for i in range(count):
        if i % 3 < 2:
            yield family.bos + stories.story(rng)[0] + family.eos[0]
        else:
            turns = (family.turn.format(role=family.assistant if m["role"] == "assistant" else m["role"], content=m["content"]) for m in stories.conversation(rng))
            yield family.bos + "".join(turns)


def train_tokenizer(family, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=family.specials, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", special_tokens=[(family.bos, tokenizer.token_to_id(family.bos))])
    return tokenizer


def save_tokenizer(family, tokenizer, out):
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": family.bos, "eos_token": family.eos[-1], "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"], "model_max_length": CONTEXT, "chat_template": family.template,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by five Newton-Schulz steps (K. Jordan, 2024), in f32."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(p)
                state["mean"].lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(state["mean"], group["momentum"])
                tall = x.shape[0] > x.shape[1]
                x = x.T if tall else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
                p.add_(x.T if tall else x, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def train(model, embedding_rate, stream, begins, steps, checkpoint, log):
    """Constant rate, then a linear descent to zero over the last fifth. Resumes from `checkpoint` where it exists.

    A window starts where a document does (`begins`), so that a story is seldom mixed up with the one before it; those of
    the last fifth are twice as long.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n]
    rates = [embedding_rate if p.ndim == 2 else 0.004 for p in others]
    adam = torch.optim.AdamW([{"params": [p], "rate": rate} for p, rate in zip(others, rates)], lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    optimizers = [Muon([{"params": matrices, "rate": 0.02}], lr=0.0), adam]
    first, start, mean = 0, time.time(), None
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        first = state["step"]

    @torch.compile(dynamic=False)
    def loss_of(tokens):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    for step in range(first, steps):
        if checkpoint and step % 50 == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}, checkpoint)
        share = min(1.0, (step + 1) / 30, (steps - step) / (0.2 * steps))
        scale = 1 if step < 0.8 * steps else 2
        starts = np.random.default_rng([0, step]).choice(begins, BATCH // scale)
        tokens = torch.from_numpy(np.stack([stream[s : s + WINDOW * scale + 1] for s in starts]).astype(np.int64))
        loss = loss_of(tokens)
        loss.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["rate"] * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        if step % 10 == 0 or step + 1 == steps:
            log(f"step {step:5} loss {mean:.4f} {time.time() - start:6.0f} s, {time.process_time():.0f} s of CPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--out", type=Path, help="folder [default: `demo/` or `demo-gemma3/`]")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--checkpoint", type=Path, help="file that is saved every 50 steps, and resumed from")
    parser.add_argument("--documents", type=int, default=15000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    family = FAMILIES[arguments.family]
    out = arguments.out or Path(__file__).parents[2] / family.out
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)

    def log(line):
        print(line, flush=True)

    start = time.time()
    texts = list(documents(family, 0, arguments.documents))
    tokenizer = train_tokenizer(family, (text.replace(family.bos, "").replace(family.eos[0], "") for text in texts[:6000]))
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    stream = np.concatenate([np.array(e.ids, dtype=np.uint16) for e in encoded])
    begins = np.flatnonzero(stream[: -2 * WINDOW - 1] == tokenizer.token_to_id(family.bos))
    model = family.model(tokenizer)
    log(f"{len(texts)} documents, {len(stream)} tokens, {model.num_parameters()} parameters, {time.time() - start:.0f} s")
    train(model, family.embedding_rate, stream, begins, arguments.steps, arguments.checkpoint, log)

    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id)
    model.save_pretrained(out)
    save_tokenizer(family, tokenizer, out)
    (out / "README.md").write_text(Path(__file__).with_name(f"demo_{arguments.family}.md").read_text())
    log(f"saved to {out}, {time.time() - start:.0f} s in all")


if __name__ == "__main__":
    main()
