"""Fresh random configurations with their golden files, in the format of README.md: the parity lane's reference."""

import argparse
import json
import random
import shutil
import time
from pathlib import Path

from golden import bare, write_case

SLIDING, FULL, CONV = "sliding_attention", "full_attention", "conv"


def rope(rng):
    """A base, and any way to stretch it whose tables do not change with the length of a sequence."""
    original = {"original_max_position_embeddings": rng.choice([8, 16, 32])}
    turns = {"low_freq_factor": rng.choice([1.0, 0.5]), "high_freq_factor": rng.choice([2.0, 4.0])}
    return {"rope_type": "default", "rope_theta": rng.choice([10000.0, 500000.0, 777.0])} | rng.choice([
        {}, {}, {}, {"rope_type": "llama3", "factor": rng.choice([2.0, 8.0, 32.0]), **turns, **original}, {"rope_type": "linear", "factor": rng.choice([2.0, 8.0])},
        {"rope_type": "yarn", "factor": rng.choice([2.0, 4.0]), **original} | rng.choice([{}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"attention_factor": 1.2}]),
        {"rope_type": "dynamic", "factor": 4.0},
    ])


def rotated(rng, config, features, shares):
    """The share of a head's features that are rotated. For two features, transformers' dynamic tables divide by zero."""
    least = 4 if config["rope_parameters"]["rope_type"] == "dynamic" else 2
    return rng.choice([share for share in shares if int(features * share) % 2 == 0 and int(features * share) >= least])


def common(rng, model_type, head_dim=True):
    """What all families have: the context, the features of a head, the keys. Without `head_dim` they share the hidden size."""
    heads = rng.choice([1, 2, 3, 3, 4, 5, 5, 6, 6, 7, 9])
    if head_dim:
        features = rng.choice([4, 6, 8, 10, 14, 16, 18])
        # transformers asks that the heads divide the hidden size, also where head_dim is given.
        multiples = [m * heads for m in range(1, 80) if 20 <= m * heads <= 72]
        hidden = rng.choice([h for h in multiples if h // heads != features] or multiples)
    else:
        features = rng.choice([f for f in range(4, 74, 2) if 20 <= f * heads <= 72])
        hidden = heads * features
    return rng.randrange(27, 48), features, dict(
        model_type=model_type, vocab_size=rng.randrange(67, 300), hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=rng.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        num_hidden_layers=rng.randrange(1, 5), intermediate_size=rng.randrange(33, 130), rms_norm_eps=rng.choice([1e-5, 1e-6]), max_position_embeddings=64,
        tie_word_embeddings=rng.random() < 0.5, rope_parameters=rope(rng), published=rng.random() < 0.5, shard=rng.choice(["1GB", "1GB", "60KB"]),
        **({"head_dim": features} if head_dim else {}),
    )


def llama(rng):
    context, _, config = common(rng, "llama", head_dim=rng.random() < 0.8)
    return context, config | dict(attention_bias=rng.random() < 0.4, mlp_bias=rng.random() < 0.4, drop=() if "head_dim" in config else ("head_dim",))


def window(rng):
    """From two tokens to more than a chunk; now and then as long as the context. (Of one token, the cache of transformers keeps all:
    it takes the last `-window + 1` of them, and its cached decoding disagrees with its own pass without a cache.)"""
    return rng.choice([2, 3, 4, 5, 6, 7, 9, 11, 15, 50])


def layer_types(rng, config):
    """Any sequence, written out; else the family's own, which `drop` leaves to be derived."""
    if rng.random() < 0.5:
        return {"layer_types": [rng.choice([SLIDING, SLIDING, FULL]) for _ in range(config["num_hidden_layers"])], "published": False}
    return {"drop": ("layer_types",)}


def gemma3(rng):
    context, _, config = common(rng, "gemma3_text")
    local = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 100.0, 777.0])}
    full = {"rope_type": "default", "rope_theta": rng.choice([1000000.0, 5000.0])} | rng.choice([{}, {"rope_type": "linear", "factor": rng.choice([2.0, 8.0])}])
    config |= dict(
        num_hidden_layers=rng.randrange(2, 8), sliding_window=window(rng), query_pre_attn_scalar=rng.randrange(3, 40), tie_word_embeddings=True, attention_bias=rng.random() < 0.3,
        final_logit_softcapping=rng.choice([None, None, 3.0, 30.0]), rope_parameters={SLIDING: local, FULL: full},
    )
    config |= layer_types(rng, config)
    if "drop" in config:
        pattern = rng.randrange(2, 7)
        config |= dict(sliding_window_pattern=pattern, add={"sliding_window_pattern": pattern}, drop=("layer_types", "_sliding_window_pattern"))
    return context, config


def gemma4(rng):
    """Heads of another size in layers without a window. Layers that share keys and values need an embedding for each layer: transformers
    slices that embedding without asking whether there is one. Few features are often all near 0, and then normalized: of that embedding, of a
    value."""
    context, _, config = common(rng, "gemma4_text")
    config["head_dim"] = rng.choice([8, 10, 16, 18])
    heads, shared = config["num_attention_heads"], rng.choice([0, 0, 1, 2, 3])
    own_layers = rng.sample([SLIDING, FULL], 2) if shared else [SLIDING]
    types = [*own_layers, *(rng.choice([SLIDING, SLIDING, FULL]) for _ in range(max(shared, 2) - 1)), FULL]
    one = lambda: rng.choice([k for k in range(1, heads + 1) if heads % k == 0])
    local = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 100.0])}
    full = {"rope_type": "proportional", "rope_theta": rng.choice([1000000.0, 5000.0]), "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])}
    full |= {"factor": 4.0} if rng.random() < 0.3 else {}
    own = experts(rng, chosen="top_k_experts") if rng.random() < 0.4 else {}
    return context, config | own | dict(
        rms_norm_eps=WIDE_EPSILON, num_hidden_layers=len(types), layer_types=types, num_kv_shared_layers=shared, use_double_wide_mlp=rng.random() < 0.5, sliding_window=window(rng),
        global_head_dim=rng.choice([8, 12, 16]), attention_k_eq_v=rng.random() < 0.4, num_global_key_value_heads=one(), enable_moe_block=bool(own), attention_bias=rng.random() < 0.2,
        hidden_size_per_layer_input=rng.choice([24, 32]) if shared else rng.choice([0, 0, 24]), vocab_size_per_layer_input=config["vocab_size"], rope_parameters={SLIDING: local, FULL: full},
        final_logit_softcapping=rng.choice([None, 10.0, 30.0]), tie_word_embeddings=True, published=False,
    )


def gemma4_unified(rng):
    """A Gemma 4 without experts and per-layer embeddings, and so without shared keys and values."""
    context, config = gemma4(rng)
    absent = ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size")
    config = {key: value for key, value in config.items() if key not in absent}
    return context, config | dict(model_type="gemma4_unified_text")


def gemma2(rng):
    context, _, config = common(rng, "gemma2")
    config |= dict(
        sliding_window=window(rng), query_pre_attn_scalar=rng.randrange(3, 40), attn_logit_softcapping=rng.choice([None, 3.0, 50.0]), final_logit_softcapping=rng.choice([None, 3.0, 30.0]),
        attention_bias=rng.random() < 0.3,
    )
    return context, config | layer_types(rng, config)


def mistral(rng):
    context, _, config = common(rng, "mistral")
    return context, config | dict(sliding_window=rng.choice([None, window(rng), window(rng)]))


def qwen(rng, model_type, **more):
    context, _, config = common(rng, model_type, **more)
    config |= dict(use_sliding_window=True, sliding_window=window(rng), max_window_layers=rng.randrange(0, 3)) if rng.random() < 0.6 else {}
    return context, config | (layer_types(rng, config) if "sliding_window" in config else {})


def qwen2(rng):
    return qwen(rng, "qwen2", head_dim=False)


def qwen3(rng):
    context, config = qwen(rng, "qwen3")
    return context, config | dict(attention_bias=rng.random() < 0.3)


def smollm3(rng):
    context, _, config = common(rng, "smollm3", head_dim=False)
    config |= dict(attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3)
    config |= dict(use_sliding_window=True, sliding_window=window(rng)) if rng.random() < 0.4 else {}
    if rng.random() < 0.5:
        return context, config | dict(no_rope_layers=[rng.randrange(2) for _ in range(config["num_hidden_layers"])])
    return context, config | dict(no_rope_layer_interval=rng.randrange(2, 5), drop=("no_rope_layers", "layer_types"))


def olmo2(rng):
    context, _, config = common(rng, "olmo2", head_dim=False)
    return context, config | dict(attention_bias=rng.random() < 0.3)


def phi3(rng):
    """The original context is shorter than all prompts or as long as the longest: one set of factors holds in a case."""
    context, features, config = common(rng, "phi3", head_dim=False)
    share = rng.choice([share for share in (1.0, 0.5, 0.75) if int(features * share) % 2 == 0])
    embedding = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 777.0]), "partial_rotary_factor": share}
    if rng.random() < 0.6:
        short, far = (sorted(round(rng.uniform(1.0, most), 2) for _ in range(int(features * share) // 2)) for most in (3.0, 30.0))
        embedding |= {"rope_type": "longrope", "short_factor": short, "long_factor": far}
    return context, config | dict(original_max_position_embeddings=rng.choice([2, 64]), sliding_window=rng.choice([None, window(rng)]), rope_parameters=embedding)


def gpt2(rng):
    """The table of positions is as long as the context, or longer; keys as the first files had them, or as they are saved."""
    context, _, config = common(rng, "gpt2", head_dim=False)
    kept = ("model_type", "vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "tie_word_embeddings", "published")
    return context, {key: config[key] for key in kept} | dict(
        max_position_embeddings=rng.choice([context, 64]), n_inner=rng.choice([None, rng.randrange(33, 130)]), layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        activation_function=rng.choice(["gelu_new", "gelu_new", "gelu_pytorch_tanh"]), scale_attn_weights=rng.random() < 0.8,
        scale_attn_by_inverse_layer_idx=rng.random() < 0.3, reorder_and_upcast_attn=rng.random() < 0.2, rewrite=bare if rng.random() < 0.4 else None,
    )


def mixtral(rng):
    """Without the features of a head, which are the share then, transformers can make no embedding but the plain one."""
    context, _, config = common(rng, "mixtral", head_dim=rng.random() < 0.7)
    if "head_dim" not in config:
        config |= dict(rope_parameters={"rope_type": "default", "rope_theta": 777.0}, drop=("head_dim",))
    experts = rng.randrange(2, 8)
    return context, config | dict(
        intermediate_size=rng.randrange(17, 50), num_local_experts=experts, num_experts_per_tok=rng.choice([2, 2, 2, rng.randrange(1, experts + 1)]),
        sliding_window=rng.choice([None, None, window(rng)]), stacked=rng.random() < 0.3,
    )


def experts(rng, all="num_experts", chosen="num_experts_per_tok"):
    """Numbers of experts and of those chosen, under the names that a family has for them, and the features of an expert."""
    count = rng.randrange(2, 9)
    return {all: count, chosen: rng.randrange(1, count + 1), "moe_intermediate_size": rng.randrange(7, 40)}


def olmoe(rng):
    context, _, config = common(rng, "olmoe", head_dim=False)
    own = experts(rng)
    own["intermediate_size"] = own.pop("moe_intermediate_size")
    return context, config | own | dict(norm_topk_prob=rng.random() < 0.5, clip_qkv=rng.choice([None, 2.0]), attention_bias=rng.random() < 0.3, stacked=rng.random() < 0.3)


def qwen3_moe(rng):
    context, _, config = common(rng, "qwen3_moe")
    layers, slides = config["num_hidden_layers"], rng.random() < 0.4
    return context, config | experts(rng) | dict(
        norm_topk_prob=rng.random() < 0.6, attention_bias=rng.random() < 0.3, decoder_sparse_step=rng.choice([1, 1, 2 - layers % 2]), mlp_only_layers=[i for i in range(layers - 1) if rng.random() < 0.3],
        stacked=rng.random() < 0.3, **(dict(use_sliding_window=True, sliding_window=window(rng)) if slides else {}),
    )


def grouped(rng, layers=0):
    """Experts as DeepSeek-V3 has them: in groups, of which several may be chosen from. (Without a layer with experts, transformers has no
    logits of a router; this holds for the families below, too.)"""
    groups = rng.choice([1, 1, 2, 3, 4])
    members = rng.randrange(2, 4)
    used = rng.randrange(1, groups + 1)
    return dict(
        n_routed_experts=groups * members, n_group=groups, topk_group=used, num_experts_per_tok=rng.randrange(1, used * members + 1), moe_intermediate_size=rng.randrange(7, 40),
        n_shared_experts=rng.choice([1, 1, 2]), routed_scaling_factor=rng.choice([1.0, 1.5, 2.5]), norm_topk_prob=rng.random() < 0.7, stacked=rng.random() < 0.3,
        **(dict(first_k_dense_replace=rng.randrange(0, min(3, layers))) if layers else {}),
    )


def glm4_moe(rng):
    context, features, config = common(rng, "glm4_moe")
    config["rope_parameters"]["partial_rotary_factor"] = rotated(rng, config, features, (0.25, 0.5, 1.0))
    return context, config | grouped(rng, config["num_hidden_layers"]) | dict(use_qk_norm=rng.random() < 0.5, attention_bias=rng.random() < 0.5)


def latent(rng, model_type):
    """Latent attention. The embedding has as many features as are rotated."""
    context, _, config = common(rng, model_type, head_dim=False)
    config["num_key_value_heads"] = config["num_attention_heads"]
    features = lambda: rng.choice([4, 6, 8, 10, 14, 16])
    if config["rope_parameters"]["rope_type"] == "yarn" and rng.random() < 0.7:
        config["rope_parameters"] |= {"mscale": 1.0, "mscale_all_dim": rng.choice([0.7, 1.0])}
    return context, config | dict(
        q_lora_rank=rng.choice([None, rng.randrange(5, 30)]), kv_lora_rank=rng.randrange(5, 30), qk_nope_head_dim=features(), qk_rope_head_dim=features(), v_head_dim=features(),
        rope_interleave=rng.random() < 0.8, attention_bias=rng.random() < 0.3,
    )


def deepseek_v3(rng):
    context, config = latent(rng, "deepseek_v3")
    return context, config | grouped(rng, config["num_hidden_layers"])


def glm4_moe_lite(rng):
    context, config = latent(rng, "glm4_moe_lite")
    kinds = [rng.choice(["dense", "sparse", "sparse"]) for _ in range(config["num_hidden_layers"] - 1)]
    return context, config | grouped(rng) | dict(mlp_layer_types=[*kinds, "sparse"])


def mistral4(rng):
    """Group scores are softmaxes: as many experts as are chosen are in the groups."""
    context, config = latent(rng, "mistral4")
    original = rng.choice([8, 16])
    features = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    scaling = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 64 / original, "original_max_position_embeddings": original, "llama_4_scaling_beta": rng.choice([0.1, 0.3])}
    scaling |= {"mscale": 1.0, "mscale_all_dim": rng.choice([0.7, 1.0]), "partial_rotary_factor": config["qk_rope_head_dim"] / features}
    return context, config | grouped(rng, config["num_hidden_layers"]) | dict(rope_parameters=scaling, published=False)


def minimax_m2(rng):
    context, features, config = common(rng, "minimax_m2")
    config["rope_parameters"]["partial_rotary_factor"] = rotated(rng, config, features, (0.5, 1.0))
    own = experts(rng, all="num_local_experts")
    own["intermediate_size"] = own.pop("moe_intermediate_size")
    return context, config | own | dict(stacked=rng.random() < 0.3)


def ernie4_5(rng):
    context, _, config = common(rng, "ernie4_5")
    return context, config | dict(use_bias=rng.random() < 0.4)


def ernie4_5_moe(rng):
    context, _, config = common(rng, "ernie4_5_moe", head_dim=False)
    own = experts(rng, all="moe_num_experts", chosen="moe_k")
    return context, config | own | dict(
        num_hidden_layers=rng.randrange(2, 5), moe_num_shared_experts=rng.choice([0, 1, 2]), moe_layer_start_index=rng.randrange(0, 2), moe_layer_interval=rng.choice([1, 1, 2]),
        stacked=rng.random() < 0.3,
    )


def lfm2_moe(rng):
    context, _, config = common(rng, "lfm2_moe", head_dim=False)
    config["norm_eps"] = config.pop("rms_norm_eps")
    layers = config["num_hidden_layers"] = rng.randrange(2, 6)
    attention = rng.sample(range(layers), rng.randrange(1, layers))
    return context, config | experts(rng) | dict(
        layer_types=[FULL if i in attention else CONV for i in range(layers)], conv_bias=rng.random() < 0.4, conv_L_cache=rng.choice([2, 3, 3, 4]), num_dense_layers=rng.randrange(0, min(3, layers)),
        use_expert_bias=rng.random() < 0.7, norm_topk_prob=rng.random() < 0.7, routed_scaling_factor=rng.choice([1.0, 1.5]), first=(1, 2), published=False,
    )


def olmo3(rng):
    context, _, config = common(rng, "olmo3", head_dim=False)
    types = [rng.choice([SLIDING, SLIDING, FULL]) for _ in range(config["num_hidden_layers"])]
    local = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 777.0])}
    return context, config | dict(
        sliding_window=window(rng), layer_types=types, rope_parameters={SLIDING: local, FULL: config["rope_parameters"]}, attention_bias=rng.random() < 0.3, published=False, initializer_range=0.1,
    )


def ministral3(rng):
    context, _, config = common(rng, "ministral3")
    # A shorter one sharpens the scores so much that two runs in f32 differ by more than the bound.
    original = rng.choice([8, 16])
    scaling = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 64 / original, "original_max_position_embeddings": original, "llama_4_scaling_beta": rng.choice([0.1, 0.3])}
    return context, config | dict(rope_parameters=scaling, sliding_window=rng.choice([None, None, window(rng)]), published=False)


def gpt_oss(rng):
    context, _, config = common(rng, "gpt_oss")
    own = experts(rng, all="num_local_experts")
    own["intermediate_size"] = own.pop("moe_intermediate_size")
    types = [rng.choice([SLIDING, FULL]) for _ in range(config["num_hidden_layers"])]
    return context, config | own | dict(
        sliding_window=window(rng), layer_types=types, swiglu_limit=rng.choice([0.3, 1.0, 7.0]), swiglu_alpha=rng.choice([1.0, 1.702]), attention_bias=rng.random() < 0.7, published=False,
    )


def seed_oss(rng):
    context, _, config = common(rng, "seed_oss")
    return context, config | dict(attention_bias=rng.random() < 0.7, attention_out_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.3)


def starcoder2(rng):
    context, _, config = common(rng, "starcoder2", head_dim=False)
    config["norm_epsilon"] = config.pop("rms_norm_eps")
    return context, config | dict(sliding_window=rng.choice([None, window(rng)]), use_bias=rng.random() < 0.8)


def apertus(rng):
    """(Without a scaling beside it, transformers ignores the base of an embedding that is spelled as transformers 4 did.)"""
    context, _, config = common(rng, "apertus", head_dim=False)
    config["published"] &= config["rope_parameters"]["rope_type"] != "default"
    return context, config | dict(attention_bias=rng.random() < 0.5)


def exaone4(rng):
    context, _, config = common(rng, "exaone4", head_dim=False)
    slides = rng.random() < 0.6
    types = [rng.choice([SLIDING, SLIDING, FULL]) if slides else FULL for _ in range(config["num_hidden_layers"])]
    return context, config | dict(sliding_window=window(rng) if slides else None, layer_types=types, initializer_range=0.1)


def cohere2(rng):
    context, _, config = common(rng, "cohere2", head_dim=False)
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    types = [rng.choice([SLIDING, SLIDING, FULL]) for _ in range(config["num_hidden_layers"])]
    return context, config | dict(sliding_window=window(rng), layer_types=types, logit_scale=rng.choice([0.0625, 0.5]), attention_bias=rng.random() < 0.3, published=False)


def granite(rng):
    context, _, config = common(rng, "granite", head_dim=False)
    factor = lambda: round(rng.uniform(0.3, 2.0), 2)
    return context, config | dict(
        embedding_multiplier=3.0, attention_multiplier=factor(), residual_multiplier=factor(), logits_scaling=factor(), attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3,
    )


def lfm2(rng):
    """One layer at least has attention: without, transformers has no length of a sequence. A head's features, where given, need not be the share."""
    context, _, config = common(rng, "lfm2", head_dim=rng.random() < 0.3)
    config["norm_eps"] = config.pop("rms_norm_eps")
    layers = config["num_hidden_layers"] = rng.randrange(2, 6)
    attention = sorted(rng.sample(range(layers), rng.randrange(1, layers)))
    config |= dict(
        conv_bias=rng.random() < 0.4, conv_L_cache=rng.choice([2, 3, 3, 3, 4, 6]), block_auto_adjust_ff_dim=rng.random() < 0.8,
        block_ffn_dim_multiplier=rng.choice([1.0, 1.0, 1.3]), block_multiple_of=rng.choice([1, 5, 8, 32]), first=(1, 2),
    )
    if config["published"]:
        other = {"block_ff_dim": config["intermediate_size"], "tie_embedding": config["tie_word_embeddings"]}
        return context, config | dict(full_attn_idxs=attention, drop=("layer_types", "intermediate_size", "tie_word_embeddings"), add=other)
    return context, config | dict(layer_types=[FULL if i in attention else CONV for i in range(layers)])


def lfm3(rng):
    """One layer at least attends to all positions: without, transformers has no length of a sequence."""
    context, _, config = common(rng, "lfm3")
    config["head_dim"] = rng.choice([8, 10, 16, 18])  # Few features are often all near 0, and then normalized.
    config["norm_eps"] = config.pop("rms_norm_eps")
    types = [FULL, *(rng.choice([CONV, CONV, SLIDING, FULL]) for _ in range(rng.randrange(1, 4)))]
    rng.shuffle(types)
    local = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 777.0])}
    full = {"rope_type": "proportional", "rope_theta": rng.choice([1000000.0, 777.0]), "partial_rotary_factor": rng.choice([0.5, 1.0])}
    return context, config | dict(
        norm_eps=WIDE_EPSILON, num_hidden_layers=len(types), layer_types=types, sliding_window=window(rng), rope_parameters={SLIDING: local, FULL: full}, attention_bias=rng.random() < 0.3,
        conv_bias=rng.random() < 0.4, conv_L_cache=rng.choice([2, 3, 7, 7]), use_sandwich_norm=rng.random() < 0.7, use_attention_gate=rng.random() < 0.7, first=(1, 3), published=False,
    )


def alternating(rng, other):
    """Kinds of layers, of which one at least attends: without, transformers has no length of a sequence."""
    types = [rng.choice([FULL, other, other]) for _ in range(rng.randrange(2, 6))]
    types[rng.randrange(len(types))] = FULL
    return dict(num_hidden_layers=len(types), layer_types=types)


# A matrix that has few keys is read near 0, and a norm with a small epsilon makes the rounding large.
WIDE_EPSILON = 1e-2


def qwen3_5(rng):
    """Heads of a DeltaNet in any number for each key, with odd features, and a convolution of any length."""
    context, features, config = common(rng, "qwen3_5_text")
    keys = rng.choice([1, 2, 3])
    shares = [share for share in (0.25, 0.5, 1.0) if int(features * share) % 2 == 0 and int(features * share) > 2]
    config["rope_parameters"]["partial_rotary_factor"] = rng.choice(shares)
    return context, config | alternating(rng, "linear_attention") | dict(
        rms_norm_eps=WIDE_EPSILON, attention_bias=rng.random() < 0.3, linear_num_key_heads=keys, linear_num_value_heads=keys * rng.choice([1, 2, 3]),
        linear_key_head_dim=rng.choice([3, 4, 6, 8, 17]), linear_value_head_dim=rng.choice([2, 5, 16, 18, 33]), linear_conv_kernel_dim=rng.choice([2, 3, 4, 4, 7]), first=(1, 2, 3),
    )


def gated_experts(rng, model_type):
    context, config = qwen3_5(rng)
    experts = rng.randrange(2, 8)
    config.pop("intermediate_size")
    return context, config | dict(
        model_type=model_type, num_experts=experts, num_experts_per_tok=rng.randrange(1, experts + 1), moe_intermediate_size=rng.randrange(17, 40), shared_expert_intermediate_size=rng.randrange(9, 40),
    )


def qwen3_5_moe(rng):
    return gated_experts(rng, "qwen3_5_moe_text")


def qwen3_next(rng):
    context, config = gated_experts(rng, "qwen3_next")
    return context, config | dict(norm_topk_prob=rng.random() < 0.7)


def granitemoehybrid(rng):
    """Groups of keys in any number, with and without experts and a rotary embedding."""
    context, _, config = common(rng, "granitemoehybrid", head_dim=False)
    hidden, expand = config["hidden_size"], rng.choice([1, 2, 2])
    heads = rng.choice([heads for heads in range(1, 13) if expand * hidden % heads == 0])
    experts = rng.choice([0, 0, rng.randrange(2, 8)])
    factor = lambda: round(rng.uniform(0.3, 2.0), 2)
    return context, config | alternating(rng, "linear_attention") | dict(
        rms_norm_eps=WIDE_EPSILON, attention_bias=rng.random() < 0.3, position_embedding_type=rng.choice([None, "rope"]),
        num_local_experts=experts, num_experts_per_tok=min(2, max(1, experts)), intermediate_size=rng.randrange(17, 50), shared_intermediate_size=rng.randrange(17, 60),
        mamba_n_heads=heads, mamba_n_groups=rng.choice([groups for groups in range(1, heads + 1) if heads % groups == 0]), mamba_d_state=rng.choice([3, 5, 8, 17]), mamba_expand=expand,
        mamba_d_conv=rng.choice([2, 3, 4, 4, 6]), mamba_conv_bias=rng.random() < 0.7, mamba_proj_bias=rng.random() < 0.3, embedding_multiplier=3.0,
        attention_multiplier=factor(), residual_multiplier=factor(), logits_scaling=factor(), first=(1, 2, 3),
    )


def nemotron_h(rng):
    """One part in each layer, of any kind. (transformers keeps the least step of time in a prompt only; here no step is that short.)"""
    context, _, config = common(rng, "nemotron_h")
    config["layer_norm_epsilon"] = WIDE_EPSILON
    for key in ("rms_norm_eps", "num_hidden_layers", "rope_parameters", "tie_word_embeddings"):
        config.pop(key)
    kinds = ["linear_attention", "full_attention", "moe", *(rng.choice(["linear_attention", "full_attention", "mlp", "moe"]) for _ in range(rng.randrange(0, 4)))]
    rng.shuffle(kinds)
    own = grouped(rng)
    own.pop("n_shared_experts")
    heads = rng.randrange(1, 9)
    return context, config | own | dict(
        layers_block_type=kinds, mlp_bias=rng.random() < 0.3, use_bias=rng.random() < 0.3, use_conv_bias=rng.random() < 0.7, conv_kernel=rng.choice([2, 3, 4, 4, 6]),
        mamba_num_heads=heads, mamba_head_dim=rng.choice([3, 8, 14, 17]), n_groups=rng.choice([groups for groups in range(1, heads + 1) if heads % groups == 0]), ssm_state_size=rng.choice([3, 5, 8, 17]),
        moe_shared_expert_intermediate_size=rng.randrange(9, 60), moe_latent_size=rng.choice([None, rng.randrange(9, 40)]), first=(1, 2, 3), published=False,
    )


def embeddinggemma(rng):
    """The tower of a Gemma 3, without what belongs to its head; its vocabulary is that of the shipped tokenizer."""
    _, config = gemma3(rng)
    kept = (
        "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "num_hidden_layers", "rms_norm_eps", "query_pre_attn_scalar", "attention_bias",
        "rope_parameters",
    )
    layers = [rng.choice([SLIDING, SLIDING, FULL]) for _ in range(config["num_hidden_layers"])]
    return {key: config[key] for key in kept} | dict(layer_types=layers, sliding_window=window(rng))


LANGUAGE_MODELS = {
    f.__name__: f
    for f in (
        llama, gemma3, gemma4, gemma2, mistral, qwen2, qwen3, smollm3, olmo2, phi3, gpt2, mixtral, lfm2, olmoe, qwen3_moe, glm4_moe, deepseek_v3, glm4_moe_lite, minimax_m2, ernie4_5, ernie4_5_moe,
        mistral4, gemma4_unified, lfm2_moe, lfm3, olmo3, ministral3, gpt_oss, seed_oss, starcoder2, apertus, exaone4, cohere2, granite, qwen3_5, qwen3_5_moe, qwen3_next, granitemoehybrid, nemotron_h,
    )
}
FIXTURES = Path(__file__).parents[1] / "fixtures"


def of_fixture(path):
    """A family that came with a fixture and no function here: a Llama of any sizes, with the fixture's other keys."""
    def family(rng):
        case = json.loads(path.read_text())
        context, _, config = common(rng, case.pop("model_type"), head_dim=False)
        case.pop("seed")
        return context, config | {key: value for key, value in case.items() if key not in config}

    return family




def families_of_fixtures():
    """Those of which no function here makes a configuration."""
    for path in sorted(FIXTURES.glob("*/case.json")):
        case = json.loads(path.read_text())
        if "text_config" not in case and case["model_type"].removesuffix("_text") not in LANGUAGE_MODELS:
            yield path.parent.name, of_fixture(path)


LANGUAGE_MODELS |= dict(families_of_fixtures())
# Those of encoders.py, which takes a while to load.
ENCODERS = ["bert", "xlm_roberta", "modernbert", "nomic_bert", "qwen3_embedding"]
EMBEDDINGS = {f.__name__: f for f in (embeddinggemma,)} | dict.fromkeys(ENCODERS)
STORAGES = ["f32", "f32", "f16", "bf16"]


def write_language_model(out, seed, rng, family, narrow):
    context, config = LANGUAGE_MODELS[family](rng)
    chunk = rng.randrange(4, min(13, context // 2))
    lengths = [*config.pop("first", ()), chunk - 1, chunk, chunk + 1, 2 * chunk, context - 1]
    if narrow:
        chunk, context, lengths = 64, 256, [200]
        config |= dict(max_position_embeddings=context, storage=narrow)
    else:
        config["storage"] = rng.choice(STORAGES)
    prompts = write_case(out, seed, chunk, context, lengths, steps=1 if narrow else 8, own=bool(narrow), judged=not narrow, ties=bool(narrow), **config)
    gap = min(p["min_gap"] for p in prompts)
    kept = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers", "sliding_window", "num_local_experts", "storage")
    print(f"{out.name}: c {chunk} N {context} smallest gap {gap:.1e}", *(f"{k.removeprefix('num_')} {config[k]}" for k in kept if k in config), flush=True)


def write_embedding(out, seed, rng, family):
    # Not before it is needed: sentence-transformers takes a while to load.
    import embedding
    import encoders

    if family in ENCODERS:
        case = encoders.FAMILIES[family](rng)
        encoders.write(out, seed, case, lengths=sorted({3, 4, encoders.LONGEST, *(rng.randrange(5, encoders.LONGEST) for _ in range(4))}), documents=[rng.randrange(3, 24) for _ in range(49)])
        return
    embedding.write(out, seed, embedding.random_case(rng, EMBEDDINGS[family](rng), rng.choice(STORAGES)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family", choices=[*LANGUAGE_MODELS, *EMBEDDINGS, "all"], default="all", help="in turn, where it is all of them")
    parser.add_argument("--narrow", choices=["bf16", "f16"], help="checkpoints of this type, one prompt of 200 tokens, and the logits of HF's own run in it; of language models only")
    arguments = parser.parse_args()
    families = [*LANGUAGE_MODELS] if arguments.narrow else [*LANGUAGE_MODELS, *EMBEDDINGS]
    if arguments.family not in [*families, "all"]:
        parser.error(f"--narrow is for language models, and {arguments.family} is an embedding")
    rng, start, names = random.Random(arguments.seed), time.time(), []
    for case in range(arguments.cases):
        family = families[case % len(families)] if arguments.family == "all" else arguments.family
        name, seed = f"{family}-{case:03}", arguments.seed * 1000 + case
        shutil.rmtree(arguments.out / name, ignore_errors=True)
        if family in EMBEDDINGS:
            write_embedding(arguments.out / name, seed, rng, family)
        else:
            write_language_model(arguments.out / name, seed, rng, family, arguments.narrow)
        names.append(name)
    (arguments.out / "index.json").write_text(json.dumps({"seed": arguments.seed, "cases": names}) + "\n")
    print(f"{len(names)} cases in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
