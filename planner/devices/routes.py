"""Routes: by which hops data comes around slow links. Facts and rules; planner/lowering/detours.py sends data along
routes, and planner/search/choose_detours.py decides for which tensors that is worth it.

A route takes, to each target, the way whose narrowest link is the widest. What is sent is cut into **chunks**, which
are passed on while the next ones come. A **hop** brings one chunk from one place to another; it has a **round**, larger
than that of the hop which brought the chunk there. Whoever passes chunks on does so in the order of the rounds in which
they come, so that nobody waits for somebody who waits for him."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import sqrt

from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.plans.plan import GATEWAY

MOST_CHUNKS = 16
"""More make a detour hardly quicker, and are all messages that a device has to deal with."""

LEAST_BYTES = 4096
"""The smallest size of a chunk."""

SLOWER = 1.5
"""Times as slow as the widest way at least, for a link to be gone around."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One chunk from one place to another."""

    source: str
    """A device, or GATEWAY where it is the route's source."""
    target: str
    """A device, or GATEWAY where it is the route's only target."""
    chunk: int
    round: int


@dataclass(frozen=True)
class Route:
    """Brings every chunk to every target."""

    chunks: int
    hops: tuple[Hop, ...]
    """By round; each chunk comes to a place once."""


@dataclass(frozen=True)
class LinkTable:
    """The links between the devices of a cluster and its gateway, and the widest ways that were found along them."""

    cluster: Cluster
    gateway: str
    """The device that the gateway is taken to be on."""
    known: dict[tuple[str, frozenset[str]], dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """The routes that `widest` found."""

    @cached_property
    def is_even(self) -> bool:
        """Whether no link is much slower than another, so that nothing needs to go around one."""
        rates = [link.bytes_per_s for link in (*self.cluster.links.values(), self.cluster.default_link)]
        return max(rates) <= SLOWER * min(rates)

    def link(self, source: str, target: str) -> Link:
        return self.cluster.link(source or self.gateway, target or self.gateway)

    def rate(self, source: str, target: str) -> float:
        """Bytes a second; infinite on one box, where nothing has to go around."""
        here = (source or self.gateway) == (target or self.gateway)
        return float("inf") if here else self.link(source, target).bytes_per_s

    def width(self, way: Sequence[str]) -> float:
        """Bytes a second of its narrowest link."""
        return min((self.rate(one, two) for one, two in pairwise(way)), default=float("inf"))

    def order_from(self, source: str, places: Collection[str]) -> list[str]:
        """The places in the cluster's order, beginning after `source`, so that equal ways from different devices
        lead through different neighbours."""
        names = [device.name for device in self.cluster.devices]
        start = names.index(source or self.gateway) + 1
        order = {name: n for n, name in enumerate((*names[start:], *names[:start], GATEWAY))}
        return sorted(places, key=order.__getitem__)


def detour(
    source: str, targets: Sequence[str], nbytes: int, links: LinkTable, others: Collection[str]
) -> Route | None:
    """How `nbytes` come from `source` to the targets along the widest way to each, which may lead through `others`; None
    where the direct links are about as wide."""
    ways = widest(source, {*targets, *others} - {source, GATEWAY}, links)
    if GATEWAY in targets:
        if len(targets) > 1:
            return None
        ways[GATEWAY] = max(((*way, GATEWAY) for way in ways.values()), key=lambda way: _rank(way, links))
    if all(links.rate(source, name) * SLOWER >= links.width(ways[name]) for name in targets):
        return None
    return _along([ways[name] for name in targets], nbytes, links)


def widest(source: str, places: Collection[str], links: LinkTable) -> dict[str, tuple[str, ...]]:
    """By place, the way to it whose narrowest link is the widest; of those that are as wide, one with the fewest links."""
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
    """Chunk after chunk along ways that together are a tree. With S bytes over n links of B bytes/s, where each message
    costs a seconds besides, k chunks take S/B (1 + (n - 1)/k) + (k + n - 1) a seconds, which is least for
    k = sqrt((n - 1) S / B / a)."""
    legs = dict.fromkeys((one, two, depth) for way in ways for depth, (one, two) in enumerate(pairwise(way)))
    deep = max(depth for _, _, depth in legs)
    slowest = min((links.link(one, two) for one, two, _ in legs), key=lambda link: link.bytes_per_s)
    each_s = slowest.message_s or slowest.latency_s or 1e-6
    best = sqrt(deep * nbytes / slowest.bytes_per_s / each_s)
    count = max(1, min(MOST_CHUNKS, round(best), nbytes // LEAST_BYTES)) if deep else 1
    hops = [Hop(one, two, chunk, depth + chunk) for one, two, depth in legs for chunk in range(count)]
    return Route(count, tuple(sorted(hops, key=lambda hop: (hop.round, hop.chunk))))
