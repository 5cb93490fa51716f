"""Token buckets: limit how often each client may do something. Rules: no door; time is an argument."""

from __future__ import annotations

from collections import OrderedDict

MOST_CLIENTS = 4096
"""The most buckets at once; further clients share one bucket, so that a client with many addresses takes no more memory."""
_OTHERS = ""


class Buckets:
    """A bucket for each client: it starts with `burst` tokens and gets `rate` tokens a second, up to `burst`."""

    def __init__(self, rate: float, burst: float, most: int = MOST_CLIENTS) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("a bucket needs a rate over 0 and room for a token")
        self._rate = rate
        self._burst = burst
        self._most = most
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The tokens of each client and the time of that count; the client that came last is the last entry."""

    def take(self, client: str, now: float) -> float:
        """Take a token of this client. Returns 0.0 if there was one, else the seconds until there is."""
        if client not in self._held:
            self._forget(now)
            if len(self._held) >= self._most:
                client = _OTHERS
        tokens, at = self._held.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + max(0.0, now - at) * self._rate)
        taken = tokens >= 1
        self._held[client] = (tokens - 1 if taken else tokens, max(at, now))
        self._held.move_to_end(client)
        return 0.0 if taken else (1 - tokens) / self._rate

    def __len__(self) -> int:
        return len(self._held)

    def _forget(self, now: float) -> None:
        """Forget clients whose buckets are full again: they are like new ones."""
        while self._held:
            client, (tokens, at) = next(iter(self._held.items()))
            if tokens + (now - at) * self._rate < self._burst:
                return
            del self._held[client]
