"""Tokenizer: turns text into tokens and tokens into text, as the model's `tokenizer.json` says. Door: the package
tokenizers, which is an extra (`edgepart[text]`) and imported only when it is used.

Encoding takes time in proportion to the text, and lets other threads run meanwhile; call it from a thread for long texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.planner.errors import ModelError, NotInstalled, RequestError
from edgepart.planner.model.foreign_formats import POINTER, is_pointer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_TEXT_BYTES = 4 << 20
"""The largest text that is encoded: several times what fits the context of any model, and encoded in seconds."""
MOST_FILE_BYTES = 64 << 20
"""The largest file that is read: twice what the largest vocabularies take."""
MOST_TOKEN = 2**31 - 1


class TextTokenizer:
    """The tokenizer of one model; any thread may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """The number of tokens it knows. A model may have more logits, as exporters round their number up."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the text's tokens; `special` adds those that the model wants around a text, as its begin. Names of special
        tokens in the text become these tokens. Raises RequestError if the text is too long, or is no Unicode text."""
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text has half a character at place {error.start} (a lone surrogate); nothing was generated"
            ) from None
        if size > MOST_TEXT_BYTES:
            raise RequestError(
                f"the text has {size} bytes, and {MOST_TEXT_BYTES} are allowed; shorten it. Nothing was generated"
            )
        with _panics_are(
            RequestError, "the model's tokenizer cannot encode this text", "nothing was generated"
        ):
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens that stand together; `special` shows special tokens too. Tokens that the tokenizer does
        not know have no text. Raises RequestError if the tokenizer fails at these tokens."""
        known = [token for token in tokens if 0 <= token <= MOST_TOKEN]
        with _panics_are(
            RequestError, "the model's tokenizer cannot decode what it generated", "the text ends here"
        ):
            return self._tokenizer.decode(known, skip_special_tokens=not special)

    def token_of(self, name: str) -> int | None:
        """Return the token whose name this is, such as "</s>"; None if there is none."""
        return self._tokenizer.token_to_id(name)

    def end_tokens(self, ids: Iterable[int], names: Iterable[str]) -> frozenset[int]:
        """Return the tokens at which a text ends: `ids`, and those that the tokenizer has under `names`."""
        named = {self.token_of(name) for name in names}
        return frozenset(ids) | {token for token in named if token is not None}


def parse_tokenizer(data: bytes, name: str) -> TextTokenizer:
    """The tokenizer in the bytes of the file `name`. Raises NotInstalled without the package tokenizers, and ModelError if
    the bytes are no tokenizer."""
    try:
        tokenizers = import_module("tokenizers")
    except ImportError as error:
        raise NotInstalled(
            "text needs the package tokenizers, which is not installed: pip install 'edgepart[text]'"
        ) from error
    hint = "save the tokenizer again with `save_pretrained` of transformers. Nothing was stored"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{name}: it is not UTF-8 ({error}); {hint}") from error
    with _panics_are(ModelError, f"{name}: it is not a tokenizer that can be used", hint):
        tokenizer: Tokenizer = tokenizers.Tokenizer.from_str(text)
        # Some files were saved with the settings of training, which would silently shorten prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return TextTokenizer(tokenizer)


def read_limited(path: Path) -> bytes:
    """Return what is in a file beside a model. Raises ModelError if it cannot be read, is too large, or is not there but
    for a pointer to it."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path.name}: it cannot be read ({error}). Nothing was stored") from error
    if len(data) > MOST_FILE_BYTES:
        raise ModelError(
            f"{path.name}: it has more than {MOST_FILE_BYTES} bytes, and no file of this name should; take it out of the "
            "folder, or download it again. Nothing was stored"
        )
    if is_pointer(data):
        raise ModelError(f"{path.name}: {POINTER}. Nothing was stored")
    return data


@contextmanager
def _panics_are(kind: type[ModelError | RequestError], what: str, then: str) -> Iterator[None]:
    """Make errors of the package this kind. It raises plain Exception, and on its own faults a PanicException, which is no
    Exception."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what} ({str(error)[:300]}); {then}") from error
