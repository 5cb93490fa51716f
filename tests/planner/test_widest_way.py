"""The widest way, against all ways that there are."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.widest_way import find_widest_way

PLACES = range(5)
PAIRS = st.sampled_from([(a, b) for a in PLACES for b in PLACES if a != b])
MEASURES = st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([0.0, 1.0, 2.0, 5.0]))


@given(st.dictionaries(PAIRS, MEASURES))
def test_no_way_is_wider_or_as_wide_and_shorter(
    given_links: dict[tuple[int, int], tuple[float, float]],
) -> None:
    links: dict[int, dict[int, tuple[float, float]]] = {}
    for (a, b), measures in given_links.items():
        links.setdefault(a, {})[b] = measures

    def worth(way: tuple[int, ...]) -> tuple[float, float, int, list[int]]:
        legs = [given_links[hop] for hop in pairwise(way)]
        return (
            min((rate for rate, _ in legs), default=inf),
            -sum(latency for _, latency in legs),
            -len(way),
            [-one for one in way],
        )

    ways = [
        (0, *between, 4)
        for count in range(4)
        for between in permutations((1, 2, 3), count)
        if all(hop in given_links for hop in pairwise((0, *between, 4)))
    ]
    found = find_widest_way(links, 0, 4)
    if not ways:
        assert found == ()
    else:
        assert found in ways
        assert worth(found) == max(map(worth, ways))
