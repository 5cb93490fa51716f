"""Ways: those of a cluster that are used, each opened when it is first asked for, and what they go through. Rules
only; what moves on them is planner/simulation/network.py's."""

from __future__ import annotations

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.simulation.fair_share import Shared, Way


class Ways:
    """Of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ways: list[Way] = []
        """The way of code -1 is the first, and so on."""
        self.shared: dict[tuple[str, str], Shared] = {}
        """By kind and name."""
        self._by_ends: dict[tuple[str, str], Way] = {}

    def way(self, source: str, target: str) -> Way:
        """The one way between two different devices."""
        found = self._by_ends.get((source, target))
        if found is None:
            found = self._by_ends[source, target] = self._open(source, target)
        return found

    def loads_s(self) -> dict[tuple[str, ...], float]:
        """What is announced, in seconds that it keeps cards, media and links busy, at least."""
        crossing = dict.fromkeys(self.shared.values(), 0.0)
        for way in self.ways:
            for one, count in way.shared:
                crossing[one] += way.announced * count
        found: dict[tuple[str, ...], float] = {
            (one.kind, one.name): nbytes / one.bytes_per_s for one, nbytes in crossing.items()
        }
        found.update({("link", way.source, way.target): way.announced / way.alone for way in self.ways})
        return found

    def _open(self, source: str, target: str) -> Way:
        link = self.cluster.link(source, target)
        cards = self.cluster.card_bytes_per_s
        send = self._shared("send", source, cards[source])
        receive = self._shared("receive", target, cards[target])
        crossed = [(send, 1), (receive, 1)]
        alone = min(link.bytes_per_s, send.bytes_per_s, receive.bytes_per_s)
        for medium in self.cluster.media:
            if count := medium.crossings(source, target):
                crossed.append((self._shared("medium", medium.name, medium.bytes_per_s), count))
                alone = min(alone, medium.bytes_per_s / count)
        way = Way(source, target, -1 - len(self.ways), alone, tuple(crossed))
        way.fixed, way.after_s = link.message_s * alone, link.latency_s + link.message_s
        for one, _ in crossed:
            if alone < one.slowest:
                one.slowest = alone
        self.ways.append(way)
        return way

    def _shared(self, kind: str, name: str, bytes_per_s: float) -> Shared:
        found = self.shared.get((kind, name))
        if found is None:
            found = self.shared[kind, name] = Shared(kind, name, bytes_per_s)
        return found
