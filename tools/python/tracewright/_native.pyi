from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, Unpack, final

import numpy as np
from numpy.typing import NDArray

from .options import GenerateOptions, OpenOptions, TranscribeOptions, Transcript

__version__: str

class TracewrightError(Exception):
    """A model cannot be opened, or cannot answer."""

    code: str
    """The kind of error, such as `TW0201`; `tracewright explain TW0201` explains it."""
    message: str
    help: list[str]

@final
class Generation(Iterator[str]):
    """Yields the pieces of a text while the model generates the text. Dropping the iterator stops the generation."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> str: ...
    def text(self) -> str:
        """Waits for the end of the text, and returns the whole text."""
    def cancel(self) -> None:
        """Ends the text after the next token. The iterator still yields the text up to this token."""
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def tokens(self) -> list[int] | None:
        """The generated token ids, or `None` before the text has ended."""
    @property
    def finish(self) -> Literal["stop", "length", "context", "cancelled"] | None:
        """The reason why the text ended, or `None` before the text has ended."""
    @property
    def tokens_per_second(self) -> float | None: ...

@final
class Model:
    """An open model. Several Python threads can use a model at the same time."""

    def __new__(cls, model: str | PathLike[str], **options: Unpack[OpenOptions]) -> Self: ...
    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_vars: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Answers a conversation, which the model's chat template converts to a prompt."""
    def generate(self, prompt: str | Sequence[int] | NDArray[np.uint32], **options: Unpack[GenerateOptions]) -> Generation:
        """Continues a text, or a sequence of token ids, without a chat template."""
    def render(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_vars: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders a conversation with the model's chat template, and returns the prompt."""
    def embed(self, texts: str | Sequence[str], *, prompt: str | None = None) -> NDArray[np.float32]:
        """Returns the embeddings of texts as float32 [texts, features]."""
    def rerank(self, query: str, documents: str | Sequence[str]) -> NDArray[np.float32]:
        """Returns the score of each document for a query as float32 [documents], in the order of the documents."""
    def transcribe(self, audio: str | PathLike[str] | NDArray[np.float32], **options: Unpack[TranscribeOptions]) -> Transcript:
        """Transcribes an audio file, or float32 samples at `sampling_rate`."""
    @property
    def sampling_rate(self) -> int:
        """The samples per second that `transcribe` takes in an array."""
    def score(self, text: str | Sequence[int] | NDArray[np.uint32]) -> NDArray[np.float32]:
        """Returns the logits after each token of a text as float32 [tokens, vocabulary]."""
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of a text. `special` adds the special tokens at the beginning and the end of the text."""
    def decode(self, tokens: Sequence[int]) -> str:
        """Converts token ids to text, without special tokens."""
    @property
    def context(self) -> int:
        """The largest number of tokens in a sequence, prompt and answer together."""
    @property
    def vocabulary(self) -> int: ...
    @property
    def slots(self) -> int:
        """The number of texts that the model generates in parallel."""
    def close(self) -> None:
        """Releases the model after all running texts have ended."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def run(words: list[str], again: list[str]) -> int: ...
def trace_dump(words: list[str]) -> int: ...
