"""The keyword arguments of `Model`, `Model.chat` and `Model.generate`, as types."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict


class OpenOptions(TypedDict, total=False):
    """Options of `Model`. `None` is the default."""

    dtype: Literal["f32", "f16", "bf16"] | None
    context: int | None
    chunk: int | None
    slots: int | None
    simplify: Literal["off", "exact", "approximate"] | None
    quant: str | None
    activations: Literal["8", "mixed", "16"] | None
    kernels: Literal["on", "off"] | None
    kv: Literal["computed", "q8"] | None
    numerics: Literal["fast", "invariant", "portable"] | None
    device: str | None
    threads: int | None
    speculate: str | None
    verify: bool | None
    allow_config_keys: str | Sequence[str] | None
    cache: str | PathLike[str] | None
    iree_compile: str | PathLike[str] | None


class GenerateOptions(TypedDict, total=False):
    """Options of `Model.chat` and `Model.generate`. `None` is the default, which the model's `generation_config.json` can set."""

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repeat_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    no_repeat_ngram_size: int | None
    suppress_tokens: Sequence[int] | None
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    json_schema: str | Mapping[str, Any] | None
    grammar: str | None
    reuse: bool | None
