"""Text and tokens, by the tokenizer that the export carries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .errors import PromptError
from .files import read_text

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
        self._tokenizer = _given(f"`{path}` is no tokenizer", lambda: Tokenizer.from_str(read_text(path)))

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
        return work()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise PromptError(f"{what}: {error}") from error


def ends(folder: Path) -> frozenset[int]:
    """The tokens that end an answer, as `generation_config.json` or else `config.json` says; raises `PromptError` if it says
    none."""
    for name in ("generation_config.json", "config.json"):
        try:
            content: Any = json.loads(read_text(folder / name))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise PromptError(f"`{folder / name}` cannot be read: {error}") from error
        found = content.get("eos_token_id") if isinstance(content, dict) else None
        if found is not None:
            ids = found if isinstance(found, list) else [found]
            if any(type(token) is not int or token < 0 for token in ids):
                raise PromptError(f"`eos_token_id` of `{folder / name}` is {found!r}, expected a token id or a list of them")
            return frozenset(ids)
    return frozenset()
