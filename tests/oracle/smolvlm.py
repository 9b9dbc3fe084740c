"""Write `tests/fixtures/smolvlm/`: a tiny SmolVLM with random weights and its processor, and what transformers makes of conversations with
the files of `tests/fixtures/images/`: `python smolvlm.py`. It needs the packages of `images.txt` beside those of `requirements.txt`."""

from golden import write_case
from seeing import FIXTURES, IMAGE, byte_tokenizer, write_answers
from transformers import SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

OUT = FIXTURES / "smolvlm"
TILE, LONGEST = 32, 64
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
# The images of each conversation, and its messages: one image, one behind the text, and three in two messages.
CASES = [
    (["alpha.png"], [("user", [IMAGE, "What is this?"])]),
    (["turned.png"], [("system", ["Be brief."]), ("user", ["Look:\n", IMAGE])]),
    (["rgb.png", "rgb.webp", "gray.png"], [("user", [IMAGE, "and", IMAGE, "?"]), ("assistant", ["Two."]), ("user", ["Now ", IMAGE, " three."])]),
    (["palette.png"], [("user", [IMAGE, "\n\nA question"])]),
]


def write_processor():
    tokenizer = byte_tokenizer(SPECIAL, bos_token="<|im_start|>", eos_token="<end_of_utterance>", pad_token="<pad>")
    images = SmolVLMImageProcessor(size={"longest_edge": LONGEST}, max_image_size={"longest_edge": TILE})
    processor = SmolVLMProcessor(images, tokenizer, SmolVLMVideoProcessor(), image_seq_len=4, chat_template=TEMPLATE)
    processor.save_pretrained(OUT)
    return processor


def main():
    processor = write_processor()
    special = {name: 256 + index for index, name in enumerate(SPECIAL)}
    assert processor.tokenizer.convert_tokens_to_ids("<image>") == special["<image>"]
    write_case(
        OUT, 415, 8, 40, [1, 5, 17], model_type="smolvlm", text_config=TEXT, vision_config=VISION, scale_factor=2, image_token_id=special["<image>"], tie_word_embeddings=False,
    )
    write_answers(OUT, processor, CASES)


if __name__ == "__main__":
    main()
