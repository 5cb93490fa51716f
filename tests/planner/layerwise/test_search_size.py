"""What a search takes is told before it is made."""

from __future__ import annotations

import pytest

from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layerwise.configurations import make_space
from edgepart.planner.layerwise.search_size import LARGEST_MOVES, MOVE_S, SearchSize
from edgepart.planner.layerwise.time_costs import TimeCosts
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.search.study import Study
from tests.planner.small_models import batched, residual


@pytest.mark.parametrize("make", [residual, lambda: batched(4)])
def test_the_size_is_that_of_the_tables_that_are_made(make: object) -> None:
    assert callable(make)
    devices = tuple(Device(f"d{n}", "k", 1e9, 1e9, 4e9) for n in range(4))
    memo = Study(Problem(load_graph(make()), Cluster(devices), "d0")).memo
    size = TimeCosts(memo, make_space(memo, whole=True)).size()
    problem = TimeCosts(memo, make_space(memo, whole=True)).build_problem()
    kinds = {
        (problem.nodes[a].kind, problem.nodes[b].kind): table.size * 4 * 4 for a, b, table in problem.edges
    }
    assert (size.moves, size.largest_moves) == (sum(kinds.values()), max(kinds.values()))
    assert size.steps == sum(len(table) ** 3 for table in problem.unary)


def test_a_search_fits_a_budget_of_time_and_memory() -> None:
    assert SearchSize(1000, 1000, 0).fits(1000 * MOVE_S) and not SearchSize(1000, 1000, 1).fits(1000 * MOVE_S)
    assert not SearchSize(LARGEST_MOVES + 1, LARGEST_MOVES + 1, 0).fits(1e9)
