"""Strangers: the connections that have not yet proved to be a member's, of which only a few are allowed at once. Rules and
a lock: time is an argument, and a connection is a function that cuts it.

When all places are taken, the address with the most connections loses the one that has waited longest. Therefore a box
with any number of half-open connections keeps no member out: a member needs a place only for the milliseconds of a
handshake.
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
    """Ends the connection, which its thread notices. Any thread may call it."""


class Strangers:
    """Admits at most `places` strangers at a time. Any thread may call any method."""

    def __init__(self, places: int, spared_s: float) -> None:
        """Set up the places. No stranger loses its place within `spared_s` seconds. A longer time suits slow boards; a
        shorter one gives members of a cluster under attack a place sooner."""
        self._places = places
        self._spared_s = spared_s
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Stranger] = {}

    def admit(self, key: Hashable, stranger: Stranger) -> bool:
        """Whether the stranger gets a place, perhaps one that is taken from another stranger."""
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
        """Free the place of a connection that proved to be a member's or has ended. A second call does no harm."""
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
        """Return the stranger whose place a newcomer takes: the one that has waited longest, of the hosts with the most
        places. None if the newcomer's host has as many as any other."""
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
