"""Drawn workloads: of about the size that is asked for, the same again for the same seed, and possible to place."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import FAMILIES, HELD_OUT, draw_sketch
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.schedule import Asked


@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_can_be_drawn(family: str) -> None:
    for size in (20, 140, 500):
        sketch = draw_sketch(family, Random(size), size)
        assert 0.5 * size <= len(sketch) <= 1.5 * size + 60
        assert all(source < number for number, task in enumerate(sketch) for source in task.inputs)
        assert all(task.flops >= 0 and task.nbytes > 0 for task in sketch)
        assert (
            sketch == draw_sketch(family, Random(size), size) != draw_sketch(family, Random(size + 1), size)
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_one_can_be_placed(family: str) -> None:
    tight = 0
    for seed in range(6):
        drawn = draw_workload(family, Random(f"{family} {seed}"), 40, 2 + seed)
        tight += drawn.machines[0].memory_bytes < inf
        found = check(drawn, find(drawn, "heft", Asked(lambda: 0.0)))
        assert 0 < found.value_s < inf
    assert HELD_OUT in FAMILIES and tight < 6
