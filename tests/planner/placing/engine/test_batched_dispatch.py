"""Many makespans at once are those of one after another, in the same order."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np

from edgepart.planner.placing.engine.batched_dispatch import batched_makespans
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.flat_workload import flatten
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.engine.test_flat_dispatch import draw_workload
from tests.planner.placing.workloads import workload


def makespan_s(drawn: Workload, placement: list[int], order: list[int]) -> float:
    """Book everything for one placement in the order of the tasks."""
    computing: dict[int, float] = defaultdict(float)
    sending: dict[int, float] = defaultdict(float)
    receiving: dict[int, float] = defaultdict(float)
    crossing: dict[str, float] = defaultdict(float)
    end_s: dict[int, float] = {}
    arrived: dict[tuple[int, int], float] = {}
    for task in order:
        here, ready_s = placement[task], 0.0
        for number in drawn.read[task]:
            tensor = drawn.tensors[number]
            source = placement[tensor.source]
            if source == here:
                ready_s = max(ready_s, end_s[tensor.source])
                continue
            if (number, here) not in arrived:
                media = [one.name for one in drawn.media if (source, here) in one.pairs]
                free_s = [sending[source], receiving[here], *(crossing[name] for name in media)]
                begin_s = max(end_s[tensor.source], *free_s)
                at_s = begin_s + drawn.transfer_s(tensor, source, here)
                arrived[number, here] = sending[source] = receiving[here] = at_s
                crossing.update(dict.fromkeys(media, at_s))
            ready_s = max(ready_s, arrived[number, here])
        end_s[task] = computing[here] = max(ready_s, computing[here]) + drawn.tasks[task].compute_s[here]
    return max(end_s.values())


def test_each_is_as_if_it_was_alone() -> None:
    random = Random(3)
    for _ in range(60):
        drawn = draw_workload(random)
        rows = [[random.randrange(len(drawn.machines)) for _ in drawn.tasks] for _ in range(7)]
        found = batched_makespans(flatten(drawn), np.array(rows), np.array(drawn.order))
        assert found.tolist() == [makespan_s(drawn, row, list(drawn.order)) for row in rows]


def test_on_a_chain_it_is_the_schedule() -> None:
    chain = workload([(1.0, 2.0), (3.0, 1.0), (2.0, 2.0)], [(0, (1,), 100.0), (1, (2,), 50.0)], latency_s=0.5)
    rows = [[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]]
    found = batched_makespans(flatten(chain), np.array(rows), np.array(chain.order))
    assert found.tolist() == [dispatch(chain, row).makespan_s for row in rows]
