"""The least sum of costs, against every choice there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.layerwise.elimination import Edge, Table, cost_of, minimise

Ends = Sequence[tuple[int, int]]


def tables(
    counts: Sequence[int], ends: Ends, seed: int, forbidden: float = 0.0
) -> tuple[list[Table], list[Edge]]:
    """Random whole costs, so that sums are the same in any order; some of them infinite."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Table:
        made = rng.integers(0, 50, shape).astype(np.float64)
        made[rng.random(shape) < forbidden] = np.inf
        return made

    return [drawn(n) for n in counts], [(a, b, drawn(counts[a], counts[b])) for a, b in ends]


def exhaustive(unary: Sequence[Table], edges: Sequence[Edge]) -> float:
    """The plain twin."""
    return min(cost_of(unary, edges, choice) for choice in product(*(range(len(table)) for table in unary)))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Table], list[Edge]]:
    """Up to 8 nodes of up to 5 values; any edges, in either direction, several between the same two."""
    count = draw(st.integers(1, 8))
    most = 5 if count <= 5 else 3 if count <= 7 else 2
    counts = draw(st.lists(st.integers(1, most), min_size=count, max_size=count))
    nodes = st.integers(0, count - 1)
    pairs = st.tuples(nodes, nodes).filter(lambda pair: pair[0] != pair[1])
    ends = draw(st.lists(pairs, max_size=14)) if count > 1 else []
    return tables(counts, ends, draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from((0.0, 0.0, 0.2))))


@settings(max_examples=400)
@given(graphs())
def test_nothing_costs_less(graph: tuple[list[Table], list[Edge]]) -> None:
    found = minimise(*graph)
    assert found.exact and not found.why
    assert found.cost == cost_of(*graph, found.choice) == exhaustive(*graph)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(6, 8))
def test_nothing_costs_less_with_five_values_each(seed: int, count: int) -> None:
    """Against dynamic programming over whole tables, as there are 5 ** 8 choices."""
    rng = np.random.default_rng(seed)
    ends = [(a, b) for a in range(count) for b in range(a + 1, count) if rng.random() < 0.4]
    unary, edges = tables([5] * count, ends, seed)
    whole = np.zeros([5] * count)
    for node, table in enumerate(unary):
        whole += table.reshape([5 if n == node else 1 for n in range(count)])
    for a, b, table in edges:
        whole += table.reshape([5 if n in (a, b) else 1 for n in range(count)])
    assert minimise(unary, edges).cost == whole.min()


CHAIN = [(n, n + 1) for n in range(9)]
TREE = [((n - 1) // 2, n) for n in range(1, 10)]
INCEPTION = [(0, 1), (0, 2), (2, 3), (0, 4), (4, 5), (5, 6), (0, 7), (1, 8), (3, 8), (6, 8), (7, 8), (8, 9)]
LADDER = [(n, n + 1) for n in range(4)] + [(n, n + 1) for n in range(5, 9)] + [(n, n + 5) for n in range(5)]


@pytest.mark.parametrize(
    ("ends", "kinds"),
    [
        (CHAIN, {"node": 8, "enumerate": 1}),
        (INCEPTION, {"node": 8, "edge": 3, "enumerate": 1}),
        (TREE, {"node": 1, "variable": 7, "enumerate": 1}),
        (LADDER, {"node": 2, "variable": 6, "enumerate": 1}),
    ],
    ids=["chain", "inception", "tree", "ladder"],
)
def test_each_kind_of_graph_is_eliminated_in_its_way(ends: Ends, kinds: dict[str, int]) -> None:
    unary, edges = tables([3] * 10, ends, 7)
    found = minimise(unary, edges)
    assert found.exact and found.cost == exhaustive(unary, edges)
    assert Counter(step.kind for step in found.steps) == kinds


def test_parallel_edges_are_one() -> None:
    unary, edges = tables([4, 4], [(0, 1)] * 3 + [(1, 0)], 3)
    found = minimise(unary, edges)
    assert found.cost == exhaustive(unary, edges)
    assert [step.kind for step in found.steps] == ["edge", "edge", "enumerate"]


def test_nodes_that_nothing_joins_are_chosen_on_their_own() -> None:
    unary, _ = tables([5] * 6, [], 1)
    found = minimise(unary, [])
    assert found.choice == tuple(int(table.argmin()) for table in unary)
    assert minimise([], []).choice == ()


def test_what_must_not_be_is_avoided_and_what_cannot_be_costs_infinity() -> None:
    walls = np.array([[np.inf, 1.0], [2.0, np.inf]])
    assert minimise([np.zeros(2)] * 3, [(0, 1, walls), (1, 2, walls)]).choice in {(0, 1, 0), (1, 0, 1)}
    closed = np.full((2, 2), np.inf)
    assert minimise([np.zeros(2)] * 3, [(0, 1, walls), (1, 2, closed)]).cost == np.inf


def test_beyond_the_bound_a_good_choice_is_found_and_said_not_to_be_proven() -> None:
    ends = [(a, b) for a in range(7) for b in range(a + 1, 7)]
    unary, edges = tables([4] * 7, ends, 11)
    least, found = minimise(unary, edges), minimise(unary, edges, largest=64)
    assert least.exact and not found.exact
    assert "7 nodes remain" in found.why and found.steps[-1].kind == "descend"
    assert found.cost == cost_of(unary, edges, found.choice)
    costs = [cost_of(unary, edges, choice) for choice in product(range(4), repeat=7)]
    assert found.cost <= np.quantile(costs, 0.001)  # Among the best 16 of 16,384.


def test_what_fits_the_bound_is_still_eliminated() -> None:
    ends = [(a, b) for a in range(6) for b in range(a + 1, 6)] + [(n, n + 1) for n in range(5, 30)]
    unary, edges = tables([4] * 31, ends, 5)
    found = minimise(unary, edges, largest=64)
    assert not found.exact and found.steps[-1].nodes == tuple(range(6))


def test_equal_questions_have_equal_answers() -> None:
    unary, edges = tables([3] * 10, INCEPTION, 0)
    flat = [np.zeros(3) for _ in unary]
    assert minimise(flat, edges) == minimise(flat, edges)
    assert minimise(flat, [(a, b, np.zeros((3, 3))) for a, b, _ in edges]).choice == (0,) * 10


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0 -> 1.*\(2, 3\)"):
        minimise([np.zeros(2), np.zeros(2)], [(0, 1, np.zeros((2, 3)))])
    with pytest.raises(ValueError, match="0 -> 0"):
        minimise([np.zeros(2)], [(0, 0, np.zeros((2, 2)))])
    with pytest.raises(ValueError, match="at least one value"):
        minimise([np.zeros(0)], [])
