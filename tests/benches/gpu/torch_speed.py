"""The speed of transformers on torch with the same weights: eager, and with decoding compiled over a static cache.

    torch_speed.py MODEL
"""

import sys
import time

import torch
from common import medians, model, report, say, settings, sizes, speeds
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache


def main() -> None:
    name = sys.argv[1]
    small, size = settings()["rehearse"], sizes()
    device = "cpu" if small else "cuda"
    wait = (lambda: None) if small else torch.cuda.synchronize
    start = time.perf_counter()
    network = AutoModelForCausalLM.from_pretrained(model(name), dtype=torch.bfloat16, attn_implementation="sdpa")
    network = network.to(device).eval()
    wait()
    report(load={"engine": "torch", "model": name, "seconds": round(time.perf_counter() - start, 1)})
    say("loaded")

    def step(token: torch.Tensor, cache: object) -> torch.Tensor:
        return network(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)

    def peak() -> int | None:
        return None if small else torch.cuda.max_memory_allocated()

    eager_steps = max(2, size.steps // 4)
    with torch.inference_mode():
        for batch in size.batches:
            about = {"model": name, "batch": batch}
            generator = torch.Generator().manual_seed(0)
            prompt = torch.randint(0, network.config.vocab_size, (batch, size.prompt), generator=generator).to(device)
            if not small:
                torch.cuda.reset_peak_memory_stats()

            def prefill() -> None:
                nonlocal token, cache
                cache = DynamicCache(config=network.config)
                token = step(prompt, cache)
                wait()

            def decode() -> None:
                nonlocal token
                for _ in range(eager_steps):
                    token = step(token, cache)
                wait()

            token, cache = None, None
            prefill_s = medians(prefill, size.runs)
            # The cache grows with each run, from the prompt on.
            prefill()
            decode_s = medians(decode, min(4, size.runs)) / eager_steps
            say(f"eager, batch {batch}: {decode_s * 1e3:.2f} ms a step, {prefill_s * 1e3:.2f} ms a prompt")
            report(speed={**about, "engine": "transformers, torch", "way": "eager", "peak_bytes": peak(),
                          **speeds(name, batch, decode_s, prefill_s)})  # fmt: skip
            cache = None
            torch._dynamo.reset()
            if not small:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            compiled = torch.compile(step, mode="default" if small else "reduce-overhead", fullgraph=True)
            cache = StaticCache(config=network.config, max_cache_len=size.context)
            prompt = torch.randint(0, network.config.vocab_size, (batch, size.prompt), device=device)
            token = step(prompt, cache)
            wait()

            def one(token: torch.Tensor) -> torch.Tensor:
                if not small:
                    torch.compiler.cudagraph_mark_step_begin()
                return compiled(token, cache).clone()

            start = time.perf_counter()
            for _ in range(3):
                token = one(token)
            wait()
            compile_s = time.perf_counter() - start

            def decode() -> None:
                nonlocal token
                for layer in cache.layers:
                    layer.cumulative_length.fill_(size.prompt)
                wait()
                for _ in range(size.steps):
                    token = one(token)
                wait()

            decode_s = medians(decode, size.runs) / size.steps
            say(f"compiled, batch {batch}: {decode_s * 1e3:.2f} ms a step, {compile_s:.1f} s to compile")
            report(speed={**about, "engine": "transformers, torch", "way": "compiled", "peak_bytes": peak(),
                          "compile_s": {"decode": round(compile_s, 1)}, **speeds(name, batch, decode_s, None)})  # fmt: skip
            cache = None


if __name__ == "__main__":
    main()
