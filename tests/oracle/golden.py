"""What the scripts share: random checkpoints, the reference run, and the golden files of README.md."""

import json
import math
import os
import random
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

transformers.utils.logging.disable_progress_bar()
# The models are too small to share: a second thread only waits.
torch.set_num_threads(1)

REFERENCE = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, eager attention, greedy, end of sequence ignored"
# A choice closer than this may be decided by the order of a sum; random prompts that meet one are drawn again.
NEAR_TIE = 2e-4
STORAGE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# What transformers 4 wrote where transformers 5 has one object for each type of layer.
PUBLISHED_BASE = {"sliding_attention": "rope_local_base_freq", "full_attention": "rope_theta"}


def publish(keys):
    """Rewrites the keys of config.json as transformers 4 spelled them."""
    text = keys.get("text_config", keys)
    rope = text.pop("rope_parameters", {})
    bases = PUBLISHED_BASE if "full_attention" in rope else {None: "rope_theta"} if rope else {}
    for layer_type, base in bases.items():
        scaling = dict(rope[layer_type] if layer_type else rope)
        text[base] = scaling.pop("rope_theta")
        if "partial_rotary_factor" in scaling:
            text["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
        if base == "rope_theta":
            text["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    keys["torch_dtype"] = keys.pop("dtype")
    keys["transformers_version"] = "4.45.0"


# What the layers of a GPT-2 add begins small, and positions are no more than what is added once: its head being its embedding, it
# would say the same few tokens for ever. An LFM2 multiplies three things that come of the same matrix, and every rounding with them.
MORE = {"c_proj.weight": 4.0, "wpe.weight": 8.0, "conv.in_proj.weight": 3.0**-0.5}


@torch.no_grad()
def spread(model):
    """Weights so far apart that tokens differ."""
    for name, p in model.named_parameters():
        # Norms of queries and of keys make the scores together; at 3 both, attention would magnify every rounding.
        factor = 3.0**0.5 if any(norm in name for norm in ("q_norm", "k_norm", "q_layernorm", "k_layernorm")) else 3.0
        if model.config.model_type.startswith("gemma4"):
            # It does not divide scores by the root of a head's features, and each layer adds the norms of three parts.
            factor *= 0.5 if factor < 3.0 else 0.4 if "post_" in name else 1.5 if name.endswith("embed_tokens.weight") else 1.0
        factor *= next((more for end, more in MORE.items() if name.endswith(end)), 1.0)
        if model.config.model_type == "lfm3" and "post_" in name:
            factor = 0.5  # Else each layer adds as much as all before it, and magnifies every rounding.
        if model.config.model_type == "nemotron_h" and name.endswith("dt_bias"):
            factor = -0.2  # As published, a state remembers many tokens, and one token hardly changes it.
        if p.any() or not name.endswith("norm.weight"):
            p.mul_(factor)
        else:
            p.add_(factor - 1.0)  # A Gemma's norm multiplies by 1 + w, and w begins at 0.
        if any(part in name for part in ("norm", "ln_", "bias", "router.scale", "per_expert_scale")):
            p.add_(0.1 * torch.randn_like(p))
    for name, buffer in model.named_buffers():
        if name.endswith("bias"):
            buffer.add_(0.1 * torch.randn_like(buffer))  # What a router adds to its scores begins at 0.
        if name.endswith("layer_scalar"):
            buffer.add_(0.3 * torch.randn_like(buffer))
    return model


def bare(tensors):
    """The tensors of the first GPT-2 files: no prefix, and in each layer the triangle that masked its scores."""
    tensors = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    positions = tensors["wpe.weight"]
    triangle = torch.ones(1, 1, len(positions), len(positions), dtype=positions.dtype).tril()
    layers = sorted({key.split(".")[1] for key in tensors if key.startswith("h.")})
    for layer in layers:
        tensors |= {f"h.{layer}.attn.bias": triangle.clone(), f"h.{layer}.attn.masked_bias": torch.tensor(-1e4, dtype=positions.dtype)}
    return tensors


def mxfp4(tensors):
    """The experts of a gpt-oss as published: floats of four bits, and a power of two for each 32 of them along the inputs."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for key in [key for key in tensors if key.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        groups = tensors.pop(key).float().transpose(1, 2).unflatten(-1, (-1, 32))
        exponents = groups.abs().amax(-1).log2().floor().clamp(min=-127) - 2
        codes = (groups[..., None] / exponents.exp2()[..., None, None] - numbers).abs().argmin(-1).to(torch.uint8)
        tensors[f"{key}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        tensors[f"{key}_scales"] = (exponents + 127).to(torch.uint8)
    return tensors


REWRITES = {"mxfp4": mxfp4}


def write_config(path, published=False, drop=(), add=None):
    """Rewrites a config.json: `published` spells it as transformers 4 did, `drop` removes keys that have a derived default,
    `add` adds some that the published files have."""
    keys = json.loads(path.read_text())
    text = keys.get("text_config", keys)
    for key in drop:
        text.pop(key, None)
    text.update(add or {})
    if published:
        publish(keys)
    path.write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n")


def auto(config):
    """The class of a network that sees, or of one that reads only. (transformers lists Mistral 4 with those that see.)"""
    return AutoModelForImageTextToText if hasattr(config, "vision_config") or config.model_type == "mistral4" else AutoModelForCausalLM


def write_checkpoint(out, seed, model_type="llama", storage="f32", published=False, shard="1GB", drop=(), add=None, stacked=False, rewrite=None, unused=None, **config):
    """A fresh model whose weights are spread so that its tokens differ, saved as an HF directory.

    `published`, `drop` and `add` are those of `write_config`; `stacked` saves experts as transformers holds them, all of a
    layer in one tensor; `rewrite` makes other tensors of those saved: a function, or the name of one; `unused` has the shapes of tensors
    that nothing reads.
    """
    torch.manual_seed(seed)
    text = config.get("text_config", config)
    text.update(bos_token_id=1, eos_token_id=2)
    text.setdefault("pad_token_id", None)
    config = CONFIG_MAPPING[model_type](**config)
    model = spread(auto(config).from_config(config))
    model.to(STORAGE[storage]).save_pretrained(out, max_shard_size=shard, save_original_format=not stacked)
    (out / "generation_config.json").unlink(missing_ok=True)
    if rewrite or unused:
        path = out / "model.safetensors"
        more = {key: torch.ones(shape, dtype=STORAGE[storage]) for key, shape in (unused or {}).items()}
        change = REWRITES.get(rewrite, rewrite) or dict
        save_tensors(change(load_file(path)) | more, path, metadata={"format": "pt"})
    write_config(out / "config.json", published, drop, add)


def dequantized(directory, to):
    """A copy of a checkpoint of MXFP4 whose experts transformers' own function made floats of. (Its quantizer wants more packages.)"""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    keys = json.loads((directory / "config.json").read_text())
    if keys.pop("quantization_config")["quant_method"] != "mxfp4":
        import folders

        return folders.dequantized(directory, to)
    (to / "config.json").write_text(json.dumps(keys))
    tensors = load_file(directory / "model.safetensors")
    for key in [key.removesuffix("_blocks") for key in tensors if key.endswith("_blocks")]:
        tensors[key] = convert_moe_packed_tensors(tensors.pop(f"{key}_blocks"), tensors.pop(f"{key}_scales"))
    save_tensors(tensors, to / "model.safetensors", metadata={"format": "pt"})


def load(directory, dtype=torch.float32):
    if "quantization_config" in json.loads((Path(directory) / "config.json").read_text()):
        with tempfile.TemporaryDirectory() as folder:
            dequantized(Path(directory), Path(folder))
            return load(folder, dtype)
    model = auto(AutoConfig.from_pretrained(directory)).from_pretrained(directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager")
    # A Granite 4 hybrid may have no experts.
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = getattr(model.config, "num_local_experts", 1) != 0
    if getattr(model.config, "enable_moe_block", False):
        model.config.output_router_logits, model.config.num_experts_per_tok = True, model.config.top_k_experts
    return model.eval()


@torch.no_grad()
def greedy(model, prompt, steps):
    """The logits at all positions fed, the tokens chosen, and the narrowest choice: one pass over the prompt, then cached decoding."""
    fed, past, rows, tokens, leads = prompt, None, [], [], []
    while len(tokens) < steps:
        output = model(input_ids=torch.tensor([fed]), past_key_values=past, use_cache=True)
        rows.append(output.logits[0].float())
        tokens.append(int(output.logits[0, -1].argmax()))
        # Those of a Gemma 4 are the softmax already.
        routers = [r.float() if model.config.model_type.startswith("gemma4") else r.float().softmax(-1) for r in output.get("router_logits") or ()]
        leads += [lead(rows[-1][-1:], 1), *(lead(r, model.config.get_text_config().num_experts_per_tok) for r in routers)]
        fed, past = tokens[-1:], output.past_key_values
    return torch.cat(rows).numpy(), tokens, min(leads)


def lead(rows, count):
    """By how much the last of `count` that are chosen in each row leads the first that is not: the smallest."""
    top = rows.topk(min(count + 1, rows.shape[1])).values
    return float((top[:, count - 1] - top[:, count]).min()) if top.shape[1] > count else math.inf


def digest(logits):
    """The eight largest logits of every row with their ids, and the largest magnitude."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :8]
    return {"top_ids": ids.astype(np.int32), "top_logits": np.take_along_axis(logits, ids, 1), "max_abs": np.abs(logits).max(1)}


def write_golden(json_path, tensors, prompts, **head):
    """`golden.json` and, beside it, `golden.safetensors`; `tensors` holds one dict for each prompt."""
    head["min_gap"] = min(p["min_gap"] for p in prompts)
    # One prompt a line: a diff then shows which prompt changed.
    lines = ",\n    ".join(json.dumps(p, ensure_ascii=False) for p in prompts)
    text = json.dumps({"reference": REFERENCE, **head}, indent=2)[:-2] + f',\n  "prompts": [\n    {lines}\n  ]\n}}\n'
    json_path.write_text(text, encoding="utf-8")
    named = {f"prompts.{i}.{key}": np.ascontiguousarray(value) for i, entry in enumerate(tensors) for key, value in entry.items()}
    save_file(named, json_path.with_suffix(".safetensors"))


@torch.no_grad()
def own_rows(model, prompts):
    """What a model in a narrow type gives at all positions fed, in one pass: the logits; of a Llama, whose first layer begins with a
    norm and a product, also its values. Of prompts that are kept in full."""
    rows = {}
    for i, prompt in enumerate(prompts):
        if not prompt["full"]:
            continue
        fed = prompt["prompt_tokens"] + prompt["tokens"][:-1]
        output = model(input_ids=torch.tensor([fed]), use_cache=True)
        rows[f"prompts.{i}.logits"] = output.logits[0].to(model.dtype).contiguous()
        if model.config.model_type == "llama":
            rows[f"prompts.{i}.values"] = output.past_key_values.layers[0].values[0].contiguous()
    return rows


def write_own(directory):
    """`own.safetensors`: what transformers' own run in the type of the checkpoint gave."""
    golden = json.loads((directory / "golden.json").read_text())
    save_tensors(own_rows(load(directory, STORAGE[golden["storage"]]), golden["prompts"]), directory / "own.safetensors")


@torch.no_grad()
def rounding(directory, prompts, tensors):
    """How far rounding to f32 can move logits, in units of the largest logit of a position. It is the largest of three distances from
    the logits in f64: those of cached decoding in f32, of one pass in f32, and of f64 with the next larger rotary frequencies. The
    third is there because norms and rotary embeddings remain in f32 in the run in f64."""
    exact, once, turned, most = load(directory, torch.float64), load(directory), load(directory, torch.float64), 0.0
    for module in [*exact.modules(), *turned.modules()]:
        module.reorder_and_upcast_attn = False  # GPT-2 refuses what is not f32 there.
    for name, frequencies in turned.named_buffers():
        if name.endswith("inv_freq"):
            narrow = frequencies.float()
            frequencies.copy_(torch.nextafter(narrow, torch.full_like(narrow, torch.inf)))
    for prompt, found in zip(prompts, tensors):
        fed = torch.tensor([prompt["prompt_tokens"] + prompt["tokens"][:-1]])
        logits, *others = (model(input_ids=fed).logits[0].double().numpy() for model in (exact, once, turned))
        largest = np.abs(logits).max(1)
        most = max(most, *(float((np.abs(logits - run).max(1) / largest).max()) for run in (found["logits"], *others)))
    return most


def write_case(out, seed, chunk, context, lengths, steps=8, own=False, judged=False, ties=False, **checkpoint):
    """A random checkpoint with its golden files: one prompt for each length. `judged` adds how exact they are. With `ties`, prompts may meet near ties: a narrow
    type decides many more choices by a rounding, and 200 positions with experts always meet one."""
    out.mkdir(parents=True, exist_ok=True)
    write_checkpoint(out, seed, **checkpoint)
    model, rng = load(out), random.Random(seed)
    vocabulary = model.config.get_text_config().vocab_size
    prompts, tensors = [], []
    for length in lengths:
        distance = -math.inf
        while distance < (0 if ties else NEAR_TIE):
            prompt = [rng.randrange(vocabulary) for _ in range(length)]
            logits, tokens, distance = greedy(model, prompt, min(steps, context - length + 1))
        prompts.append({"prompt_tokens": prompt, "tokens": tokens, "min_gap": distance, "full": True})
        tensors.append({"logits": logits})
    exact = {"rounding": rounding(out, prompts, tensors)} if judged else {}
    write_golden(
        out / "golden.json", tensors, prompts, **exact, name=out.name, seed=seed, storage=checkpoint.get("storage", "f32"),
        vocab_size=vocabulary, chunk=chunk, context=context,
    )
    if own:
        write_own(out)
    return prompts
