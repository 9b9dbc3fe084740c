"""Write `tests/fixtures/gemma3-images/` and `tests/fixtures/gemma3-images-odd/`: tiny Gemma 3 models with random weights and their processors,
and what transformers makes of conversations with the files of `tests/fixtures/images/`: `python gemma3_images.py`. It needs the packages of
`images.txt` beside those of `requirements.txt`."""

import shutil

import torch
from golden import write_checkpoint
from seeing import FIXTURES, IMAGE, byte_tokenizer, write_answers
from transformers import Gemma3ImageProcessor, Gemma3Processor
from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model, get_block_sequence_ids_for_mask

SPECIAL = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
BOI, EOI, SOFT = (256 + SPECIAL.index(f"<{name}>") for name in ("start_of_image", "end_of_image", "image_soft_token"))
TEMPLATE = """{{ bos_token }}{% for message in messages %}<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}{% for part in message['content'] %}
{%- if part['type'] == 'image' %}{{ '<start_of_image>' }}{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
TEXT = dict(
    vocab_size=256 + len(SPECIAL), hidden_size=42, num_attention_heads=6, num_key_value_heads=2, head_dim=8, num_hidden_layers=3, intermediate_size=53,
    max_position_embeddings=512, query_pre_attn_scalar=20, sliding_window_pattern=2,
)
# A window shorter than an image, and one longer; images of 16 and of 9 vectors.
CONFIGS = {
    "gemma3-images": dict(
        mm_tokens_per_image=16, text_config=TEXT | dict(sliding_window=6),
        vision_config=dict(hidden_size=24, intermediate_size=37, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=4, vision_use_head=False),
    ),
    "gemma3-images-odd": dict(
        mm_tokens_per_image=9, text_config=TEXT | dict(sliding_window=33, hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10),
        vision_config=dict(hidden_size=21, intermediate_size=33, num_hidden_layers=3, num_attention_heads=3, image_size=47, patch_size=5, layer_norm_eps=1e-5),
    ),
}
# The images of each conversation, and its messages: an image first, last, two in a row, three in two messages.
CASES = [
    (["alpha.png"], [("user", [IMAGE, "What is this?"])]),
    (["turned.png"], [("user", ["Look:\n", IMAGE])]),
    (["rgb.png", "rgb.webp"], [("user", [IMAGE, IMAGE])]),
    (["rgb.png", "rgb.webp", "gray.png"], [("user", [IMAGE, "and", IMAGE, "?"]), ("assistant", ["Two."]), ("user", ["Now ", IMAGE, " three."])]),
]


def write_processor(out, tokens, side):
    named = dict(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>")
    tokenizer = byte_tokenizer(SPECIAL, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", extra_special_tokens=named)
    half = [0.5, 0.5, 0.5]
    images = Gemma3ImageProcessor(size={"height": side, "width": side}, image_mean=half, image_std=half)
    processor = Gemma3Processor(images, tokenizer, chat_template=TEMPLATE, image_seq_length=tokens)
    processor.save_pretrained(out)
    return processor


def calm(tensors):
    """With a random projection of features, with which transformers begins as zeros, and scores of the tower that magnify no rounding."""
    scaled = {key: 0.2 * tensor for key, tensor in tensors.items() if key.startswith("vision_tower.") and key.endswith(("q_proj.weight", "k_proj.weight"))}
    [key] = [key for key in tensors if key.endswith("mm_input_projection_weight")]
    return tensors | scaled | {key: 0.3 * torch.randn_like(tensors[key])}


def masks(model, inputs):
    """For each kind of layer, the first key that each query sees, and the number of keys, which follow each other."""
    ids = inputs["input_ids"]
    blocks = get_block_sequence_ids_for_mask(inputs["token_type_ids"])
    embeds = model.get_input_embeddings()(ids)
    found = create_masks_for_vision_model(
        config=model.config.get_text_config(), inputs_embeds=embeds, attention_mask=None, past_key_values=None, position_ids=None, block_sequence_ids=blocks,
    )
    rows = {kind: [[key for key, added in enumerate(row) if added == 0] for row in mask[0, 0].tolist()] for kind, mask in found.items()}
    assert all(seen == list(range(seen[0], seen[-1] + 1)) for all in rows.values() for seen in all)
    return {kind: [[seen[0], len(seen)] for seen in all] for kind, all in rows.items()}


def main():
    for seed, (name, config) in enumerate(CONFIGS.items(), 431):
        out = FIXTURES / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        processor = write_processor(out, config["mm_tokens_per_image"], config["vision_config"]["image_size"])
        ids = dict(boi_token_index=BOI, eoi_token_index=EOI, image_token_index=SOFT)
        write_checkpoint(out, seed, model_type="gemma3", storage="f32", rewrite=calm, **ids, **config)
        write_answers(out, processor, CASES, lambda model, inputs: {"masks": masks(model, inputs)})


if __name__ == "__main__":
    main()
