"""Token buckets: how often each client may come. Rules: no door; time is an argument."""

from __future__ import annotations

from collections import OrderedDict

MOST_CLIENTS = 4096
"""Buckets at once; beyond it newcomers share one, so that somebody with many addresses takes no more memory."""
_OTHERS = ""


class Buckets:
    """Each client has `burst` tokens at first and gets `rate` of them a second, up to `burst`."""

    def __init__(self, rate: float, burst: float, most: int = MOST_CLIENTS) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("a bucket needs a rate over 0 and room for a token")
        self._rate = rate
        self._burst = burst
        self._most = most
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By client: tokens, and when that was so; who came last stands last."""

    def take(self, client: str, now: float) -> float:
        """0.0 where there was a token for it; else the seconds until there is one."""
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
        """Those whose buckets are full again: they are as new."""
        while self._held:
            client, (tokens, at) = next(iter(self._held.items()))
            if tokens + (now - at) * self._rate < self._burst:
                return
            del self._held[client]
