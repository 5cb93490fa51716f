"""The best start: which placers there is time to ask."""

from __future__ import annotations

import pytest

from edgepart.planner.placing.placers import best_start
from edgepart.planner.placing.placers.best_start import find_best_start
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import Placer
from tests.planner.placing.asking import found_by
from tests.planner.placing.workloads import workload

TOOK_S = {"heft": 2.0, "m-etf": 4.0, "expert": 1.0}


@pytest.mark.parametrize(
    ("budget_s", "left_out"),
    [
        (1.0, ("m-etf", "expert")),  # The first is asked in any case.
        (
            5.0,
            ("m-etf", "expert"),
        ),  # More than half is left, but not enough for one that takes twice as long.
        (8.0, ("expert",)),  # Half is spent.
        (20.0, ()),
    ],
)
def test_others_are_asked_while_there_is_time(
    budget_s: float, left_out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, pair = [0.0], workload([(2.0, 1.0), (2.0, 1.0)], [])

    def placer(name: str) -> Placer:
        def place(graph: Workload, asked: Asked) -> PlacementFound:
            now_s[0] += TOOK_S[name]
            return found_by("expert", graph)

        return place

    monkeypatch.setattr(best_start, "placer", placer)
    asked = Asked(lambda: now_s[0], budget_s=budget_s)
    assert find_best_start(pair, asked, tuple(TOOK_S), always=1).left_out == left_out
