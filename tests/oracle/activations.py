"""What the modules of a model get and give while it reads some tokens, for `tracewright bisect --against FILE`.

    .tracewright/oracle/bin/python tests/oracle/activations.py MODEL_DIR --tokens 5,17,3 --out activations.safetensors

Keys are the paths of the modules, which are our field paths: `PATH` is what a module gave, `PATH:input` what it got.
"""

import argparse
from pathlib import Path

from golden import load, torch
from safetensors.torch import save_file


def fed(config, tokens):
    """The tokens, and as many more as tell the axis of positions from that of heads; what is behind the last is cut off again."""
    config = config.get_text_config()
    heads = {config.num_attention_heads, getattr(config, "num_key_value_heads", None)}
    more = next(more for more in range(len(heads) + 1) if len(tokens) + more not in heads)
    return tokens + tokens[:1] * more


def positions_first(tensor, count):
    """`[1, S, …]`: norms of queries and keys get heads before positions. What experts get has no axis of sequences."""
    if tensor.dim() == 2:
        return tensor[None]
    return tensor.transpose(1, 2) if tensor.dim() == 4 and tensor.shape[2] == count else tensor


@torch.no_grad()
def activations(model, tokens):
    found = {"tokens": torch.tensor(tokens, dtype=torch.int32)}
    longer = fed(model.config, tokens)

    def keep(key, value):
        value = value[0] if isinstance(value, tuple) else value
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            found[key] = positions_first(value.detach().float(), len(longer))[:, : len(tokens)].contiguous().clone()

    def hook(name):
        def called(module, arguments, keywords, result):
            got = arguments[0] if arguments else keywords.get("hidden_states")
            keep(f"{name}:input", got)
            # What Gemma's embedding gives is scaled; ours scales behind it.
            if not hasattr(module, "embed_scale"):
                keep(name, result)

        return called

    for name, module in model.named_modules():
        is_layer = name.split(".")[-1].isdigit()
        if is_layer or next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(hook(name), with_kwargs=True)
    model(input_ids=torch.tensor([longer]), use_cache=False)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", required=True, help="token ids, such as 5,17,3")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="type that the model computes in")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tokens = [int(token) for token in arguments.tokens.split(",")]
    save_file(activations(load(arguments.model, getattr(torch, arguments.dtype)), tokens), arguments.out)


if __name__ == "__main__":
    main()
