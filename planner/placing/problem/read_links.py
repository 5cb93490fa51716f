"""The links of a workload file, and the media that they share. Rules only: no file is opened here.

Without a default link, devices that are not linked send over others: by the widest way, at the rate of its slowest link,
with the latencies of all (Moirai, section 3.3). Such a transfer also occupies the devices on the way, each of which sends
and receives one transfer at a time, and the media that it crosses. What crosses a medium more than once has that much less
of its rate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from edgepart.planner.errors import ModelError
from edgepart.planner.placing.problem import fields
from edgepart.planner.placing.problem.workload import Pair, SharedMedium
from edgepart.planner.widest_way import Measures, find_widest_way

Table = tuple[tuple[float, ...], ...]
Ways = Mapping[Pair, tuple[int, ...]]
"""The machines on the way from one to another, both included."""

LINK_KEYS = frozenset({"bytes_per_s", "latency_s"})
"""The keys of a link, besides its ends."""
BACK = "up_bytes_per_s"
"""The key of a link's bytes a second from `b` to `a`, where they differ from those from `a` to `b`."""
MEDIUM_KEYS = frozenset({"name", "devices", "links"})
MOST_MEDIA = 64
"""The most media of a file: every transfer is checked against each."""


@dataclass(frozen=True)
class WorkloadLinks:
    """The links between all devices."""

    latency_s: Table
    bytes_per_s: Table
    """Both [from][to]."""
    media: tuple[SharedMedium, ...]


def read_links(root: Mapping[str, Any], numbers: Mapping[str, int]) -> WorkloadLinks:
    """Return the links of a document. `numbers` has the devices' indices by name. Raises ModelError, which names the
    place, for anything that is wrong."""
    given = dict(_given_links(root, numbers))
    every = [(a, b) for a in numbers.values() for b in numbers.values() if a != b]
    if "default_link" in root:
        entry = fields.mapping(root["default_link"], "default_link")
        default = _link(entry, "default_link", "bytes_per_s")
        given = {pair: given.get(pair, default) for pair in every}
    names = tuple(numbers)
    ways = _find_ways(given, every, names)
    shared = dict(_given_media(root, numbers))
    links = {pair: _join(way, given, shared.values()) for pair, way in ways.items()}
    media = tuple(
        SharedMedium(
            name, frozenset(pair for pair, way in ways.items() if not hops.isdisjoint(pairwise(way)))
        )
        for name, hops in (*shared.items(), *_relay_sides(ways, names))
    )
    machines = range(len(names))
    return WorkloadLinks(
        tuple(tuple(0.0 if a == b else links[a, b][1] for b in machines) for a in machines),
        tuple(tuple(inf if a == b else links[a, b][0] for b in machines) for a in machines),
        media,
    )


def _find_ways(given: Mapping[Pair, Measures], every: Collection[Pair], names: tuple[str, ...]) -> Ways:
    """Return the way between each two devices: their link, or the widest way over others."""
    nearby: dict[int, dict[int, Measures]] = {}
    for (a, b), measures in given.items():
        nearby.setdefault(a, {})[b] = measures
    ways = {pair: pair if pair in given else find_widest_way(nearby, *pair) for pair in every}
    for (here, there), way in ways.items():
        if not way:
            raise ModelError(
                f"workload: no link from {names[here]!r} to {names[there]!r}, over other devices neither, and no "
                "'default_link'"
            )
    return ways


def _join(
    way: tuple[int, ...], given: Mapping[Pair, Measures], shared: Collection[frozenset[Pair]]
) -> Measures:
    """Return what a way amounts to."""
    hops = list(pairwise(way))
    rates = [min(given[hop][0] for hop in hops)]
    for pairs in shared:
        if len(again := [hop for hop in hops if hop in pairs]) > 1:
            rates.append(1 / sum(1 / given[hop][0] for hop in again))
    return min(rates), sum(given[hop][1] for hop in hops)


def _relay_sides(ways: Ways, names: tuple[str, ...]) -> Iterator[tuple[str, frozenset[Pair]]]:
    """Yield the two sides of each device that passes on what others send, as something that transfers share."""
    for relay in sorted({machine for way in ways.values() for machine in way[1:-1]}):
        others = [machine for machine in range(len(names)) if machine != relay]
        yield f"what {names[relay]} sends", frozenset((relay, other) for other in others)
        yield f"what {names[relay]} receives", frozenset((other, relay) for other in others)


def _given_links(root: Mapping[str, Any], numbers: Mapping[str, int]) -> Iterator[tuple[Pair, Measures]]:
    seen: set[Pair] = set()
    entries = fields.listed(root, "links", "workload") if "links" in root else []
    for number, value in enumerate(entries):
        where = f"links[{number}]"
        entry = fields.mapping(value, where)
        a, b = (fields.known_number(fields.text(entry, end, where), numbers, where, "device") for end in "ab")
        if a == b or (a, b) in seen:
            raise ModelError(
                f"{where}: {entry['a']!r} and {entry['b']!r} {'are one device' if a == b else 'are linked already'}"
            )
        seen |= {(a, b), (b, a)}
        yield (a, b), _link(entry, where, "bytes_per_s")
        yield (b, a), _link(entry, where, BACK if BACK in entry else "bytes_per_s")


def _link(entry: Mapping[str, Any], where: str, key: str) -> Measures:
    known = LINK_KEYS if where == "default_link" else LINK_KEYS | {"a", "b", BACK}
    if unknown := sorted(entry.keys() - known):
        raise ModelError(
            f"{where}: a link has no {unknown[0]!r:.40}; it has {', '.join(sorted(known))}. 'bytes_per_s' is the rate from "
            f"a to b, and {BACK!r} that from b to a where it differs"
        )
    rate = fields.number(entry, key, where)
    if not rate:
        raise ModelError(
            f"{where}: nothing moves at 0 under {key!r}; leave the link out, or say what it does"
        )
    return rate, fields.number(entry, "latency_s", where, default=0.0)


def _given_media(
    root: Mapping[str, Any], numbers: Mapping[str, int]
) -> Iterator[tuple[str, frozenset[Pair]]]:
    """Yield the name of each medium and the pairs of devices whose link crosses it."""
    seen: set[str] = set()
    entries = fields.listed(root, "media", "workload") if "media" in root else []
    if len(entries) > MOST_MEDIA:
        raise ModelError(f"workload: {len(entries)} media; {MOST_MEDIA} are the most that is read")
    for place, value in enumerate(entries):
        where = f"media[{place}]"
        entry = fields.mapping(value, where)
        if unknown := sorted(entry.keys() - MEDIUM_KEYS):
            raise ModelError(
                f"{where}: a medium has no {unknown[0]!r:.40}; it has {', '.join(sorted(MEDIUM_KEYS))}"
            )
        name = fields.text(entry, "name", where)
        if name in seen:
            raise ModelError(f"{where}: there is another medium called {name!r}")
        seen.add(name)
        yield name, frozenset(_crossing(entry, where, numbers))


def _crossing(entry: Mapping[str, Any], where: str, numbers: Mapping[str, int]) -> Iterator[Pair]:
    """Yield the pairs of a medium: those of its links, in both directions, and all of its devices."""

    def known(name: Any) -> int:
        return fields.known_number(str(name), numbers, where, "device")

    if not entry.keys() & {"devices", "links"}:
        raise ModelError(f"{where}: say which 'devices' or which 'links' share it")
    for name in fields.listed(entry, "devices", where) if "devices" in entry else []:
        here = known(name)
        yield from (
            pair for there in numbers.values() if there != here for pair in ((here, there), (there, here))
        )
    for ends in fields.listed(entry, "links", where) if "links" in entry else []:
        if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1]:
            raise ModelError(f"{where}: expected the names of two devices in 'links', found {ends!r:.40}")
        a, b = map(known, ends)
        yield from ((a, b), (b, a))
