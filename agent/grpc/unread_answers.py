"""Unread answers: bounds the memory of the answers that clients have not read yet. Rules: no door.

The library cannot take an answer back: it keeps the bytes until the client has read them or is gone. So an answer for which
there is no memory is refused, where HTTP gives up the oldest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from edgepart.planner.errors import Unavailable


class UnreadAnswers:
    """Accounts for the memory of answers that are being written."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._by_client: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        return self._by_client.total()

    @contextmanager
    def holding(self, client: str, nbytes: int) -> Iterator[None]:
        """Account for an answer to `client` until the block ends. Raises Unavailable if all clients' answers would take
        more than the limit, or several of this client's more than half of it."""
        mine = self._by_client[client]
        if self.held_bytes + nbytes > self._most_bytes or (mine and mine + nbytes > self._most_bytes // 2):
            raise Unavailable(
                f"{self.held_bytes} bytes of answers wait for clients to read them, {mine} of them for you: read those "
                f"first; this one of {nbytes} bytes is dropped"
            )
        self._by_client[client] += nbytes
        try:
            yield
        finally:
            self._by_client[client] -= nbytes
            if not self._by_client[client]:
                del self._by_client[client]
