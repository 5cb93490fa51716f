"""The widest way between two places over links with directions. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeVar

Place = TypeVar("Place", bound=int | str)
Measures = tuple[float, float]
"""The bytes a second of a link, and its seconds of latency."""
Links = Mapping[Place, Mapping[Place, Measures]]
"""The links from each place, by the place that they lead to."""


def find_widest_way(links: Links[Place], source: Place, target: Place) -> tuple[Place, ...]:
    """Return the places on the way whose slowest link is the fastest; of equally wide ways, on one with the least latency,
    and of these on one with the fewest links, the first by the order of the places. () if no way leads there.

    On an indirect channel, the slowest link decides (Moirai, section 3.3)."""
    wide = _find_way(links, source, target, lambda slowest_s, link: max(slowest_s, 1 / link[0]))
    if not wide:
        return ()
    width = min(links[here][there][0] for here, there in pairwise(wide))
    kept = {
        here: {there: link for there, link in row.items() if link[0] >= width} for here, row in links.items()
    }
    return _find_way(kept, source, target, lambda so_far_s, link: so_far_s + link[1])


def _find_way(
    links: Links[Place], source: Place, target: Place, longer: Callable[[float, Measures], float]
) -> tuple[Place, ...]:
    """Return a shortest way by Dijkstra's algorithm; `longer` returns the length of a way with one more link."""
    reached: set[Place] = set()
    heap: list[tuple[float, int, tuple[Place, ...]]] = [(0.0, 0, (source,))]
    while heap:
        nearest = heappop(heap)
        length_s, count = nearest[:2]
        way: tuple[Place, ...] = nearest[2]
        if way[-1] == target:
            return way
        if way[-1] in reached:
            continue
        reached.add(way[-1])
        for there, link in links.get(way[-1], {}).items():
            if there not in reached:
                heappush(heap, (longer(length_s, link), count + 1, (*way, there)))
    return ()
