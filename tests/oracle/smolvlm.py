"""Write `tests/fixtures/smolvlm/`: a tiny SmolVLM with random weights and its processor, and what transformers makes of conversations with
the files of `tests/fixtures/images/`: `python smolvlm.py`. It needs the packages of `images.txt` beside those of `requirements.txt`."""

import json
from pathlib import Path

import torch
from golden import NEAR_TIE, REFERENCE, lead, load, write_case
from PIL import Image, ImageOps
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

FIXTURES = Path(__file__).parents[1] / "fixtures"
OUT = FIXTURES / "smolvlm"
TILE, LONGEST, STEPS = 32, 64, 12
SPECIAL = ["<|im_start|>", "<|im_end|>", "<pad>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"]
SPECIAL += [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
TEMPLATE = """<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:
{%- if message['content'][0]['type'] != 'image' %}{{ ' ' }}{% endif %}
{%- for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}
{{- '<end_of_utterance>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
VISION = dict(hidden_size=20, intermediate_size=37, num_hidden_layers=2, num_attention_heads=2, image_size=TILE, patch_size=8)
TEXT = dict(
    model_type="llama", vocab_size=256 + len(SPECIAL), hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10, num_hidden_layers=2,
    intermediate_size=41, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
IMAGE = {"type": "image"}
# The images of each conversation, and its messages: one image, one behind the text, and three in two messages.
CASES = [
    (["alpha.png"], [("user", [IMAGE, "What is this?"])]),
    (["turned.png"], [("system", ["Be brief."]), ("user", ["Look:\n", IMAGE])]),
    (["rgb.png", "rgb.webp", "gray.png"], [("user", [IMAGE, "and", IMAGE, "?"]), ("assistant", ["Two."]), ("user", ["Now ", IMAGE, " three."])]),
    (["palette.png"], [("user", [IMAGE, "\n\nA question"])]),
]


def write_processor():
    """Bytes as tokens, and the special tokens of SmolVLM."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<end_of_utterance>", pad_token="<pad>")
    images = SmolVLMImageProcessor(size={"longest_edge": LONGEST}, max_image_size={"longest_edge": TILE})
    processor = SmolVLMProcessor(images, tokenizer, SmolVLMVideoProcessor(), image_seq_len=4, chat_template=TEMPLATE)
    processor.save_pretrained(OUT)
    return processor


def opened(name):
    return ImageOps.exif_transpose(Image.open(FIXTURES / "images" / name))


@torch.no_grad()
def main():
    processor = write_processor()
    special = {name: 256 + index for index, name in enumerate(SPECIAL)}
    assert processor.tokenizer.convert_tokens_to_ids("<image>") == special["<image>"]
    write_case(
        OUT, 415, 8, 40, [1, 5, 17], model_type="smolvlm", text_config=TEXT, vision_config=VISION, scale_factor=2, image_token_id=special["<image>"], tie_word_embeddings=False,
    )
    model, cases, tensors = load(OUT), [], {}
    for index, (files, messages) in enumerate(CASES):
        messages = [{"role": role, "content": [part if part == IMAGE else {"type": "text", "text": part} for part in parts]} for role, parts in messages]
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
        inputs = processor(text=text, images=[opened(name) for name in files], return_tensors="pt")
        features = model.model.get_image_features(inputs["pixel_values"], inputs["pixel_attention_mask"]).pooler_output
        fed, past, rows, tokens, more = inputs["input_ids"], None, [], [], dict(pixel_values=inputs["pixel_values"], pixel_attention_mask=inputs["pixel_attention_mask"])
        while len(tokens) < STEPS:
            output = model(input_ids=fed, past_key_values=past, use_cache=True, **more)
            past, more = output.past_key_values, {}
            rows.append(output.logits[0, -1])
            tokens.append(int(rows[-1].argmax()))
            fed = torch.tensor([tokens[-1:]])
        gap = lead(torch.stack(rows), 1)
        assert gap > NEAR_TIE, gap
        cases.append({"files": files, "messages": messages, "prompt_tokens": inputs["input_ids"][0].tolist(), "tokens": tokens, "min_gap": gap})
        tensors |= {f"cases.{index}.features": torch.cat(list(features)).contiguous(), f"cases.{index}.logits": torch.stack(rows).contiguous()}
        print(f"{files}: {inputs['input_ids'].shape[1]} tokens, {len(set(tokens))} distinct of {STEPS}, smallest gap {gap:.1e}, features up to {float(tensors[f'cases.{index}.features'].abs().max()):.1f}")
    save_file(tensors, OUT / "images.safetensors")
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (OUT / "images.json").write_text(f'{{\n "reference": "{REFERENCE}",\n "cases": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
