"""Routes: the hops by which data goes around slow links. Facts and rules. planner/lowering/detours.py sends
data along routes, and planner/search/choose_detours.py decides which tensors take them.

A way is a path of links, and its width is the rate of its slowest link. A route takes the widest way to each
target. The data is cut into **chunks**, so that a device passes one chunk on while it receives the next. A
**hop** brings one chunk from one place to another. The **round** of a hop is larger than the round of the hop
that brought the chunk to its source. A device passes chunks on in the order of the rounds in which they
arrive, so that no devices wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import sqrt

from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.plans.plan import GATEWAY

MOST_CHUNKS = 16
"""The largest number of chunks. More chunks hardly shorten a detour, and each is one more message that a
device must handle."""

LEAST_BYTES = 4096
"""The smallest chunk, in bytes."""

SLOWER = 1.5
"""A detour is taken only if the widest way is more than this many times as wide as the direct link."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The step of a route that brings one chunk from one place to another."""

    source: str
    """A device, or GATEWAY if the gateway is the route's source."""
    target: str
    """A device, or GATEWAY if the gateway is the route's only target."""
    chunk: int
    round: int


@dataclass(frozen=True)
class Route:
    """The hops that bring every chunk to every target."""

    chunks: int
    hops: tuple[Hop, ...]
    """Sorted by round. Each chunk arrives at each place once."""


@dataclass(frozen=True)
class LinkTable:
    """The links between the devices of a cluster and its gateway, and the widest ways found so far."""

    cluster: Cluster
    gateway: str
    """The device on which the gateway is assumed to be."""
    known: dict[tuple[str, frozenset[str]], dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """The results of `widest`, by source and places."""

    @cached_property
    def is_even(self) -> bool:
        """Whether no link is much slower than another, so that no detour is worth while."""
        rates = [link.bytes_per_s for link in (*self.cluster.links.values(), self.cluster.default_link)]
        return max(rates) <= SLOWER * min(rates)

    def link(self, source: str, target: str) -> Link:
        return self.cluster.link(source or self.gateway, target or self.gateway)

    def rate(self, source: str, target: str) -> float:
        """The bytes per second from `source` to `target`; infinite if both are on one box, where no detour is
        needed."""
        here = (source or self.gateway) == (target or self.gateway)
        return float("inf") if here else self.link(source, target).bytes_per_s

    def width(self, way: Sequence[str]) -> float:
        """The bytes per second of the slowest link of `way`; infinite if it has no link."""
        return min((self.rate(one, two) for one, two in pairwise(way)), default=float("inf"))

    def order_from(self, source: str, places: Collection[str]) -> list[str]:
        """The places in the cluster's order, beginning after `source`, so that equally good ways from
        different devices lead through different neighbours."""
        names = [device.name for device in self.cluster.devices]
        start = names.index(source or self.gateway) + 1
        order = {name: n for n, name in enumerate((*names[start:], *names[:start], GATEWAY))}
        return sorted(places, key=order.__getitem__)


def detour(
    source: str, targets: Sequence[str], nbytes: int, links: LinkTable, others: Collection[str]
) -> Route | None:
    """The route of `nbytes` from `source` along the widest way to each target; ways may lead through
    `others`. None if the direct links are about as wide, or if the gateway is one of several targets."""
    ways = widest(source, {*targets, *others} - {source, GATEWAY}, links)
    if GATEWAY in targets:
        if len(targets) > 1:
            return None
        ways[GATEWAY] = max(((*way, GATEWAY) for way in ways.values()), key=lambda way: _rank(way, links))
    if all(links.rate(source, name) * SLOWER >= links.width(ways[name]) for name in targets):
        return None
    return _along([ways[name] for name in targets], nbytes, links)


def widest(source: str, places: Collection[str], links: LinkTable) -> dict[str, tuple[str, ...]]:
    """Maps each place to the widest way from `source` to it; of equally wide ways, to one with the fewest links."""
    key = source, frozenset(places)
    if key not in links.known:
        links.known[key] = _ways(source, places, links)
    return dict(links.known[key])


def _ways(source: str, places: Collection[str], links: LinkTable) -> dict[str, tuple[str, ...]]:
    ways: dict[str, tuple[str, ...]] = {source: (source,)}
    left = links.order_from(source, places)
    while left:
        found = max(
            ((*way, name) for name in left for way in ways.values()),
            key=lambda way: _rank(way, links),
        )
        ways[found[-1]] = found
        left.remove(found[-1])
    return ways


def _rank(way: Sequence[str], links: LinkTable) -> tuple[float, int]:
    return links.width(way), -len(way)


def _along(ways: Sequence[Sequence[str]], nbytes: int, links: LinkTable) -> Route:
    """The route of chunk after chunk along `ways`, which together form a tree. If each message has a fixed
    cost of a seconds, S bytes in k chunks over n links of B bytes/s take S/B (1 + (n - 1)/k) + (k + n - 1) a
    seconds. This time is least for k = sqrt((n - 1) S / B / a)."""
    legs = dict.fromkeys((one, two, depth) for way in ways for depth, (one, two) in enumerate(pairwise(way)))
    deep = max(depth for _, _, depth in legs)
    slowest = min((links.link(one, two) for one, two, _ in legs), key=lambda link: link.bytes_per_s)
    each_s = slowest.message_s or slowest.latency_s or 1e-6
    best = sqrt(deep * nbytes / slowest.bytes_per_s / each_s)
    count = max(1, min(MOST_CHUNKS, round(best), nbytes // LEAST_BYTES)) if deep else 1
    hops = [Hop(one, two, chunk, depth + chunk) for one, two, depth in legs for chunk in range(count)]
    return Route(count, tuple(sorted(hops, key=lambda hop: (hop.round, hop.chunk))))
