"""Write `tests/fixtures/internvl/` and `tests/fixtures/internvl-norms/`: tiny InternVL models with random weights and their processors, and
what transformers makes of conversations with the files of `tests/fixtures/images/`: `python internvl.py`. It needs the packages of
`images.txt` beside those of `requirements.txt`."""

import shutil

import torch
from golden import write_case
from seeing import FIXTURES, IMAGE, byte_tokenizer, write_answers
from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"]
TEMPLATE = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['content'] is string %}{{ message['content'] }}
{%- else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<IMG_CONTEXT>\\n' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}
{{- '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
VISION = dict(num_hidden_layers=2, num_attention_heads=2, patch_size=[4, 4])
TEXT = dict(vocab_size=256 + len(SPECIAL), num_hidden_layers=2, max_position_embeddings=1024, tie_word_embeddings=False)
# The kinds of text networks and of norms, tiles of 4 and of 9 vectors, and at most 4 and 6 tiles.
CONFIGS = {
    "internvl": dict(
        text_config=TEXT | dict(model_type="qwen2", hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=41),
        vision_config=VISION | dict(hidden_size=20, intermediate_size=37, image_size=[16, 16], attention_bias=True),
    ),
    "internvl-norms": dict(
        text_config=TEXT | dict(model_type="qwen3", hidden_size=28, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=33, attention_bias=True),
        vision_config=VISION | dict(hidden_size=22, intermediate_size=31, image_size=[24, 24], norm_type="rms_norm", use_qk_norm=True, layer_norm_eps=1e-5),
    ),
}
MOST = {"internvl": 4, "internvl-norms": 6}
# The images of each conversation, and its messages: an image first, last, two in a row, three in two messages.
CASES = [
    (["alpha.png"], [("user", [IMAGE, "What is this?"])]),
    (["tall.png"], [("system", ["Be brief."]), ("user", ["Look:\n", IMAGE])]),
    (["rgb.png", "wide.png"], [("user", [IMAGE, IMAGE])]),
    (["rgb.png", "rgb.webp", "gray.png"], [("user", [IMAGE, "and", IMAGE, "?"]), ("assistant", ["Two."]), ("user", ["Now ", IMAGE, " three."])]),
]


def write_processor(out, side, vectors, most):
    """Bytes as tokens, and the special tokens of InternVL."""
    named = dict(start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>", video_token="<video>")
    tokenizer = byte_tokenizer(SPECIAL, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=named)
    images = GotOcr2ImageProcessor(
        size={"height": side, "width": side}, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], max_patches=most, min_patches=1, crop_to_patches=False,
    )
    processor = InternVLProcessor(images, tokenizer, InternVLVideoProcessor(), image_seq_length=vectors, chat_template=TEMPLATE)
    processor.save_pretrained(out)
    return processor


def spread_tower(tensors):
    """What begins as zeros in transformers is random, and a layer adds about as much as it reads."""
    ends = ("cls_token", "position_embeddings")
    random = {key: 0.3 * torch.randn_like(tensor) for key, tensor in tensors.items() if key.endswith(ends)}
    scales = {key: 0.5 + 0.3 * torch.rand_like(tensor) for key, tensor in tensors.items() if "lambda_" in key}
    return tensors | random | scales


def main():
    for seed, (name, config) in enumerate(CONFIGS.items(), 441):
        out = FIXTURES / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        side = config["vision_config"]["image_size"][0]
        vectors = (side // 8) ** 2
        processor = write_processor(out, side, vectors, MOST[name])
        ids = dict(image_token_id=256 + SPECIAL.index("<IMG_CONTEXT>"), image_seq_length=vectors, tie_word_embeddings=False)
        write_case(out, seed, 8, 40, [1, 5, 17], model_type="internvl", rewrite=spread_tower, **ids, **config)
        write_answers(out, processor, CASES)


if __name__ == "__main__":
    main()
