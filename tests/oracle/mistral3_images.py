"""Write `tests/fixtures/mistral3-images/` and `tests/fixtures/ministral3-images/`: tiny models of Mistral AI that see, with random weights and
their processors, and what transformers makes of conversations with the files of `tests/fixtures/images/`: `python mistral3_images.py`. It
needs the packages of `images.txt` beside those of `requirements.txt`."""

import shutil

from golden import write_checkpoint
from seeing import FIXTURES, IMAGE, byte_tokenizer, write_answers
from transformers import PixtralImageProcessor, PixtralProcessor

SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
TEMPLATE = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST]{% endif %}{% if message['content'] is string %}
{{- message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '[IMG]' }}{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}{% endif %}{% if message['role'] == 'user' %}[/INST]{% else %}{{ eos_token }}{% endif %}{% endfor %}"""
TEXT = dict(vocab_size=256 + len(SPECIAL), num_hidden_layers=2, max_position_embeddings=1024, tie_word_embeddings=False)
ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, llama_4_scaling_beta=0.1, mscale=1.0, mscale_all_dim=1.0)
# Squares of 4 and of 9 patches, and both activations.
CONFIGS = {
    "mistral3-images": dict(
        spatial_merge_size=2, text_config=TEXT | dict(model_type="mistral", hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10, intermediate_size=41, sliding_window=None),
        vision_config=dict(model_type="pixtral", hidden_size=24, intermediate_size=37, num_hidden_layers=2, num_attention_heads=2, image_size=40, patch_size=4, hidden_act="silu"),
    ),
    "ministral3-images": dict(
        spatial_merge_size=3, multimodal_projector_bias=True,
        text_config=TEXT | dict(model_type="ministral3", hidden_size=28, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=33, rope_parameters=ROPE),
        vision_config=dict(model_type="pixtral", hidden_size=32, intermediate_size=31, num_hidden_layers=3, num_attention_heads=2, image_size=35, patch_size=3, hidden_act="gelu"),
    ),
}
# The images of each conversation, and its messages: an image first, last, two in a row, three in two messages.
CASES = [
    (["alpha.png"], [("user", [IMAGE, "What is this?"])]),
    (["tall.png"], [("user", ["Look:\n", IMAGE])]),
    (["rgb.png", "wide.png"], [("user", [IMAGE, IMAGE])]),
    (["rgb.png", "rgb.webp", "gray.png"], [("user", [IMAGE, "and", IMAGE, "?"]), ("assistant", ["Two."]), ("user", ["Now ", IMAGE, " three."])]),
]


def write_processor(out, config):
    """Bytes as tokens, and the special tokens of Mistral AI."""
    tokenizer = byte_tokenizer(SPECIAL, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    side = config["vision_config"]["patch_size"]
    images = PixtralImageProcessor(size={"longest_edge": config["vision_config"]["image_size"]}, patch_size={"height": side, "width": side})
    processor = PixtralProcessor(images, tokenizer, patch_size=side, spatial_merge_size=config["spatial_merge_size"], chat_template=TEMPLATE)
    processor.save_pretrained(out)
    return processor


def main():
    for seed, (name, config) in enumerate(CONFIGS.items(), 451):
        out = FIXTURES / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        processor = write_processor(out, config)
        ids = dict(image_token_index=256 + SPECIAL.index("[IMG]"), tie_word_embeddings=False)
        write_checkpoint(out, seed, model_type="mistral3", storage="f32", **ids, **config)
        write_answers(out, processor, CASES)


if __name__ == "__main__":
    main()
