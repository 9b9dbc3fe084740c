"""Write the committed fixtures: `python make_goldens.py [demo] [demo-gemma3] [random] [NAME …] [embedding] [encoders] [narrow] [ops]
[rope] [crossing] [long]`, where NAME is one of the random ones; all of them without arguments."""

import json
import shutil
import sys
import time
from pathlib import Path

import torch

from golden import bare, write_case

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
SHIPPED = ["demo", "demo-gemma3"]
CHUNK, CONTEXT = 8, 40

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
BASE = dict(
    vocab_size=515, hidden_size=60, num_attention_heads=6, num_key_value_heads=2, head_dim=14, num_hidden_layers=2, intermediate_size=90,
    max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=DEFAULT,
)
RANDOM = {
    "llama-untied": {},
    "llama-tied": dict(vocab_size=259, tie_word_embeddings=True, storage="f16"),
    "llama-bias": dict(vocab_size=259, attention_bias=True, mlp_bias=True, shard="150KB"),
    "llama-rope3": dict(vocab_size=387, rope_parameters=LLAMA3, rms_norm_eps=1e-6, storage="bf16", published=True),
    "llama-mha": dict(vocab_size=131, num_attention_heads=3, num_key_value_heads=3, head_dim=None, num_hidden_layers=3, drop=("head_dim",)),
    "llama-mqa": dict(vocab_size=195, num_attention_heads=5, num_key_value_heads=1, intermediate_size=77, tie_word_embeddings=True, published=True),
}


SLIDING, FULL, CONV = "sliding_attention", "full_attention", "conv"
# Layers of a few kB, so that there can be enough of them for a pattern. Where a family has no head size, it is 10.
SMALL = dict(
    vocab_size=131, hidden_size=60, num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=77, max_position_embeddings=64, storage="bf16",
)
GEMMA3 = SMALL | dict(model_type="gemma3_text", hidden_size=42, head_dim=8, query_pre_attn_scalar=20, intermediate_size=53, num_hidden_layers=6, sliding_window=6)
# Keys that the published files of transformers 4 have not.
DERIVED = ("layer_types", "_sliding_window_pattern", "use_bidirectional_attention")


def bases(local, full, **scaling):
    """The rotary embeddings of a Gemma 3."""
    return {SLIDING: {"rope_type": "default", "rope_theta": local}, FULL: {"rope_type": "default", "rope_theta": full, **scaling}}


def default_rope(theta, **keys):
    return {"rope_type": "default", "rope_theta": theta, **keys}


GPT2 = dict(model_type="gpt2", vocab_size=131, n_embd=42, n_head=3, n_layer=3, n_positions=64, storage="bf16")
# Keys that came after the first files.
GPT2_LATER = ("n_inner", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention", "tie_word_embeddings", "use_cache", "pad_token_id")
MIXTRAL = SMALL | dict(model_type="mixtral", intermediate_size=37)
LFM2 = SMALL | dict(model_type="lfm2", hidden_size=42, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=4, intermediate_size=118, block_multiple_of=7, first=(1, 2))
FAMILIES = {
    # Five sliding layers to one that sees all, which `layer_types` puts elsewhere than the pattern would.
    "gemma3-a": GEMMA3 | dict(layer_types=[SLIDING] * 3 + [FULL] + [SLIDING] * 2, rope_parameters=bases(100.0, 50000.0)),
    "gemma3-b": GEMMA3 | dict(
        vocab_size=149, hidden_size=45, num_attention_heads=5, num_key_value_heads=1, head_dim=10, num_hidden_layers=4, query_pre_attn_scalar=17, sliding_window=7, storage="f16",
        final_logit_softcapping=4.0, rope_parameters=bases(200.0, 20000.0, rope_type="linear", factor=8.0),
        sliding_window_pattern=3, published=True, drop=DERIVED, add={"sliding_window_pattern": 3, "cache_implementation": "hybrid"},
    ),
    # The text tower of a network that sees: a prefix, and tensors that text does not need.
    "gemma3-4b-tower": dict(
        model_type="gemma3", storage="bf16", mm_tokens_per_image=1, published=True, drop=DERIVED, add={"sliding_window_pattern": 2},
        vision_config=dict(hidden_size=8, intermediate_size=10, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4),
        text_config={k: v for k, v in GEMMA3.items() if k not in ("model_type", "storage")} | dict(
            num_hidden_layers=3, sliding_window_pattern=2, rope_parameters=bases(300.0, 30000.0, rope_type="linear", factor=8.0),
        ),
    ),
    "gemma2": SMALL | dict(
        model_type="gemma2", hidden_size=42, head_dim=16, num_hidden_layers=3, intermediate_size=65, query_pre_attn_scalar=11, sliding_window=6,
        attn_logit_softcapping=3.0, final_logit_softcapping=3.5, published=True, drop=DERIVED, add={"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    ),
    "mistral": SMALL | dict(model_type="mistral", head_dim=14, sliding_window=6, published=True),
    "mistral-full": SMALL | dict(model_type="mistral", head_dim=None, sliding_window=None, tie_word_embeddings=True, storage="f16", drop=("head_dim",)),
    # The published files name a window that is not used.
    "qwen2": SMALL | dict(model_type="qwen2", tie_word_embeddings=True, published=True, drop=DERIVED, add={"sliding_window": 5, "use_sliding_window": False, "max_window_layers": 1}),
    "qwen2-sliding": SMALL | dict(
        model_type="qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1, num_hidden_layers=3, intermediate_size=50, layer_types=[SLIDING, FULL, SLIDING],
    ),
    "qwen3": SMALL | dict(
        model_type="qwen3", head_dim=14, num_hidden_layers=3, intermediate_size=50, use_sliding_window=True, sliding_window=7, max_window_layers=2, attention_bias=True, published=True, drop=DERIVED,
    ),
    # Where the list says 1, there is a rotary embedding; where it says 0, a window.
    "smollm3": SMALL | dict(
        model_type="smollm3", num_hidden_layers=3, intermediate_size=40, no_rope_layers=[0, 1, 1], use_sliding_window=True, sliding_window=6, rope_parameters=default_rope(3000.0),
    ),
    "smollm3-interval": SMALL | dict(
        model_type="smollm3", num_hidden_layers=3, intermediate_size=40, no_rope_layer_interval=2, tie_word_embeddings=False, published=True, drop=("layer_types", "no_rope_layers"), storage="f16",
    ),
    "olmo2": SMALL | dict(model_type="olmo2", rms_norm_eps=1e-6, rope_parameters=default_rope(500000.0), published=True),
    "phi3": SMALL | dict(model_type="phi3", num_key_value_heads=3, sliding_window=9, original_max_position_embeddings=64, published=True),
    # All prompts are longer than the original context: the long factors hold from their first position on.
    "phi3-longrope": SMALL | dict(
        model_type="phi3", original_max_position_embeddings=6, published=True, storage="f16",
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3, 1.7, 2.1], "long_factor": [1.0, 1.5, 3.0, 7.0, 11.0]},
    ),
    "phi3-partial": SMALL | dict(
        model_type="phi3", num_attention_heads=5, num_key_value_heads=1, original_max_position_embeddings=64, rope_parameters=default_rope(1000.0, partial_rotary_factor=0.5),
    ),
    "llama-linear": SMALL | dict(head_dim=14, num_hidden_layers=1, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}, published=True),
    "llama-yarn": SMALL | dict(
        head_dim=14, num_hidden_layers=1, rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    ),
    # Up to the longest sequence of training the base stays as it is.
    "llama-dynamic": SMALL | dict(head_dim=14, num_hidden_layers=1, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}, published=True),
    # As the first files have it: no prefix, triangles beside the parameters, few keys. The longest prompt fills its table of positions.
    "gpt2": GPT2 | dict(n_positions=CONTEXT, published=True, rewrite=bare, drop=GPT2_LATER, add={"n_ctx": CONTEXT}),
    "gpt2-inner": GPT2 | dict(n_head=2, n_inner=77, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True, storage="f16"),
    "gpt2-untied": GPT2 | dict(n_embd=45, n_head=5, n_layer=2, n_inner=53, scale_attn_weights=False, tie_word_embeddings=False, activation_function="gelu_pytorch_tanh"),
    # In shards, so that the experts of a layer are in several files.
    "mixtral": MIXTRAL | dict(num_local_experts=5, published=True, drop=("head_dim",), shard="60KB"),
    "mixtral-sliding": MIXTRAL | dict(num_local_experts=4, head_dim=14, num_key_value_heads=3, sliding_window=6, tie_word_embeddings=True, storage="f16"),
    "mixtral-stacked": MIXTRAL | dict(num_local_experts=6, num_experts_per_tok=3, hidden_size=45, num_attention_heads=5, num_key_value_heads=1, head_dim=16, stacked=True),
    "lfm2": LFM2 | dict(full_attn_idxs=[2], published=True, drop=("layer_types", "intermediate_size"), add={"block_ff_dim": 118, "block_dim": 42, "conv_dim": 42, "num_heads": 3, "use_pos_enc": True}),
    "lfm2-bias": LFM2 | dict(
        conv_bias=True, conv_L_cache=4, layer_types=[FULL, CONV, CONV, FULL], num_attention_heads=6, num_key_value_heads=2, head_dim=10, intermediate_size=67,
        block_auto_adjust_ff_dim=False, tie_word_embeddings=False, storage="f16",
    ),
    "lfm2-wide": LFM2 | dict(conv_L_cache=2, layer_types=[CONV, FULL, CONV], num_hidden_layers=3, intermediate_size=70, block_ffn_dim_multiplier=1.3, rope_parameters=default_rope(500.0)),
    # Seeds follow the order: what is new stands at the end.
    "gemma2-uncapped": SMALL | dict(
        model_type="gemma2", vocab_size=113, hidden_size=40, num_attention_heads=5, num_key_value_heads=5, head_dim=10, num_hidden_layers=3, intermediate_size=53, query_pre_attn_scalar=7,
        sliding_window=5, layer_types=[FULL, SLIDING, FULL], attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True, tie_word_embeddings=False, storage="f16",
    ),
    # Scores alone are capped, every layer has a window, and keys are stretched.
    "gemma2-sliding": SMALL | dict(
        model_type="gemma2", hidden_size=45, num_attention_heads=5, num_key_value_heads=1, head_dim=14, intermediate_size=65, query_pre_attn_scalar=17, sliding_window=7,
        layer_types=[SLIDING] * 2, attn_logit_softcapping=2.5, final_logit_softcapping=None, rope_parameters=LLAMA3, published=True,
    ),
    # As the small ones are published, with the embedding that their cards give for long texts.
    "qwen3-yarn": SMALL | dict(
        model_type="qwen3", hidden_size=45, num_attention_heads=5, num_key_value_heads=1, head_dim=16, intermediate_size=65, tie_word_embeddings=True, storage="f16",
        rope_parameters={"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 16},
        published=True, drop=DERIVED, add={"sliding_window": None, "use_sliding_window": False, "max_window_layers": 2},
    ),
    "qwen3-sliding": SMALL | dict(
        model_type="qwen3", vocab_size=113, hidden_size=36, num_attention_heads=3, num_key_value_heads=3, head_dim=10, num_hidden_layers=3, intermediate_size=47, use_sliding_window=True,
        sliding_window=5, max_window_layers=3, layer_types=[SLIDING, FULL, SLIDING], rms_norm_eps=1e-5, rope_parameters=default_rope(3000.0), storage="f32",
    ),
    # No norm stands in front of a layer: were the embedding as small as elsewhere, the biases would drown it, and all tokens be the same.
    "olmo2-tied": SMALL | dict(
        model_type="olmo2", num_attention_heads=5, num_key_value_heads=None, attention_bias=True, tie_word_embeddings=True, initializer_range=0.1, storage="f16",
        drop=("num_key_value_heads", "rms_norm_eps"),
    ),
    # Heads that are no share of the hidden size: the norms around all of them have as many features as all of them.
    "olmo2-heads": SMALL | dict(
        model_type="olmo2", vocab_size=113, hidden_size=42, num_attention_heads=3, num_key_value_heads=1, head_dim=16, intermediate_size=53, rms_norm_eps=1e-6, rope_parameters=LLAMA3,
        storage="f32", published=True,
    ),
    # A head of its own, which no published Gemma 3 has.
    "gemma3-untied": GEMMA3 | dict(
        num_hidden_layers=2, sliding_window=5, layer_types=[SLIDING, FULL], rope_parameters=bases(100.0, 50000.0), tie_word_embeddings=False, storage="f16",
    ),
}
# Decoded far enough to leave several windows behind.
STEPS = 20
# One of each family, and what is judged in a narrow type beside: those with transformers' own run in the type of their checkpoint.
NARROW = [
    "llama-tied", "gemma3-a", "gemma3-b", "gemma2", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "phi3", "mixtral", "gpt2", "lfm2",
    "gemma2-uncapped", "qwen3-yarn", "olmo2-tied",
]


def committed():
    """The cases of families that came later: the `case.json` of a fixture's folder, with its seed."""
    cases = {path.parent.name: json.loads(path.read_text()) for path in sorted(FIXTURES.glob("*/case.json"))}
    return [(case.pop("seed"), name, {"steps": STEPS, "own": True, **small(case)}) for name, case in cases.items()]


def small(case):
    """A case with the sizes of `SMALL`, which are those of the text tower of a network that sees."""
    if "text_config" not in case:
        return {**SMALL, **case}
    sizes = {key: value for key, value in SMALL.items() if key != "storage"}
    return {**case, "text_config": {**sizes, **case["text_config"]}}


def random_models(names):
    lengths = [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, CONTEXT - 1, CONTEXT]
    llamas = [(seed, name, {**BASE, **change}) for seed, (name, change) in enumerate(RANDOM.items(), start=1)]
    others = [(seed, name, {**change, "steps": STEPS}) for seed, (name, change) in enumerate(FAMILIES.items(), start=11)]
    for seed, name, config in llamas + others + committed():
        if name not in names:
            continue
        start, out = time.time(), FIXTURES / name
        for file in out.glob("*"):
            if file.name != "case.json":
                file.unlink()
        # Where a state begins with nothing, prompts that are shorter than it come first.
        prompts = write_case(out, seed, CHUNK, CONTEXT, [*config.pop("first", ()), *lengths], **{"own": name in NARROW, **config})
        size = sum(f.stat().st_size for f in out.iterdir())
        distinct = [len(set(p["tokens"])) for p in prompts]
        print(f"{name}: smallest gap {min(p['min_gap'] for p in prompts):.2e}, distinct tokens {distinct}, {size / 1e3:.0f} kB, {time.time() - start:.1f} s", flush=True)


def narrow_models():
    """Bf16 weights over 200 positions: one case as `parity.py --narrow bf16` makes them, and one whose roundings can be told apart."""
    config = dict(vocab_size=131, max_position_embeddings=256, storage="bf16")
    for seed, name, change in [(7, "bf16", BASE), (8, "gemma3-roundings", GEMMA3 | ROUNDINGS)]:
        out = FIXTURES / name
        shutil.rmtree(out, ignore_errors=True)
        write_case(out, seed, 64, 256, [200], steps=1, own=True, **{**change, **config})


def near_one(tensors):
    """Norms that multiply by a little more than 1, by what bf16 has no number for, of embeddings that are not small."""
    def change(key, tensor):
        if key.endswith("norm.weight"):
            return torch.linspace(0.0034, 0.0038, len(tensor)).to(tensor.dtype)
        return tensor * 8 if key.endswith("embed_tokens.weight") else tensor

    return {key: change(key, tensor) for key, tensor in tensors.items()}


# √28 is far from a number of bf16, and the epsilon so large that a norm does not divide by what all its features have in common: so a
# factor that is rounded where it should not be, or not rounded where it should be, is a factor of the logits.
ROUNDINGS = dict(hidden_size=28, num_attention_heads=4, num_hidden_layers=2, rms_norm_eps=64.0, layer_types=[SLIDING, FULL], rope_parameters=bases(100.0, 50000.0), rewrite=near_one)


def main():
    parts = sys.argv[1:] or ["random", "embedding", "encoders", "narrow", "ops", "rope", "crossing", "long", "layer", *SHIPPED]
    random_models({*RANDOM, *FAMILIES, *(name for _, name, _ in committed())} if "random" in parts else parts)
    if "embedding" in parts:
        import embedding

        for seed, (name, case) in enumerate(embedding.CASES.items(), start=101):
            embedding.write(FIXTURES / name, seed, case)
    if "encoders" in parts:
        import encoders

        for seed, (name, case) in enumerate(encoders.CASES.items(), start=201):
            encoders.write(FIXTURES / name, seed, case)
    if "narrow" in parts:
        narrow_models()
    if "ops" in parts:
        import ops

        ops.write(FIXTURES / "ops")
    if "crossing" in parts:
        import crossing

        crossing.write(FIXTURES)
    if "long" in parts:
        import long

        long.write(FIXTURES)
    if "layer" in parts:
        import layer

        layer.write_golden(FIXTURES / "layer")
    if "rope" in parts:
        import rope

        rope.write(FIXTURES / "rope")
    for shipped in SHIPPED:
        if shipped in parts:
            import demo

            demo.write(ROOT / shipped, FIXTURES)


if __name__ == "__main__":
    main()
