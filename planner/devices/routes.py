"""Routes: by which hops equal pieces come from one place to several. Facts and rules; what they are used for is in
relays.py, and which of them is worth it in choose_relays.py.

What is sent is cut into **chunks**. A **hop** brings one chunk from one place to another; it has a **round**, larger than
that of the hop which brought the chunk there. Whoever passes chunks on does so in the order of the rounds in which
they come, so that nobody waits for somebody who waits for him.

Shapes, with S bytes to n targets over links of B bytes/s, where each message costs a seconds besides:

- *chain*: from target to target, in k chunks, each passed on while the next one comes: S/B (1 + (n - 1)/k) + (k + n - 1) a;
- *tree*: in one chunk, from level to level: of k targets for each sender, k (S/B + a) a level. What a card sends to several
  it sends at the same time, so that all are late: a binomial tree, whose root sends most, is seldom the quickest;
- *scatter*: each target is sent another chunk, and the targets exchange them (van de Geijn): 2 S/B + 2 n a;
- *around*: by the widest way from link to link, in k chunks, where the direct link is slow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise, product
from math import sqrt
from operator import mul

from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.plans.plan import GATEWAY

MOST_CHUNKS = 16
"""More make a chain hardly quicker, and are all messages that a device has to deal with."""

LEAST_BYTES = 4096
"""Of a chunk."""

MOST_FANS = 6
"""Targets of one sender in a tree, at most: with more, what it saves is little."""

SLOWER = 1.5
"""Times as slow as the widest way at least, for a link to be gone around."""


class RouteShape(Enum):
    """See above."""

    CHAIN = "chain"
    TREE = "tree"
    SCATTER = "scatter"
    AROUND = "around"


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
    """What a route is chosen by."""

    cluster: Cluster
    gateway: str
    """The device that the gateway is taken to be on."""
    known: dict[tuple[str, frozenset[str]], dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """What `widest` found."""

    @cached_property
    def is_even(self) -> bool:
        """Whether no link is much slower than another, so that nothing needs to go around one."""
        rates = [link.bytes_per_s for link in (*self.cluster.links.values(), self.cluster.default_link)]
        return max(rates) <= SLOWER * min(rates)

    def link(self, source: str, target: str) -> Link:
        return self.cluster.link(source or self.gateway, target or self.gateway)

    def rate(self, source: str, target: str) -> float:
        """Bytes a second."""
        return self.link(source, target).bytes_per_s

    def width(self, way: Sequence[str]) -> float:
        """Bytes a second of its narrowest link."""
        return min((self.rate(one, two) for one, two in pairwise(way)), default=float("inf"))

    def turned(self, source: str, places: Collection[str]) -> list[str]:
        """The places in the cluster's order, beginning after `source`, so that chains from all devices are one ring."""
        names = [device.name for device in self.cluster.devices]
        start = names.index(source or self.gateway) + 1
        order = {name: n for n, name in enumerate((*names[start:], *names[:start], GATEWAY))}
        return sorted(places, key=order.__getitem__)


def route(
    shape: RouteShape,
    source: str,
    targets: Sequence[str],
    nbytes: int,
    ground: LinkTable,
    others: Collection[str],
) -> Route | None:
    """How `nbytes` come from `source` to the targets; None where the shape is nothing for them. `others` may pass on what
    goes around. What is on one box with the gateway is sent there straight."""
    here = [name for name in targets if source == GATEWAY and name == ground.gateway]
    there = ground.turned(source, [name for name in targets if name not in here])
    match shape:
        case RouteShape.AROUND:
            found = _around(source, there, nbytes, ground, others)
        case _ if len(there) < 2 or GATEWAY in there:
            found = None
        case RouteShape.CHAIN:
            found = _along([(source, *_line(source, there, ground))], nbytes, ground)
        case RouteShape.TREE:
            link = ground.link(source, there[0])
            each_s, late_s = nbytes / link.bytes_per_s + link.message_s, link.latency_s + link.message_s
            found = _tree((source, *there), fans(len(there), each_s, late_s))
        case RouteShape.SCATTER:
            found = _scattered(source, there)
    if found is None or not here:
        return found
    straight = (Hop(source, name, chunk, 0) for name in here for chunk in range(found.chunks))
    return Route(found.chunks, (*straight, *found.hops))


def _line(source: str, targets: Sequence[str], ground: LinkTable) -> list[str]:
    """Each the one that is best linked to the one before it; of equals, the next."""
    left, line = list(targets), [source]
    while left:
        best = max(left, key=lambda name: ground.rate(line[-1], name))
        left.remove(best)
        line.append(best)
    return line[1:]


@lru_cache(maxsize=1 << 10)
def fans(count: int, each_s: float, late_s: float) -> tuple[int, ...]:
    """By level of a tree that reaches `count` targets, to how many each one sends: the quickest of two to four levels,
    where each message keeps its sender busy for `each_s`, and is there `late_s` later."""
    tried = chain.from_iterable(product(range(1, MOST_FANS + 1), repeat=levels) for levels in (2, 3, 4))
    enough = (fan for fan in tried if sum(accumulate(fan, mul)) >= count)
    return min(enough, key=lambda fan: sum(one * each_s + late_s for one in fan), default=(1,) * count)


def _tree(places: Sequence[str], fan: Sequence[int]) -> Route:
    """The first of `places` is the root; the last level may not be full, and then is shared evenly."""
    hops: list[Hop] = []
    senders, left = [places[0]], list(places[1:])
    for level, width in enumerate(fan):
        reached = left[: width * len(senders)]
        del left[: len(reached)]
        hops += [Hop(senders[n % len(senders)], name, 0, level) for n, name in enumerate(reached)]
        senders = reached or senders
    return Route(1, tuple(hops))


def _scattered(source: str, targets: Sequence[str]) -> Route:
    first = [Hop(source, name, n, 0) for n, name in enumerate(targets)]
    rest = [Hop(name, other, n, 1) for n, name in enumerate(targets) for other in targets if other != name]
    return Route(len(targets), (*first, *rest))


def _around(
    source: str, targets: Sequence[str], nbytes: int, ground: LinkTable, others: Collection[str]
) -> Route | None:
    """Along the widest way to each target; None where the direct ones are about as wide."""
    if ground.is_even:
        return None
    ways = widest(source, {*targets, *others} - {source, GATEWAY}, ground)
    if targets == [GATEWAY]:
        ways[GATEWAY] = max(
            ((*way, GATEWAY) for way in ways.values()),
            key=lambda way: _rank(way, ground),
        )
    if GATEWAY in targets and len(targets) > 1:
        return None
    if all(ground.rate(source, name) * SLOWER > ground.width(ways[name]) for name in targets):
        return None
    return _along([ways[name] for name in targets], nbytes, ground)


def widest(source: str, places: Collection[str], ground: LinkTable) -> dict[str, tuple[str, ...]]:
    """By place, the way to it whose narrowest link is the widest; of those that are as wide, one with the fewest links."""
    key = source, frozenset(places)
    if key not in ground.known:
        ground.known[key] = _ways(source, places, ground)
    return dict(ground.known[key])


def _ways(source: str, places: Collection[str], ground: LinkTable) -> dict[str, tuple[str, ...]]:
    ways: dict[str, tuple[str, ...]] = {source: (source,)}
    left = ground.turned(source, places)
    while left:
        found = max(
            ((*way, name) for name in left for way in ways.values()),
            key=lambda way: _rank(way, ground),
        )
        ways[found[-1]] = found
        left.remove(found[-1])
    return ways


def _rank(way: Sequence[str], ground: LinkTable) -> tuple[float, int]:
    return ground.width(way), -len(way)


def _along(ways: Sequence[Sequence[str]], nbytes: int, ground: LinkTable) -> Route:
    """Chunk after chunk along ways that are a tree together."""
    links = dict.fromkeys((one, two, depth) for way in ways for depth, (one, two) in enumerate(pairwise(way)))
    deep = max(depth for _, _, depth in links)
    slowest = min((ground.link(one, two) for one, two, _ in links), key=lambda link: link.bytes_per_s)
    each_s = slowest.message_s or slowest.latency_s or 1e-6
    best = sqrt(deep * nbytes / slowest.bytes_per_s / each_s)
    count = max(1, min(MOST_CHUNKS, round(best), nbytes // LEAST_BYTES)) if deep else 1
    hops = [Hop(one, two, chunk, depth + chunk) for one, two, depth in links for chunk in range(count)]
    return Route(count, tuple(sorted(hops, key=lambda hop: (hop.round, hop.chunk))))
