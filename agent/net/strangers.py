"""Strangers: the connections of those who have not shown yet that they are members, few at once. Rules and a lock: time is
an argument, and a connection is whatever can be cut.

When all places are taken, whoever has most of them gives one up: the address with the most connections loses the one that
has waited longest. So one box that holds half-open connections, however many, keeps no member out: a member needs a place
for the milliseconds of a handshake.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stranger:
    host: str
    since: float
    cut: Callable[[], object]
    """Ends the connection; its thread notices. Any thread."""


class Strangers:
    """At most `places` at a time. All methods are for any thread."""

    def __init__(self, places: int, spared_s: float) -> None:
        """Nobody gives up a place before `spared_s`. Longer suits slow boards; shorter gives members of a cluster under
        attack a place sooner."""
        self._places = places
        self._spared_s = spared_s
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Stranger] = {}

    def admit(self, key: Hashable, stranger: Stranger) -> bool:
        """Whether there is a place for it, perhaps one that somebody else gave up."""
        with self._lock:
            victim = None
            if len(self._waiting) >= self._places:
                victim = self._victim(stranger.host, stranger.since)
                if victim is None:
                    return False
            loser = self._waiting.pop(victim) if victim is not None else None
            self._waiting[key] = stranger
        if loser is not None:
            loser.cut()
        return True

    def leave(self, key: Hashable) -> None:
        """It is a member's, or has ended; again is no harm."""
        with self._lock:
            self._waiting.pop(key, None)

    def cut_all(self) -> None:
        with self._lock:
            waiting = list(self._waiting.values())
        for stranger in waiting:
            stranger.cut()

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting)

    def _victim(self, host: str, now: float) -> Hashable | None:
        """Choose whose place a newcomer takes: whoever waits longest of those with the most places. None if the
        newcomer has as many as any."""
        held = Counter(stranger.host for stranger in self._waiting.values())
        most = max(held.values())
        if held[host] >= most:
            return None
        crowd = {name for name, count in held.items() if count == most}
        since, key = min(
            ((stranger.since, key) for key, stranger in self._waiting.items() if stranger.host in crowd),
            key=lambda pair: pair[0],
        )
        return key if now - since >= self._spared_s else None
