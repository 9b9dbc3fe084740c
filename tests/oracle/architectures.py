"""Write `tests/fixtures/bert/` and `tests/fixtures/llava/`: tiny networks with random weights, and what transformers makes of them:
`python architectures.py`."""

import json
from pathlib import Path

import torch
from golden import NEAR_TIE, REFERENCE, lead, spread
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

FIXTURES = Path(__file__).parents[1] / "fixtures"
BERT = dict(
    vocab_size=67, hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=37, max_position_embeddings=20, type_vocab_size=2, layer_norm_eps=1e-12,
)
COUNTS, LENGTH = [1, 7, 12, 4], 12
VISION = dict(hidden_size=20, intermediate_size=33, num_hidden_layers=3, num_attention_heads=2, image_size=12, patch_size=4, projection_dim=20)
TEXT = dict(
    vocab_size=71, hidden_size=24, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5,
    max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=False,
)
IMAGE, STEPS = 70, 12


def write(name, model, golden, tensors, keys):
    out = FIXTURES / name
    out.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in model.state_dict().items() if value.is_floating_point()}, out / "model.safetensors")
    save_file(tensors, out / "golden.safetensors")
    text = json.dumps({"reference": REFERENCE, "config": keys, **golden}, indent=1)
    (out / "golden.json").write_text(text + "\n")


@torch.no_grad()
def bert():
    """Texts of several lengths, with padding behind them."""
    torch.manual_seed(331)
    model = spread(BertModel(BertConfig(**BERT, attn_implementation="eager"))).eval()
    tokens = torch.randint(2, BERT["vocab_size"], [len(COUNTS), LENGTH])
    kinds = torch.randint(0, 2, tokens.shape)
    mask = torch.arange(LENGTH)[None] < torch.tensor(COUNTS)[:, None]
    output = model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask.long())
    tensors = {"hidden": output.last_hidden_state.contiguous(), "pooled": output.pooler_output.contiguous()}
    write("bert", model, dict(tokens=tokens.flatten().tolist(), kinds=kinds.flatten().tolist(), counts=COUNTS), tensors, BERT)
    print(f"bert: largest feature {float(output.last_hidden_state.abs().max()):.2f}")


@torch.no_grad()
def llava():
    """A prompt with an image in it, and its greedy continuation by cached decoding."""
    torch.manual_seed(332)
    config = LlavaConfig(vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_index=IMAGE, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = spread(LlavaForConditionalGeneration(config)).eval()
    patches = (VISION["image_size"] // VISION["patch_size"]) ** 2
    while True:
        pixels = torch.randn(1, 3, VISION["image_size"], VISION["image_size"])
        before, after = (torch.randint(3, IMAGE, [count]).tolist() for count in (4, 6))
        prompt = [*before, *[IMAGE] * patches, *after]
        output = model(input_ids=torch.tensor([prompt]), pixel_values=pixels, use_cache=True)
        rows, tokens, gap = [output.logits[0]], [], 1.0
        while len(tokens) < STEPS:
            tokens.append(int(rows[-1][-1].argmax()))
            gap = min(gap, lead(rows[-1][-1:], 1))
            output = model(input_ids=torch.tensor([tokens[-1:]]), past_key_values=output.past_key_values, use_cache=True)
            rows.append(output.logits[0])
        if gap > NEAR_TIE and len(set(tokens)) > 5:
            break
    features = model.model.get_image_features(pixel_values=pixels)
    features = features.pooler_output if hasattr(features, "pooler_output") else features
    tensors = {"pixels": pixels, "features": torch.cat(list(features)).contiguous(), "logits": torch.cat(rows).contiguous()}
    theta = TEXT["rope_parameters"]["rope_theta"]
    text = {key: value for key, value in TEXT.items() if isinstance(value, (int, float)) and key != "tie_word_embeddings"} | {"rope_theta": theta}
    grid = VISION["image_size"] // VISION["patch_size"]
    # The projector reads what the last layer but one gives.
    vision = dict(layers=VISION["num_hidden_layers"] - 1, grid=grid, places=grid * grid + 1, layer_norm_eps=config.vision_config.layer_norm_eps, **VISION)
    vision = {"vision_hidden_size": VISION["hidden_size"], "vision": vision}
    write("llava", model, dict(before=before, after=after, image=IMAGE, tokens=tokens, min_gap=gap), tensors, text | vision)
    print(f"llava: {len(set(tokens))} distinct tokens, smallest gap {gap:.1e}")


bert()
llava()
