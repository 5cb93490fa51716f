"""Places: who may come in while others are being served, so that nobody takes them all. Rules: no clock, no socket.

There are so many places. Half of them are for whoever comes first; the others are shared, so that a client has no more of
them than its part; and the last few are kept for clients that have none. Who is refused is told when a place may be free,
by how fast they have become free lately.
"""

from __future__ import annotations

from collections import Counter

from edgepart.planner.errors import Unavailable

KEPT = 8
"""One place in so many is for clients that have none yet."""
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 30.0
LATELY = 16
"""So many departures weigh in how fast places become free."""


class Places:
    """Counts requests by client. A client is any text: its address."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._by_client: Counter[str] = Counter()
        self._left_at: float | None = None
        self._between_s = 0.0
        """From one departure to the next while all places were taken, lately."""

    def check(self, client: str) -> None:
        """Unavailable where there is no place for a request of `client` now."""
        if (why := self._refusal(client)) is not None:
            raise Unavailable(why, self.retry_after_s)

    def take(self, client: str) -> None:
        """As `check`; then the place is taken until `leave`."""
        self.check(client)
        self.taken += 1
        self._by_client[client] += 1

    def leave(self, client: str, now: float) -> None:
        """A request of `client` was answered."""
        if self._left_at is not None and 2 * self.taken > self.total:
            self._between_s += (now - self._left_at - self._between_s) / LATELY
        self._left_at = now
        self.taken -= 1
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    @property
    def retry_after_s(self) -> float:
        """About when those that are there have left."""
        return min(max(self.taken * self._between_s, LEAST_RETRY_S), MOST_RETRY_S)

    def share(self, client: str) -> int:
        """The places that `client` may have while more than half are taken."""
        clients = len(self._by_client) + (client not in self._by_client)
        return max(1, (self.total - self.total // KEPT) // clients)

    def _refusal(self, client: str) -> str | None:
        mine = self._by_client.get(client, 0)
        if self.taken >= self.total:
            return f"{self.taken} requests are in flight here, and no more are taken now"
        if mine and 2 * self.taken >= self.total and mine >= self.share(client):
            return f"{mine} requests of yours are in flight here, which is your part while others are served, too"
        return None
