"""Encoders: random networks of each family in folders that sentence-transformers reads, and what it makes of texts and of pairs."""

import json
import random
import shutil
import time

import numpy as np
import sentence_transformers
import torch
from safetensors.numpy import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from stories import story
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from embedding import text_of
from golden import REFERENCE, spread

# Tokens of the longest text; what is longer is cut.
LONGEST = 40
SLIDING, FULL = "sliding_attention", "full_attention"
SMALL = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=37, max_position_embeddings=LONGEST + 5)
PROMPTS = {"query": "query: ", "passage": "passage: "}
# The special tokens: those that begin and end a text, what stands between two, and the name of each.
BERT = dict(special=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], begin="[CLS]", end="[SEP]", between=["[SEP]"], types=2)
ROBERTA = dict(special=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], begin="<s>", end="</s>", between=["</s>", "</s>"], types=1)
QWEN = dict(special=["<|endoftext|>", "<unk>", "<pad>", "<|im_start|>", "<|im_end|>"], begin=None, end="<|endoftext|>", between=["<|endoftext|>"], types=1)

CASES = {
    # As all-MiniLM is published.
    "bert-mean": dict(model_type="bert", tokens=BERT, pooling="mean", normalize=True, published=True, prompts={}),
    # Several vectors of a text, joined, and a layer behind them, as in LaBSE.
    "bert-joined": dict(
        model_type="bert", tokens=BERT, pooling=["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"], dense=[(17, True, torch.nn.Tanh())], normalize=True,
    ),
    "xlm_roberta": dict(model_type="xlm-roberta", tokens=ROBERTA, pooling="cls", normalize=True, type_vocab_size=1, pad_token_id=1),
    "modernbert": dict(
        model_type="modernbert", tokens=BERT, pooling="mean", normalize=False, num_hidden_layers=4, local_attention=6, pad_token_id=0,
        rope_parameters={FULL: {"rope_type": "default", "rope_theta": 5000.0}, SLIDING: {"rope_type": "default", "rope_theta": 100.0}},
    ),
    "nomic_bert": dict(model_type="nomic_bert", tokens=BERT, pooling="mean", normalize=True),
    "qwen3-embedding": dict(
        model_type="qwen3", tokens=QWEN, pooling="lasttoken", normalize=True, num_key_value_heads=1, head_dim=10, pad_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "bert-score": dict(model_type="bert", tokens=BERT, pairs=True),
    "xlm_roberta-score": dict(model_type="xlm-roberta", tokens=ROBERTA, pairs=True, type_vocab_size=1, pad_token_id=1),
    "modernbert-score": dict(
        model_type="modernbert", tokens=BERT, pairs=True, num_hidden_layers=3, local_attention=6, pad_token_id=0, classifier_pooling="mean",
        rope_parameters={FULL: {"rope_type": "default", "rope_theta": 5000.0}, SLIDING: {"rope_type": "default", "rope_theta": 100.0}},
    ),
}


def write_tokenizer(out, special, begin, end, between, types):
    """Letters, and the words of some stories, as WordPiece."""
    rng = random.Random(7)
    words = {}
    for _ in range(40):
        for word in "".join(c if c.isalpha() else " " for c in story(rng)[0].lower()).split():
            words[word] = words.get(word, 0) + 1
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list(".,!?':\"-")
    frequent = sorted(words, key=lambda word: (-words[word], word))[:90]
    pieces = special + letters + [f"##{letter}" for letter in letters] + [word for word in frequent if word not in letters]
    unknown = next(name for name in special if "unk" in name.lower())
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token=unknown))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    one = [begin, "$A", end] if begin else ["$A", end]
    two = [begin, "$A", *between, f"$B:{types - 1}", f"{end}:{types - 1}"] if begin else ["$A", *between, "$B", end]
    names = {name: pieces.index(name) for name in {begin, end, *between} if name}
    tokenizer.post_processor = TemplateProcessing(single=one, pair=two, special_tokens=list(names.items()))
    padding = next(name for name in special if "pad" in name.lower())
    keys = dict(unk_token=unknown, pad_token=padding, sep_token=end, eos_token=end, **(dict(cls_token=begin, bos_token=begin) if begin else {}))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LONGEST, model_input_names=["input_ids", *(["token_type_ids"] if types > 1 else []), "attention_mask"], **keys).save_pretrained(out)
    return len(pieces)


def rewrite(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text())), indent=2) + "\n")


def publish(out):
    """Rewrites the files around the network as sentence-transformers 2 wrote them."""
    rewrite(out / "modules.json", lambda modules: [m | {"type": f"sentence_transformers.models.{m['type'].rsplit('.', 1)[1]}"} for m in modules])
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]
    rewrite(out / "1_Pooling" / "config.json", lambda pooling: {
        "word_embedding_dimension": pooling["embedding_dimension"], **{f"pooling_mode_{mode}": mode == f"{pooling['pooling_mode']}_tokens" for mode in modes},
    })
    rewrite(out / "sentence_bert_config.json", lambda _: {"max_seq_length": LONGEST, "do_lower_case": False})
    rewrite(out / "config_sentence_transformers.json", lambda keys: {"__version__": keys["__version__"]})


def write_folder(out, seed, model_type, tokens, pooling=None, dense=(), normalize=False, published=False, prompts=PROMPTS, pairs=False, **config):
    torch.manual_seed(seed)
    vocabulary = write_tokenizer(out, **tokens)
    config = CONFIG_MAPPING[model_type](**(SMALL | dict(vocab_size=vocabulary) | config), **(dict(num_labels=1) if pairs else {}))
    network = spread((AutoModelForSequenceClassification if pairs else AutoModel).from_config(config))
    network.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    if pairs:
        return
    width = config.hidden_size * (1 if isinstance(pooling, str) else len(pooling))
    layers = []
    for outputs, bias, function in dense:
        layers.append(Dense(width, outputs, bias=bias, activation_function=function))
        width = outputs
    modules = [Transformer(str(out)), Pooling(config.hidden_size, pooling), *layers, *([Normalize()] if normalize else [])]
    model = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name="cosine", device="cpu")
    shutil.rmtree(out)
    model.save_pretrained(str(out), create_model_card=False)
    if published:
        publish(out)


def sizes(rng, heads, features):
    """Those that all families have, and what follows the network."""
    common = dict(
        hidden_size=heads * features, num_attention_heads=heads, num_hidden_layers=rng.randrange(1, 5), intermediate_size=rng.randrange(17, 70), max_position_embeddings=LONGEST + rng.randrange(2, 30),
        initializer_range=rng.choice([0.02, 0.05]),
    )
    modes = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
    pooling = rng.choice(modes) if rng.random() < 0.7 else rng.sample(modes, rng.randrange(2, 4))
    functions = [torch.nn.Identity, torch.nn.Tanh, torch.nn.GELU, torch.nn.ReLU, torch.nn.Sigmoid]
    dense = [(rng.randrange(17, 60), rng.random() < 0.6, rng.choice(functions)()) for _ in range(rng.choice([0, 0, 1, 2]))]
    published = not dense and pooling in modes[:4] and rng.random() < 0.5
    return common | dict(pooling=pooling, dense=dense, normalize=rng.random() < 0.7, published=published, prompts={} if published else PROMPTS)


def bases(rng):
    base = lambda *choices: {"rope_type": "default", "rope_theta": rng.choice(choices)}
    return {FULL: base(160000.0, 5000.0), SLIDING: base(10000.0, 100.0)}


def bert(rng):
    return sizes(rng, rng.randrange(1, 5), rng.randrange(5, 17)) | dict(
        model_type="bert", tokens=BERT, type_vocab_size=rng.choice([2, 2, 3]), layer_norm_eps=rng.choice([1e-12, 1e-5]), pairs=rng.random() < 0.4,
    )


def xlm_roberta(rng):
    # The id of `<pad>`: transformers gives the position of padding to every token with this id.
    padding = 1
    common = sizes(rng, rng.randrange(1, 5), rng.randrange(5, 17))
    return common | dict(
        model_type=rng.choice(["xlm-roberta", "roberta"]), tokens=ROBERTA, type_vocab_size=1, pad_token_id=padding, layer_norm_eps=rng.choice([1e-12, 1e-5]),
        max_position_embeddings=common["max_position_embeddings"] + padding + 1, pairs=rng.random() < 0.4,
    )


def modernbert(rng):
    return sizes(rng, rng.randrange(1, 5), 2 * rng.randrange(3, 9)) | dict(
        model_type="modernbert", tokens=BERT, num_hidden_layers=rng.randrange(1, 6), local_attention=2 * rng.randrange(2, 10), global_attn_every_n_layers=rng.randrange(1, 4), pad_token_id=0,
        rope_parameters=bases(rng), norm_bias=rng.random() < 0.3, attention_bias=rng.random() < 0.3, mlp_bias=rng.random() < 0.3, norm_eps=rng.choice([1e-5, 1e-6]),
        pairs=rng.random() < 0.4, classifier_pooling=rng.choice(["cls", "mean"]), classifier_bias=rng.random() < 0.3,
    )


def nomic_bert(rng):
    return sizes(rng, rng.randrange(1, 5), 2 * rng.randrange(3, 9)) | dict(
        model_type="nomic_bert", tokens=BERT, type_vocab_size=rng.choice([1, 2]), layer_norm_eps=rng.choice([1e-12, 1e-5]), rope_parameters=bases(rng)[FULL],
    )


def qwen3_embedding(rng):
    groups, keys = rng.randrange(1, 4), rng.randrange(1, 3)
    return sizes(rng, groups * keys, rng.randrange(5, 12)) | dict(
        model_type="qwen3", tokens=QWEN, num_key_value_heads=keys, head_dim=2 * rng.randrange(3, 9), pad_token_id=2, rope_parameters=bases(rng)[FULL], rms_norm_eps=rng.choice([1e-5, 1e-6]),
        attention_bias=rng.random() < 0.3,
    )


FAMILIES = {f.__name__: f for f in (bert, xlm_roberta, modernbert, nomic_bert, qwen3_embedding)}


def texts_of(rng, tokenizer, lengths, prompts):
    texts = [{"text": text_of(rng, tokenizer, length)} for length in lengths]
    texts += [{"text": text_of(rng, tokenizer, 9), "prompt": prompt} for prompt in prompts]
    return texts + [{"text": text_of(rng, tokenizer, LONGEST + 13)}]


def write(out, seed, case, lengths=(4, 5, 7, 12, LONGEST), documents=(4, 9, 17, 23)):
    """A folder with its golden files: texts of several lengths, with prompts, and one that is cut; or pairs of texts, the second of so
    many tokens."""
    start = time.time()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_folder(out, seed, **case)
    rng, tensors = random.Random(seed), {}
    options = dict(device="cpu", model_kwargs=dict(dtype=torch.float32, attn_implementation="eager"))
    if case.get("pairs"):
        model = CrossEncoder(str(out), **options)
        tokenizer = model.tokenizer
        pairs = [(text_of(rng, tokenizer, 9), text_of(rng, tokenizer, length)) for length in documents] + [(text_of(rng, tokenizer, 20), text_of(rng, tokenizer, 53))]
        texts = []
        for i, (first, second) in enumerate(pairs):
            encoded = tokenizer(first, second, truncation="longest_first", max_length=LONGEST)
            types = encoded.get("token_type_ids") or [0] * len(encoded["input_ids"])
            texts.append({"text": first, "second": second, "tokens": encoded["input_ids"], "first": types.count(0) if 1 in types else len(types)})
            tensors[f"texts.{i}.embedding"] = model.predict([(first, second)], activation_fn=torch.nn.Identity()).astype(np.float32)
            tensors[f"texts.{i}.score"] = model.predict([(first, second)]).astype(np.float32)
        width = 1
    else:
        model = SentenceTransformer(str(out), **options)
        tokenizer = model.tokenizer
        prompts = case.get("prompts", PROMPTS)
        texts = texts_of(rng, tokenizer, lengths, prompts)
        for i, entry in enumerate(texts):
            features = model.preprocess([prompts.get(entry.get("prompt"), "") + entry["text"]])
            entry["tokens"] = features["input_ids"][0].tolist()
            tensors[f"texts.{i}.embedding"] = model.encode(entry["text"], prompt_name=entry.get("prompt"))
        width = len(tensors["texts.0.embedding"])
    head = dict(
        reference=f"sentence-transformers {sentence_transformers.__version__}, {REFERENCE.split(', greedy')[0]}, one text at a time", name=out.name, seed=seed, storage="f32",
        vocab_size=json.loads((out / "config.json").read_text())["vocab_size"], hidden_size=case.get("hidden_size", SMALL["hidden_size"]), embedding_size=width, max_length=LONGEST,
    )
    lines = ",\n    ".join(json.dumps(entry, ensure_ascii=False) for entry in texts)
    (out / "golden.json").write_text(json.dumps(head, indent=2)[:-2] + f',\n  "texts": [\n    {lines}\n  ]\n}}\n', encoding="utf-8")
    save_file(tensors, out / "golden.safetensors")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out.name}: {len(texts)} texts, {width} numbers each, {size / 1e3:.0f} kB, {time.time() - start:.1f} s")
