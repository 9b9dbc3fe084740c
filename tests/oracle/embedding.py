"""Embeddings: random EmbeddingGemmas in folders that sentence-transformers reads, judged by it, and what follows the tower by NumPy too."""

import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from stories import story
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedTokenizerFast

from golden import REFERENCE, STORAGE, spread, write_config

ROOT = Path(__file__).parents[2]
SLIDING, FULL = "sliding_attention", "full_attention"
# Tokens of the longest text; what is longer is cut.
LONGEST = 40
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
TOWER = dict(vocab_size=1024, max_position_embeddings=64, use_bidirectional_attention=True, pad_token_id=0, eos_token_id=1, bos_token_id=2)
CASES = {
    # As published: the files of sentence-transformers 5 and transformers 4, all of it f32, dense layers that only multiply.
    "embeddinggemma": dict(
        storage="f32", published=True, dense=[(66, False, torch.nn.Identity()), (30, False, torch.nn.Identity())], lengths=[2, 3, 5, 6, 7, 11, 12, 23, LONGEST - 1, LONGEST],
        tower=dict(
            hidden_size=42, num_attention_heads=3, num_key_value_heads=1, head_dim=14, intermediate_size=53, num_hidden_layers=4, query_pre_attn_scalar=71, sliding_window=10,
            layer_types=[SLIDING, SLIDING, FULL, SLIDING],
            rope_parameters={SLIDING: {"rope_type": "default", "rope_theta": 100.0}, FULL: {"rope_type": "default", "rope_theta": 5000.0}},
        ),
    ),
    # As saved today. An odd window reaches no farther than the even one below it.
    "embeddinggemma-saved": dict(
        storage="bf16", dense=[(35, True, torch.nn.Tanh()), (62, False, torch.nn.Identity())], lengths=[2, 4, 5, 7, 8, 9, 16, LONGEST], add={"sliding_window": 7},
        tower=dict(
            hidden_size=45, num_attention_heads=5, num_key_value_heads=1, head_dim=10, intermediate_size=64, num_hidden_layers=3, query_pre_attn_scalar=37, sliding_window=7,
            layer_types=[FULL, SLIDING, SLIDING], attention_bias=True,
        ),
    ),
}


def write_tokenizer(out):
    """The vocabulary of the shipped Gemma 3, with an end of sequence behind every text."""
    tokenizer = Tokenizer.from_file(str(ROOT / "demo-gemma3" / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A <eos>", pair="<bos> $A <eos> $B <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)])
    names = dict(bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LONGEST, **names).save_pretrained(out)


def publish(out):
    """Rewrites what stands around the tower as sentence-transformers 5 spelled it."""

    def rewrite(name, change):
        path = out / name
        path.write_text(json.dumps(change(json.loads(path.read_text())), indent=2) + "\n")

    rewrite("modules.json", lambda modules: [m | {"type": f"sentence_transformers.models.{m['type'].rsplit('.', 1)[1]}"} for m in modules])
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    rewrite("1_Pooling/config.json", lambda pooling: {
        "word_embedding_dimension": pooling["embedding_dimension"], **{f"pooling_mode_{mode}": mode == "mean_tokens" for mode in modes}, "include_prompt": True,
    })
    for path in out.glob("*_Dense/config.json"):
        rewrite(path.relative_to(out), lambda dense: {key: dense[key] for key in ("in_features", "out_features", "bias", "activation_function")})
    rewrite("sentence_bert_config.json", lambda _: {"max_seq_length": LONGEST, "do_lower_case": False})
    shutil.rmtree(out / "4_Normalize")


def write_folder(out, seed, storage, tower, dense, published=False, add=None):
    """A tower with spread weights and the modules behind it."""
    torch.manual_seed(seed)
    model = spread(AutoModel.from_config(CONFIG_MAPPING["gemma3_text"](**TOWER, **tower)))
    model.save_pretrained(out)
    write_tokenizer(out)
    features = [tower["hidden_size"], *(width for width, _, _ in dense)]
    layers = [Dense(inputs, width, bias=bias, activation_function=function) for inputs, (width, bias, function) in zip(features, dense)]
    modules = [Transformer(str(out)), Pooling(features[0], "mean"), *layers, Normalize()]
    model = SentenceTransformer(modules=modules, prompts=PROMPTS, similarity_fn_name="cosine", device="cpu").to(STORAGE[storage])
    shutil.rmtree(out)
    model.save_pretrained(str(out), create_model_card=False)
    write_config(out / "config.json", published, add=add)
    if published:
        publish(out)


def text_of(rng, tokenizer, length):
    """The beginning of a story that has so many tokens, those around it included."""
    while True:
        text = story(rng)[0]
        for end in range(len(text)):
            if len(tokenizer(text[:end])["input_ids"]) == length and text[:end] == text[:end].strip():
                return text[:end]


def after_tower(folder, hidden):
    """What `modules.json` does with the hidden states of a text, in f64."""
    x = None
    for module in json.loads((folder / "modules.json").read_text())[1:]:
        kind, path = module["type"].rsplit(".", 1)[1], folder / module["path"]
        if kind == "Pooling":
            x = hidden.astype(np.float64).mean(0)
        elif kind == "Dense":
            config = json.loads((path / "config.json").read_text())
            # NumPy has no bf16; as f32 its values are the same.
            weights = {key: tensor.float().numpy().astype(np.float64) for key, tensor in load_file(path / "model.safetensors").items()}
            x = weights["linear.weight"] @ x + (weights["linear.bias"] if config["bias"] else 0)
            x = np.tanh(x) if config["activation_function"].endswith(".Tanh") else x
        else:
            x = x / max(np.sqrt((x * x).sum()), 1e-12)
    return x


def random_case(rng, tower, storage):
    """A tower with any layers behind it, and texts of any length."""

    def layer(*functions):
        return rng.randrange(17, 90), rng.random() < 0.4, rng.choice(functions)()

    return dict(
        # What the tower would save of its window is the even number below.
        tower=tower, add={"sliding_window": tower["sliding_window"]}, storage=storage, published=rng.random() < 0.5,
        dense=[layer(torch.nn.Identity, torch.nn.Tanh), layer(torch.nn.Identity)],
        lengths=sorted({2, 3, LONGEST - 1, LONGEST, *(rng.randrange(4, LONGEST - 1) for _ in range(4))}),
    )


def write(out, seed, case):
    """A folder with its golden files: texts around the window, two with a prompt, one that is cut."""
    start, name = time.time(), out.name
    shutil.rmtree(out, ignore_errors=True)
    write_folder(out, seed, **{key: value for key, value in case.items() if key != "lengths"})
    model = SentenceTransformer(str(out), device="cpu", model_kwargs=dict(dtype=torch.float32, attn_implementation="eager"))
    rng = random.Random(seed)
    texts = [{"text": text_of(rng, model.tokenizer, length)} for length in case["lengths"]]
    texts += [{"text": text_of(rng, model.tokenizer, 9), "prompt": prompt} for prompt in PROMPTS]
    texts += [{"text": text_of(rng, model.tokenizer, LONGEST + 13)}]
    tensors = {}
    for i, entry in enumerate(texts):
        prompt = PROMPTS.get(entry.get("prompt"), "")
        features = model.preprocess([prompt + entry["text"]])
        entry["tokens"] = features["input_ids"][0].tolist()
        with torch.no_grad():
            hidden = model[0](features)["token_embeddings"][0].numpy()
        embedding = model.encode(entry["text"], prompt_name=entry.get("prompt"))
        error = np.abs(after_tower(out, hidden) - embedding).max()
        assert error < 1e-6, f"sentence-transformers and NumPy differ by {error:.1e}"
        tensors |= {f"texts.{i}.hidden": hidden, f"texts.{i}.embedding": embedding}
    head = dict(
        reference=f"sentence-transformers {sentence_transformers.__version__}, {REFERENCE.split(', greedy')[0]}, one text at a time", name=name, seed=seed, storage=case["storage"],
        vocab_size=TOWER["vocab_size"], hidden_size=case["tower"]["hidden_size"], embedding_size=case["dense"][-1][0], max_length=LONGEST,
    )
    lines = ",\n    ".join(json.dumps(entry, ensure_ascii=False) for entry in texts)
    (out / "golden.json").write_text(json.dumps(head, indent=2)[:-2] + f',\n  "texts": [\n    {lines}\n  ]\n}}\n', encoding="utf-8")
    save_file(tensors, out / "golden.safetensors")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    vectors = np.stack([tensors[f"texts.{i}.embedding"] for i in range(len(texts))])
    nearest = (vectors @ vectors.T - 2 * np.eye(len(texts))).max()
    print(f"{name}: {len(texts)} texts of {min(len(t['tokens']) for t in texts)} to {max(len(t['tokens']) for t in texts)} tokens, largest cosine of two {nearest:.3f}, {size / 1e3:.0f} kB, {time.time() - start:.1f} s")
