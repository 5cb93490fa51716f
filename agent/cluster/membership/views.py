"""Views: which devices members say that they see, and which members cannot reach each other. Rules, without
I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class MemberViews:
    """The newest view of each member."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._reached: dict[str, frozenset[str]] = {}
        """The nodes that each member hears."""
        self._changed_since_asked = False
        self._broken: frozenset[tuple[str, str]] | None = None

    def take(self, sender: str, reached: frozenset[str]) -> None:
        """Take a member's view. `reached`: the nodes that it shows as alive."""
        if self._reached.get(sender) != reached:
            self._reached[sender] = reached
            self._changed_since_asked, self._broken = True, None

    def forget(self, node: str) -> None:
        """Drop a member's view."""
        self._reached.pop(node, None)
        self._broken = None

    def has_changed(self) -> bool:
        """Whether any view has changed since this was last asked."""
        news, self._changed_since_asked = self._changed_since_asked, False
        return news

    def outdated(self) -> None:
        """Note that the members have changed, or the devices that this device hears."""
        self._broken = None

    def broken_links(
        self, inside: Collection[str], alive: Iterable[str], suspects: Iterable[str]
    ) -> frozenset[tuple[str, str]]:
        """The pairs of members of which at least one cannot reach the other, smaller id first. The result
        stays the same until `take`, `forget` or `outdated` is called."""
        if self._broken is None:
            everybody = frozenset(inside)
            pairs = {(self._me, node) for node in suspects}
            for node in alive:
                if node in self._reached:
                    away = everybody - self._reached[node] - {node, self._me}
                    pairs |= {(node, other) for other in away}
            self._broken = frozenset((min(pair), max(pair)) for pair in pairs)
        return self._broken
