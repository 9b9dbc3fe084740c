"""Write `tests/fixtures/t5/`: a tiny T5 with random weights, and its logits by transformers: `python encoder_decoder.py`."""

import json
from pathlib import Path

import torch
from golden import NEAR_TIE, REFERENCE, lead, spread
from safetensors.torch import save_file
from transformers import T5Config, T5ForConditionalGeneration

OUT = Path(__file__).parents[1] / "fixtures" / "t5"
# Heads are no share of the hidden size, and sequences leave the last bucket of distances behind.
CONFIG = dict(
    vocab_size=67, d_model=24, d_kv=10, d_ff=37, num_layers=2, num_decoder_layers=3, num_heads=3,
    relative_attention_num_buckets=8, relative_attention_max_distance=9, layer_norm_epsilon=1e-6, feed_forward_proj="relu",
)
SEED, SOURCE, STEPS = 301, 14, 20
LENGTHS = [1, 5, 9, SOURCE]


@torch.no_grad()
def continued(model, source, from_embeddings):
    """The logits after each token of the answer, the answer, and the narrowest choice: cached decoding from token 0."""
    source = torch.tensor([source])
    encoded = model.encoder(inputs_embeds=model.shared(source)) if from_embeddings else model.encoder(input_ids=source)
    tokens, rows, past = [0], [], None
    while len(tokens) <= STEPS:
        output = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens[-1:]]), past_key_values=past, use_cache=True)
        past = output.past_key_values
        rows.append(output.logits[0, -1])
        tokens.append(int(rows[-1].argmax()))
    return torch.stack(rows), tokens, lead(torch.stack(rows), 1)


def main():
    torch.manual_seed(SEED)
    config = T5Config(**CONFIG, bos_token_id=None, eos_token_id=1, pad_token_id=0, decoder_start_token_id=0, attn_implementation="eager")
    model = spread(T5ForConditionalGeneration(config)).eval()
    # A T5 has no factor on scores: large ones would magnify the rounding of float32 beyond the bound.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith((".q.weight", ".k.weight")):
                weight.mul_(0.25)
            if name.endswith("shared.weight"):
                weight.mul_(0.4)
    cases, tensors = [], {}
    for index, length in enumerate(LENGTHS):
        while True:
            source = torch.randint(2, CONFIG["vocab_size"], [length]).tolist()
            rows, tokens, gap = continued(model, source, False)
            if gap > NEAR_TIE and len(set(tokens)) > 5:
                break
        again, same, _ = continued(model, source, True)
        assert same == tokens and torch.allclose(again, rows, rtol=1e-5, atol=1e-5)
        # One pass over the answer gives what cached decoding does.
        with torch.no_grad():
            whole = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([tokens[:-1]])).logits[0]
        assert float((whole - rows).abs().max()) < 1e-4 * float(rows.abs().max())
        cases.append({"source": source, "tokens": tokens, "min_gap": gap})
        tensors[f"cases.{index}.logits"] = rows.contiguous()
        print(f"{length} tokens: {len(set(tokens))} distinct of {len(tokens)}, smallest gap {gap:.1e}, largest logit {float(rows.abs().max()):.2f}")
    OUT.mkdir(exist_ok=True)
    weights = {key: value.contiguous() for key, value in model.state_dict().items() if "embed_tokens" not in key and key != "lm_head.weight"}
    save_file(weights, OUT / "model.safetensors")
    save_file(tensors, OUT / "golden.safetensors")
    tied = model.config.tie_word_embeddings and model.config.scale_decoder_outputs
    keys = {key: CONFIG[key] for key in CONFIG if isinstance(CONFIG[key], int)} | {"epsilon": CONFIG["layer_norm_epsilon"]}
    golden = {"reference": REFERENCE, "seed": SEED, "source": SOURCE, "scaled": tied, "config": keys}
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (OUT / "golden.json").write_text(json.dumps(golden, indent=1)[:-2] + f',\n "cases": [\n{lines}\n ]\n}}\n')


main()
