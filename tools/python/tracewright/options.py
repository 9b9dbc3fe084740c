"""The keyword arguments of `Model` and its methods, and what `Model.transcribe` returns, as types."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, NotRequired, TypedDict


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
    lora: str | Sequence[str] | None
    allow_config_keys: str | Sequence[str] | None
    cache: str | PathLike[str] | None
    iree_compile: str | PathLike[str] | None


class TranscribeOptions(TypedDict, total=False):
    """Options of `Model.transcribe`. `None` is the default."""

    language: str | None
    translate: bool | None
    timestamps: Literal["none", "segment", "word"] | None
    prompt: str | None
    condition_on_prev_tokens: bool | None
    temperatures: Sequence[float] | None
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    seed: int | None


class Word(TypedDict):
    """A word of a segment. Times are in seconds from the begin of the file."""

    word: str
    start: float
    end: float


class Segment(TypedDict):
    """A part of a transcript. Times are in seconds from the begin of the file."""

    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: NotRequired[list[Word]]


class Transcript(TypedDict):
    """What `Model.transcribe` returns."""

    language: str
    duration: float
    text: str
    segments: list[Segment]


class GenerateOptions(TypedDict, total=False):
    """Options of `Model.chat` and `Model.generate`. `None` is the default, which the model's `generation_config.json` can set."""

    max_tokens: int | None
    seed: int | None
    suppress_tokens: Sequence[int] | None
    dry_sequence_breakers: str | Sequence[str] | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    json_schema: str | Mapping[str, Any] | None
    grammar: str | None
    reuse: bool | None
    # The settings of the sampler, which `cargo xtask bless` lists.
    repeat_last_n: int | None
    repeat_penalty: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    top_n_sigma: float | None
    top_k: int | None
    typical_p: float | None
    top_p: float | None
    min_p: float | None
    top_h: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    top_a: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    temperature: float | None
    mirostat: int | None
    mirostat_eta: float | None
    mirostat_tau: float | None
    no_repeat_ngram_size: int | None
    min_tokens: int | None
