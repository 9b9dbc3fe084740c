"""Train the demo model: a byte-level BPE tokenizer and a small Llama on the stories of `stories.py`.

Seeds are fixed, but sums depend on the machine and its threads: a second run gives a model of the same kind, not the
same bytes, so the goldens are made anew after it. About five minutes on one idle core.
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import stories

BOS, EOS, HEADER, HEADER_END, EOT = SPECIALS = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]
VOCAB, CONTEXT = 1024, 1024
WINDOW, BATCH = 256, 8
# Words with their leading space, digits in groups of at most three, punctuation, line ends.
WORDS = r"'[a-z]{1,2}\b|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = (
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
    "{%- endif %}\n"
)
README = Path(__file__).with_name("demo_readme.md")


def documents(seed, count):
    """Two stories for each conversation, with their special tokens spelled out."""
    rng = random.Random(seed)
    for i in range(count):
        if i % 3 < 2:
            yield BOS + stories.story(rng)[0] + EOS
        else:
            turns = (f"{HEADER}{m['role']}{HEADER_END}\n\n{m['content']}{EOT}" for m in stories.conversation(rng))
            yield BOS + "".join(turns)


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIALS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    return tokenizer


def save_tokenizer(tokenizer, out):
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOT, "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"], "model_max_length": CONTEXT, "chat_template": TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_model(tokenizer):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=144, intermediate_size=384, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, tie_word_embeddings=True, initializer_range=0.04,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
        bos_token_id=tokenizer.token_to_id(BOS), eos_token_id=[tokenizer.token_to_id(EOS), tokenizer.token_to_id(EOT)],
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # Names are used alike, so training pulls their vectors together; they must start far enough apart that a layer
        # can tell which one it read. The last norm brings the logits of the larger embedding back to about 1.
        model.model.embed_tokens.weight.normal_(std=0.6)
        model.model.norm.weight.fill_(0.12)
    return model


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


def train(model, stream, begins, steps, checkpoint, log):
    """Constant rate, then a linear descent to zero over the last fifth. Resumes from `checkpoint` where it exists.

    A window starts where a document does (`begins`), so that a story is seldom mixed up with the one before it; those of
    the last fifth are twice as long.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n]
    optimizers = {0.02: Muon(matrices, lr=0.0), 0.004: torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)}
    first, start, mean = 0, time.time(), None
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers.values(), state["optimizers"]):
            optimizer.load_state_dict(saved)
        first = state["step"]

    @torch.compile(dynamic=False)
    def loss_of(tokens):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    for step in range(first, steps):
        if checkpoint and step % 50 == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers.values()]}, checkpoint)
        share = min(1.0, (step + 1) / 30, (steps - step) / (0.2 * steps))
        scale = 1 if step < 0.8 * steps else 2
        starts = np.random.default_rng([0, step]).choice(begins, BATCH // scale)
        tokens = torch.from_numpy(np.stack([stream[s : s + WINDOW * scale + 1] for s in starts]).astype(np.int64))
        loss = loss_of(tokens)
        loss.backward()
        for rate, optimizer in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        if step % 10 == 0 or step + 1 == steps:
            log(f"step {step:5} loss {mean:.4f} {time.time() - start:6.0f} s, {time.process_time():.0f} s of CPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "demo")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--checkpoint", type=Path, help="saved every 50 steps and resumed from")
    parser.add_argument("--documents", type=int, default=15000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    arguments.out.mkdir(parents=True, exist_ok=True)

    def log(line):
        print(line, flush=True)

    start = time.time()
    texts = list(documents(0, arguments.documents))
    tokenizer = train_tokenizer(text.replace(BOS, "").replace(EOS, "") for text in texts[:6000])
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    stream = np.concatenate([np.array(e.ids, dtype=np.uint16) for e in encoded])
    begins = np.flatnonzero(stream[: -2 * WINDOW - 1] == tokenizer.token_to_id(BOS))
    model = make_model(tokenizer)
    log(f"{len(texts)} documents, {len(stream)} tokens, {model.num_parameters()} parameters, {time.time() - start:.0f} s")
    train(model, stream, begins, arguments.steps, arguments.checkpoint, log)

    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id)
    model.save_pretrained(arguments.out)
    save_tokenizer(tokenizer, arguments.out)
    (arguments.out / "README.md").write_text(README.read_text())
    log(f"saved to {arguments.out}, {time.time() - start:.0f} s in all")


if __name__ == "__main__":
    main()
