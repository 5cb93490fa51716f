"""Refusals: who said Hello and is not taken in, and why. Rules, without I/O; membership.py asks.

A device of a version that is too far off, and one that was removed from the cluster. Both are answered with a Hello, so
that they can see for themselves why, and are called again only seldom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepart.agent.wire.control import Hello
from edgepart.agent.wire.versions import refusal

AGAIN_S = 30.0
"""Who was refused is called again after this."""
SHOWN_S = 120.0
"""A refusal is shown for so long after the last one."""
MOST = 256
"""That are remembered."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One device that is not taken in."""

    node: str
    name: str
    version: str
    why: str
    at: float


class Refusals:
    """Of one device."""

    def __init__(self, version: str) -> None:
        self.removed: Callable[[str], bool] = lambda node: False
        """Whether a node was removed from the cluster."""
        self._version = version
        self._known: dict[str, Refusal] = {}

    def look(self, hello: Hello, now: float) -> str:
        """Why the sender is not taken in; "" where it is."""
        why = "it was removed from the cluster" if self.removed(hello.node) else ""
        why = why or refusal(self._version, hello.version)
        self._known.pop(hello.node, None)
        if why:
            self._known[hello.node] = Refusal(hello.node, hello.name, hello.version, why, now)
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return why

    def why(self, node: str) -> str:
        """Why it was refused when it last said Hello; "" where it was not."""
        known = self._known.get(node)
        return known.why if known else ""

    def recent(self, now: float) -> list[Refusal]:
        """Sorted by name."""
        found = [refused for refused in self._known.values() if now - refused.at < SHOWN_S]
        return sorted(found, key=lambda refused: (refused.name, refused.node))
