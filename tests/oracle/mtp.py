"""The fixture of multi-token prediction: `python mtp.py`. transformers ignores the weights below `mtp.`, so the module is composed here from
transformers' own layers of a Qwen3.5. It is trained a little, so that the network accepts some of its drafts."""

import copy
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm, Qwen3_5TextRotaryEmbedding

from golden import greedy, load, write_checkpoint

OUT = Path(__file__).parents[2] / "tests" / "fixtures" / "mtp"
CONFIG = dict(
    model_type="qwen3_5_text", vocab_size=97, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=4, intermediate_size=50,
    max_position_embeddings=128, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=5, rms_norm_eps=1e-3,
    tie_word_embeddings=False, published=True, add={"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False},
)
PROMPTS, LENGTH, STEPS, DRAFTED = 8, 9, 48, 3


class Mtp(nn.Module):
    """The names of the fields are those of the published weights."""

    def __init__(self, config):
        super().__init__()
        config = copy.deepcopy(config)
        config.layer_types, config.num_hidden_layers = ["full_attention"], 1
        norm = lambda: Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, 0)])
        self.rotary = [Qwen3_5TextRotaryEmbedding(config)]

    def forward(self, embedded, hidden):
        """Embeddings of the tokens at positions 1, 2, … and hidden states at positions 0, 1, …: both [B, S, D]."""
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        places = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min).triu(1)[None, None]
        x = self.layers[0](x, position_embeddings=self.rotary[0](x, places[None]), attention_mask=mask, position_ids=places)
        return self.norm(x)


def trained(model, texts):
    """Learns the next but one token of the texts, which the network wrote, and to go on from its own hidden states."""
    torch.manual_seed(7)
    mtp = Mtp(model.config)
    for name, p in mtp.named_parameters():
        p.data = 0.1 * torch.randn_like(p) if "norm" in name else p.data
    with torch.no_grad():
        hidden, embedded = model.model(texts).last_hidden_state, model.model.embed_tokens(texts)
    optimizer = torch.optim.Adam(mtp.parameters(), lr=3e-3)
    for _ in range(900):
        logits = model.lm_head(mtp(embedded[:, 1:-1], hidden[:, :-2]))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, 2:].flatten())
        end = int(torch.randint(LENGTH, texts.shape[1] - DRAFTED, ()))
        states = hidden[:, :end]
        for step in range(DRAFTED):
            found = mtp(embedded[:, 1 : end + step + 1], states)[:, -1:]
            loss = loss + nn.functional.cross_entropy(model.lm_head(found[:, 0]), texts[:, end + step + 1])
            states = torch.cat([states, found], 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss:.3f}, right {(logits.argmax(-1) == texts[:, 2:]).float().mean():.2f}")
    return mtp.eval().requires_grad_(False)


@torch.no_grad()
def drafts(model, mtp, tokens, hidden):
    """The logits of DRAFTED tokens after the text: from the second on, the module reads its own hidden states and drafts."""
    tokens, states, rows = tokens.clone(), hidden[:, :-1], []
    for _ in range(DRAFTED):
        found = mtp(model.model.embed_tokens(tokens[:, 1:]), states)
        rows.append(model.lm_head(found[:, -1]))
        tokens = torch.cat([tokens, rows[-1].argmax(-1)[None]], 1)
        states = torch.cat([states, found[:, -1:]], 1)
    return tokens[0, -DRAFTED:], torch.cat(rows)


def main():
    OUT.mkdir(exist_ok=True)
    write_checkpoint(OUT, 611, **copy.deepcopy(CONFIG))
    model = load(OUT).requires_grad_(False)
    random = torch.Generator().manual_seed(5)
    prompts = torch.randint(CONFIG["vocab_size"], (PROMPTS, LENGTH), generator=random).tolist()
    texts = torch.tensor([prompt + greedy(model, prompt, STEPS)[1] for prompt in prompts])
    mtp = trained(model, texts)
    weights = {f"mtp.{name}": p.contiguous() for name, p in mtp.named_parameters()}
    save_file(load_file(OUT / "model.safetensors") | weights, OUT / "model.safetensors", metadata={"format": "pt"})
    text = texts[:1, : LENGTH + 12]
    hidden = model.model(text).last_hidden_state
    states = mtp(model.model.embed_tokens(text[:, 1:]), hidden[:, :-1])
    drafted, draft_logits = drafts(model, mtp, text, hidden)
    golden = {
        "text": text[0].int(), "hidden": hidden[0], "mtp_hidden": states[0], "mtp_logits": model.lm_head(states[0]), "drafted": drafted.int(),
        "draft_logits": draft_logits, "prompts": torch.tensor(prompts).int(), "answers": texts[:, LENGTH:].int(),
    }
    save_file({name: tensor.contiguous() for name, tensor in golden.items()}, OUT / "mtp.safetensors")
    assert json.loads((OUT / "config.json").read_text())["mtp_num_hidden_layers"] == 1


if __name__ == "__main__":
    main()
