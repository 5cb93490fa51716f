"""What members say they see, and which of them cannot reach each other. Rules, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from edgepart.agent.control import ALIVE, Sighting


def shown(sightings: Iterable[Sighting]) -> list[tuple[str, str]]:
    """What counts of a view when asked whether it has changed."""
    return [(sighting.node, sighting.status) for sighting in sightings]


def reached(sightings: Iterable[Sighting]) -> list[str]:
    """Whom they show as alive."""
    return [sighting.node for sighting in sightings if sighting.status == ALIVE]


class Views:
    """The newest one of each member."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._reached: dict[str, frozenset[str]] = {}
        """By member, those that it hears, itself and this device included."""
        self._news = False
        self._broken: frozenset[tuple[str, str]] | None = None

    def take(self, sender: str, reached: Collection[str]) -> None:
        """`reached`: whom its view shows as alive."""
        told = frozenset((*reached, sender, self._me))
        if self._reached.get(sender) != told:
            self._reached[sender] = told
            self._news, self._broken = True, None

    def forget(self, node: str) -> None:
        """What it said is void."""
        self._reached.pop(node, None)
        self._broken = None

    def changed(self) -> bool:
        """Whether any has changed since this was asked last."""
        news, self._news = self._news, False
        return news

    def outdated(self) -> None:
        """The members are others, or this device hears others."""
        self._broken = None

    def broken_links(
        self, inside: Collection[str], alive: Iterable[str], suspects: Iterable[str]
    ) -> frozenset[tuple[str, str]]:
        """Pairs of members of which at least one cannot reach the other, smaller id first. The same until `take`, `forget`
        or `outdated`."""
        if self._broken is None:
            everybody = frozenset(inside)
            pairs = {(self._me, node) for node in suspects}
            for node in alive:
                if node in self._reached:
                    pairs |= {(node, other) for other in everybody - self._reached[node]}
            self._broken = frozenset((min(pair), max(pair)) for pair in pairs)
        return self._broken
