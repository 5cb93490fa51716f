"""Text stream: the text of a growing sequence of tokens, piece by piece, up to the first stop text. A state machine.

Some tokens are only a part of a character, and a text that was told cannot be taken back. So text waits that ends in a part
of a character, or that may be the begin of a stop text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgepart.planner.errors import RequestError

Decode = Callable[[Sequence[int]], str]

BROKEN = "\ufffd"
"""What decoders put where bytes are not a character, or not yet."""
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1000
PATIENT_TOKENS = 16
"""Beyond this many tokens without new text, not every token is worth decoding all of them again."""


def check_stop(stop: Sequence[str]) -> None:
    """Raises RequestError if these cannot be stop texts."""
    if len(stop) > MOST_STOPS:
        raise RequestError(
            f"there are {len(stop)} stop texts, and {MOST_STOPS} are allowed; nothing was generated"
        )
    for text in stop:
        if not 0 < len(text) <= MOST_STOP_CHARACTERS:
            raise RequestError(
                f"a stop text has {len(text)} characters, and must have 1 to {MOST_STOP_CHARACTERS}; "
                "nothing was generated"
            )


class TextStream:
    """The text of one sequence.

    >>> stream = TextStream(lambda tokens: bytes(tokens).decode(errors="replace"), ["END"])
    >>> [stream.push(token) for token in "aéEN".encode()], stream.finish()
    (['a', '', 'é', '', ''], 'EN')
    """

    def __init__(self, decode: Decode, stop: Sequence[str] = ()) -> None:
        """`decode` returns the text of tokens that stand together. Raises what check_stop raises."""
        check_stop(stop)
        self._decode = decode
        self._stop = tuple(stop)
        self._window: list[int] = []
        """The tokens whose text is known only in part, after some that were decoded already: decoders treat the first token
        differently, as they leave its space out."""
        self._known_tokens = 0
        """The number of tokens at the begin of the window whose text is known."""
        self._known_characters = 0
        """The number of characters of that text."""
        self._waiting = ""
        """Text that is known but not told, because it may be the begin of a stop text."""
        self.stopped = False
        """Whether a stop text came. Nothing is told after it."""

    def push(self, token: int) -> str:
        """Add a token, and return the text that is certain now."""
        if self.stopped:
            return ""
        self._window.append(token)
        new = len(self._window) - self._known_tokens
        if new % (1 + new // PATIENT_TOKENS):
            return ""
        text = self._decode(self._window)
        if text.endswith(BROKEN) or len(text) <= self._known_characters:
            return ""
        certain = self._cut(text[self._known_characters :])
        self._window = self._window[self._known_tokens :]
        self._known_tokens = len(self._window)
        self._known_characters = len(self._decode(self._window))
        return certain

    def finish(self) -> str:
        """Return the rest of the text, after the last token."""
        if self.stopped:
            return ""
        text = self._decode(self._window) if len(self._window) > self._known_tokens else ""
        certain = self._cut(text[self._known_characters :])
        rest, self._waiting, self._window, self._known_tokens = self._waiting, "", [], 0
        return certain + rest

    def _cut(self, text: str) -> str:
        """Return what can be told once this text follows what waits."""
        text = self._waiting + text
        # Of all stop texts, the one that is complete first counts, so that the borders of the tokens make no difference.
        ends = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._waiting = True, ""
            return text[: min(ends)[1]]
        self._waiting = text[len(text) - self._begun(text) :]
        return text[: len(text) - len(self._waiting)]

    def _begun(self, text: str) -> int:
        """Return how many characters at the end of the text are the begin of a stop text."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stop):
                return count
        return 0
