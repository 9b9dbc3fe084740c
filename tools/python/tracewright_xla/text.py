"""Text and tokens, by the tokenizer that the export carries."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .errors import PromptError
from .files import CONFIG, LARGE, read_text

_TOKENS = 1 << 20
"""Ids of tokens are below this: the limit of `tracewright` itself."""

T = TypeVar("T")


class Text:
    """The tokenizer of a model, and the tokens with which its answers end."""

    def __init__(self, folder: Path) -> None:
        """Reads `tokenizer.json` of an export; raises `PromptError` if it has none, or it cannot be read."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise PromptError(f"`{folder}` has no `tokenizer.json`; name the prompt's tokens with `--tokens 5,17,3`")
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise PromptError("text needs the package `tokenizers`; install it, or use `--tokens 5,17,3`") from error
        self._tokenizer = _given(f"`{path}` is no tokenizer", lambda: Tokenizer.from_str(read_text(path, LARGE)))
        # The file may ask for both, which transformers does for nobody who does not ask it to.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, with those that the model wants in front."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"the prompt is no UTF-8: {error}") from error
        return list(_given("the tokenizer cannot encode the prompt", lambda: self._tokenizer.encode(text).ids))

    def text(self, tokens: list[int]) -> str:
        """The text of tokens, without special ones."""
        return str(_given("the tokenizer cannot decode the answer", lambda: self._tokenizer.decode(tokens)))


def _given(what: str, work: Callable[[], T]) -> T:
    """What the library gives; raises `PromptError` where it gives up, in whatever way: a panic of it is no `Exception`."""
    try:
        with _unheard():
            return work()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise PromptError(f"{what}: {error}") from error


@contextmanager
def _unheard() -> Iterator[None]:
    """Throws away what is written to stderr: the library shows each of its panics, which becomes an error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def ends(folder: Path) -> frozenset[int]:
    """The tokens that end an answer, as `generation_config.json` says, or else `config.json` or the `text_config` within;
    raises `PromptError` if what it says is none."""
    for name in ("generation_config.json", "config.json"):
        try:
            content: Any = json.loads(read_text(folder / name, CONFIG))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise PromptError(f"`{folder / name}` cannot be read: {error}") from error
        said = (content, content.get("text_config")) if isinstance(content, dict) else ()
        found = [one["eos_token_id"] for one in said if isinstance(one, dict) and one.get("eos_token_id") is not None]
        if found:
            ids = found[0] if isinstance(found[0], list) else found[:1]
            if any(type(token) is not int or not 0 <= token < _TOKENS for token in ids):
                raise PromptError(
                    f"`eos_token_id` of `{folder / name}` is {reprlib.repr(found[0])}, expected a token id or a list of them"
                )
            return frozenset(ids)
    return frozenset()
