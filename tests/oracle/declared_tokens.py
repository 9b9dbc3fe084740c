"""Writes `tests/fixtures/tokenizers/declared.json`: folders whose configuration declares tokens that `tokenizer.json` lacks,
and the token ids of transformers for each folder. Needs `transformers` and `tokenizers` of `requirements.txt`."""

import json
import random
import tempfile
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast

OUT = Path(__file__).parent.parent / "fixtures" / "tokenizers" / "declared.json"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEXTS = [
    "<|im_start|>user\nHi <|im_end|> there",
    "a  <|im_end|>  b<tool>c",
    "A<TOOL>b <Tool> wordsword sword word",
    "<s>x</s><extra><other> <|im_start|>",
]
CONTENTS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<tool>", "<extra>", "<other>", "word", "<Tool>"]


def tokenizer(words, added=(), lowercase=False, ends=False):
    """A tokenizer with a token for each byte, the given whole words, and the given added tokens."""
    letters = sorted(transformers.convert_slow_tokenizer.bytes_to_unicode().values())
    vocab = {token: id for id, token in enumerate([*letters, *words])}
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    around = None
    if ends:
        end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
        around = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [vocab["</s>"]], "tokens": ["</s>"]}},
        }
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": vocab.get(content, len(vocab) + at), "content": content, **entry} for at, content in enumerate(added)],
        "normalizer": {"type": "Lowercase"} if lowercase else None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": around,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def token(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **flags}


def typed(content, **flags):
    return {"__type": "AddedToken", **token(content, **flags)}


IM = ["<|im_start|>", "<|im_end|>"]
WRITTEN = {
    "nothing": (dict(words=IM), {}),
    "additional": (dict(words=IM), {CONFIG: {"additional_special_tokens": IM}}),
    "extra": (dict(words=IM), {CONFIG: {"extra_special_tokens": IM}}),
    "extra before additional": (dict(words=IM), {CONFIG: {"extra_special_tokens": IM[:1], "additional_special_tokens": IM[1:]}}),
    "empty extra": (dict(words=IM), {CONFIG: {"extra_special_tokens": [], "additional_special_tokens": IM}}),
    "extra by name": (dict(words=IM), {CONFIG: {"extra_special_tokens": {"turn_token": IM[0], "image": IM[1]}}}),
    "decoder": (dict(words=IM), {CONFIG: {"added_tokens_decoder": {"256": token(IM[0], special=True), "257": token(IM[1], special=True)}}}),
    "decoder appends by id": (dict(words=[]), {CONFIG: {"added_tokens_decoder": {"900": token("<b>", special=True), "300": token("<tool>", special=False)}}}),
    "flags": (dict(words=IM), {CONFIG: {"added_tokens_decoder": {"256": token(IM[0], rstrip=True, special=True), "257": token(IM[1], lstrip=True, rstrip=True, special=True)}}}),
    "normalized": (dict(words=[], lowercase=True), {CONFIG: {"added_tokens_decoder": {"256": token("<Tool>", normalized=True, special=False)}}}),
    "not normalized": (dict(words=[], lowercase=True), {CONFIG: {"added_tokens_decoder": {"256": token("<Tool>", special=False)}}}),
    "single word": (dict(words=[]), {CONFIG: {"added_tokens_decoder": {"256": token("word", single_word=True, special=False)}}}),
    "defaults of flags": (dict(words=[], lowercase=True), {CONFIG: {"added_tokens_decoder": {"256": {"content": "<Tool>"}}, "eos_token": "</s>"}}),
    "eos text": (dict(words=IM), {CONFIG: {"eos_token": IM[1]}}),
    "eos object": (dict(words=IM), {CONFIG: {"eos_token": typed(IM[1], lstrip=True)}}),
    "eos becomes special": (dict(words=IM), {CONFIG: {"eos_token": IM[1], "added_tokens_decoder": {"257": token(IM[1], special=False)}}}),
    "own name": (dict(words=IM), {CONFIG: {"turn_token": IM[0], "end_token": typed(IM[1], rstrip=True), "token_of": "x"}}),
    "appended": (dict(words=[]), {CONFIG: {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": None, "extra_special_tokens": IM}}),
    "added file": (dict(words=IM), {ADDED: {IM[0]: 256, IM[1]: 257}}),
    "added file and special": (dict(words=IM), {ADDED: {IM[1]: 257, IM[0]: 256, "<tool>": 258}, CONFIG: {"eos_token": IM[1]}}),
    "decoder hides added file": (dict(words=IM), {ADDED: {IM[0]: 256}, CONFIG: {"added_tokens_decoder": {"257": token(IM[1], special=True)}}}),
    "map": (dict(words=IM), {MAP: {"eos_token": token(IM[1], lstrip=True), "bos_token": "<s>", "additional_special_tokens": IM[:1]}}),
    "map over config": (dict(words=IM), {MAP: {"eos_token": IM[1]}, CONFIG: {"eos_token": "</s>"}}),
    "map extra": (dict(words=IM), {MAP: {"extra_special_tokens": [IM[1], token("<tool>")]}, CONFIG: {"extra_special_tokens": IM[:1]}}),
    "decoder hides map": (dict(words=IM), {MAP: {"eos_token": IM[1]}, CONFIG: {"added_tokens_decoder": {}}}),
    "known tokens stay": (dict(words=IM, added=IM), {CONFIG: {"eos_token": IM[1], "additional_special_tokens": IM}}),
    "decoder changes known tokens": (dict(words=IM, added=IM), {CONFIG: {"added_tokens_decoder": {"257": token(IM[1], lstrip=True, special=True)}}}),
    "add_bos is not read": (dict(words=["<s>", "</s>"]), {CONFIG: {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}}),
    "processor stays": (dict(words=["</s>"], ends=True), {CONFIG: {"eos_token": "</s>", "add_eos_token": False}}),
    "split special": (dict(words=IM), {CONFIG: {"eos_token": IM[1], "split_special_tokens": True}}),
}


def random_case(random):
    """Random tokens in random files."""
    some = lambda most: random.sample(CONTENTS, random.randint(0, most))
    flags = lambda: {name: random.random() < 0.3 for name in ["lstrip", "rstrip", "normalized", "single_word", "special"]}
    words = some(5)
    base = dict(words=words, added=[word for word in words if random.random() < 0.3], lowercase=random.random() < 0.3)
    config, files = {}, {}
    for key in ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "image_token"]:
        if random.random() < 0.25:
            content = random.choice(CONTENTS)
            config[key] = random.choice([content, typed(content, **flags())])
    if random.random() < 0.4:
        config[random.choice(["extra_special_tokens", "additional_special_tokens"])] = some(3)
    if random.random() < 0.4:
        entries = [(str(random.randint(0, 300)), token(content, **flags())) for content in some(4)]
        config["added_tokens_decoder"] = dict(entries)
    if random.random() < 0.3:
        files[ADDED] = {content: 254 + at for at, content in enumerate(some(4))}
    if random.random() < 0.3:
        files[MAP] = {key: random.choice([content, token(content)]) for key, content in zip(["eos_token", "bos_token", "mask_token"], some(3))}
    return base, {**files, CONFIG: config}


def case(name, base, files):
    base = tokenizer(**base)
    with tempfile.TemporaryDirectory() as folder:
        for file, content in {"tokenizer.json": base, **files}.items():
            Path(folder, file).write_text(json.dumps(content))
        loaded = PreTrainedTokenizerFast.from_pretrained(folder)
        plain = [loaded.encode(text, add_special_tokens=False) for text in TEXTS]
        whole = [loaded.encode(text) for text in TEXTS]
    special = sorted(id for id, token in loaded.added_tokens_decoder.items() if token.special)
    words = [word for word, id in base["model"]["vocab"].items() if id >= 256]
    changed = {key: base[key] for key in ["added_tokens", "normalizer", "post_processor"]}
    tokens = {"plain": plain, **({"whole": whole} if whole != plain else {})}
    return {"name": name, "words": words, **changed, "files": files, "count": len(loaded), "special": special, **tokens}


def main():
    cases = [case(name, base, files) for name, (base, files) in WRITTEN.items()]
    source = random.Random(62)
    cases += [case(f"random {at}", *random_case(source)) for at in range(60)]
    letters = tokenizer([])
    base = {key: letters[key] for key in letters if key not in ["added_tokens", "normalizer", "post_processor"]}
    golden = {"by": f"transformers {transformers.__version__}", "base": base, "texts": TEXTS}
    OUT.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    OUT.write_text(json.dumps(golden)[:-1] + f', "cases": [\n{lines}\n]}}\n')


main()
