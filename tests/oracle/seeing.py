"""What the scripts of networks that see share: a tokenizer of bytes, and the answers of transformers to conversations with images."""

import json
from pathlib import Path

import torch
from golden import NEAR_TIE, REFERENCE, lead, load
from PIL import Image, ImageOps
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FIXTURES = Path(__file__).parents[1] / "fixtures"
STEPS = 12
IMAGE = {"type": "image"}


def byte_tokenizer(special, **named):
    """Bytes as tokens, and special tokens behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def opened(name):
    return ImageOps.exif_transpose(Image.open(FIXTURES / "images" / name))


def conversation(messages):
    part = lambda part: part if part == IMAGE else {"type": "text", "text": part}
    return [{"role": role, "content": [part(one) for one in parts]} for role, parts in messages]


@torch.no_grad()
def write_answers(out, processor, cases, more=None):
    """`images.json` and `images.safetensors`: for the images and messages of each case the tokens of the prompt, the features of the
    images, and the tokens and logits of the answer. `more` makes further entries of a model and its inputs."""
    model, written, tensors = load(out), [], {}
    for index, (files, messages) in enumerate(cases):
        messages = conversation(messages)
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
        inputs = processor(text=text, images=[opened(name) for name in files], return_tensors="pt", add_special_tokens=False)
        fed, past, rows, tokens = inputs["input_ids"], None, [], []
        images = {key: value for key, value in inputs.items() if key not in ("input_ids", "attention_mask")}
        pixels = {key: value for key, value in images.items() if key != "token_type_ids"}
        features = torch.cat(list(model.model.get_image_features(**pixels).pooler_output))
        while len(tokens) < STEPS:
            output = model(input_ids=fed, past_key_values=past, use_cache=True, **images)
            past, images = output.past_key_values, {}
            rows.append(output.logits[0, -1])
            tokens.append(int(rows[-1].argmax()))
            fed = torch.tensor([tokens[-1:]])
        gap = lead(torch.stack(rows), 1)
        assert gap > NEAR_TIE, (out.name, index, gap)
        case = {"files": files, "messages": messages, "prompt_tokens": inputs["input_ids"][0].tolist(), "tokens": tokens, "min_gap": gap}
        written.append(case | (more(model, inputs) if more else {}))
        tensors |= {f"cases.{index}.features": features.contiguous(), f"cases.{index}.logits": torch.stack(rows).contiguous()}
        print(f"{out.name} {files}: {len(case['prompt_tokens'])} tokens, {len(set(tokens))} distinct of {STEPS}, smallest gap {gap:.1e}, features up to {float(features.abs().max()):.1f}")
    save_file(tensors, out / "images.safetensors")
    lines = ",\n".join("  " + json.dumps(case) for case in written)
    (out / "images.json").write_text(f'{{\n "reference": "{REFERENCE}",\n "cases": [\n{lines}\n ]\n}}\n')
