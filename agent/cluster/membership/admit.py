"""Refusals: which devices said Hello and are not taken in, and why. Rules, without I/O; membership.py asks.

A device is refused if its version is too far off, or if it was removed from the cluster. Such a device is
answered with a Hello, so that it can see the reason for itself, and is dialled again only seldom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepart.agent.wire.control import Hello
from edgepart.agent.wire.versions import refusal

RECALL_S = 30.0
"""A refused device is dialled again after this time. Only an update or a new certificate lets it in, so
dialling sooner would be in vain."""
SHOWN_S = 120.0
"""A refusal is shown for this long after the last Hello: four calls may fail before it disappears."""
MAX_REFUSALS = 256
"""The most refusals that are remembered; the oldest are forgotten. There is a limit because anybody with a
certificate can cause one."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A device that is not taken in."""

    node: str
    name: str
    version: str
    why: str
    at: float


class Refusals:
    """The refusals that one device has made."""

    def __init__(self, version: str) -> None:
        self.removed: Callable[[str], bool] = lambda node: False
        """Returns whether a node was removed from the cluster."""
        self._version = version
        self._known: dict[str, Refusal] = {}

    def look(self, hello: Hello, now: float) -> str:
        """Why the sender of this Hello is not taken in; "" if it is. A refusal is remembered."""
        why = "it was removed from the cluster" if self.removed(hello.node) else ""
        why = why or refusal(self._version, hello.version)
        self._known.pop(hello.node, None)
        if why:
            self._known[hello.node] = Refusal(hello.node, hello.name, hello.version, why, now)
            while len(self._known) > MAX_REFUSALS:
                del self._known[next(iter(self._known))]
        return why

    def why(self, node: str) -> str:
        """Why the node was refused when it last said Hello; "" if it was not."""
        known = self._known.get(node)
        return known.why if known else ""

    def recent_refusals(self, now: float) -> list[Refusal]:
        """The refusals that are still shown, sorted by name."""
        found = [refused for refused in self._known.values() if now - refused.at < SHOWN_S]
        return sorted(found, key=lambda refused: (refused.name, refused.node))
