"""Pipeline: contiguous stages along the order of the graph, by dynamic programming. Rules only.

For latency, the stages are those whose times have the smallest sum, with machines in any order. For
throughput, they are those whose busiest machine is the least busy; several machines take turns at a stage if
that is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgepart.planner.placing.chain_partition import Loads, balance
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.load import turn_loads
from edgepart.planner.placing.engine.speeds import order_by_speed
from edgepart.planner.placing.placers.cuts import Blocks, Costs, blocks, costs, cut_nearer
from edgepart.planner.placing.placers.expert import place_by_hand
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register

MOST_ROUNDS = 3
"""The rounds over a long order after the first: each cuts it more finely near the best cuts so far."""

Runs = tuple[tuple[tuple[int, ...], int, int], ...]
"""Stages as (places of the machines that take turns, from block, to block)."""


@register("pipeline")
def pipeline(workload: Workload, asked: Asked) -> PlacementFound:
    """Return the best of the divisions for one machine, two, three and so on. If no contiguous division fits,
    the placement is that of `place_by_hand`, made to fit."""
    begun_s = asked.clock()
    order, found = order_by_speed(workload), blocks(workload)
    answers = _answers(workload, asked, found, order)
    for number in range(1, MOST_ROUNDS + 1):
        if not answers or len(found.ends) == len(found.units):
            break
        if (asked.clock() - begun_s) * (1 + 1 / number) > asked.budget_s:
            break  # Another round, of the same length, would end too late.
        found = cut_nearer(found, _cuts(found, _best(answers)))
        answers += _answers(workload, asked, found, order)
    if not answers:
        why = "no contiguous stages fit into the machines' memory: tasks in order, as much on each machine as it holds"
        return settle(workload, place_by_hand(workload, asked), asked, why)
    return _best(answers)


def _best(answers: Sequence[PlacementFound]) -> PlacementFound:
    return min(answers, key=lambda answer: (answer.value_s, bool(answer.replicas)))


def _cuts(found: Blocks, answer: PlacementFound) -> list[int]:
    """Return the numbers of the blocks that are on another machine than the block before."""
    return [
        number
        for number in range(1, len(found.tasks))
        if answer.placement[found.tasks[number][0]] != answer.placement[found.tasks[number - 1][0]]
    ]


def _answers(workload: Workload, asked: Asked, found: Blocks, order: Sequence[int]) -> list[PlacementFound]:
    tables = _tables(workload, costs(workload, found), order, asked)
    whole = np.maximum if asked.objective == "throughput" else np.add
    divisions = dict.fromkeys(division.stages for division in balance(tables, whole))
    answers = [_answer(workload, asked, found, order, stages) for stages in divisions]
    if asked.objective == "throughput":
        directions = order, order[::-1]
        turns = [_divide_in_turns(workload, found, tables, order, direction) for direction in directions]
        answers += [answer for answer in turns if answer is not None]
    return answers


def _tables(workload: Workload, cost: Costs, order: Sequence[int], asked: Asked) -> list[Loads]:
    """Return the seconds of all stages on each machine of `order`."""
    found = []
    for machine in order:
        parts = cost.compute_s[machine], cost.receive_s[machine], cost.send_s[machine]
        if asked.objective != "throughput":
            found.append(parts[0] + parts[1])
        elif workload.overlap:
            found.append(np.maximum(np.maximum(parts[0], parts[1]), parts[2]))
        else:
            found.append(parts[0] + parts[1] + parts[2])
    return found


def _answer(
    workload: Workload,
    asked: Asked,
    found: Blocks,
    order: Sequence[int],
    stages: Sequence[tuple[int, int, int]],
) -> PlacementFound:
    placement = [0] * len(workload.tasks)
    for device, begin, end in stages:
        for tasks in found.tasks[begin:end]:
            for task in tasks:
                placement[task] = order[device]
    return settle(workload, placement, asked, _why(found, f"{len(stages)} contiguous stages"))


def _why(found: Blocks, what: str) -> str:
    if len(found.ends) < len(found.units):
        what += f"; tried {len(found.ends) - 1} of {len(found.units) - 1} places to cut at once"
    return f"{what}; stages priced by average links"


def _divide_in_turns(
    workload: Workload, found: Blocks, tables: Sequence[Loads], order: Sequence[int], direction: Sequence[int]
) -> PlacementFound | None:
    """Return the best division into stages at which machines that are neighbours in `direction` take turns.
    None if no division fits, or the best one has a single machine at each stage."""
    by_machine = dict(zip(order, tables, strict=True))
    runs = _runs([by_machine[machine] for machine in direction])
    if runs is None or all(len(places) == 1 for places, _, _ in runs):
        return None
    turns: list[tuple[int, ...]] = [()] * len(workload.tasks)
    kept = [0.0] * len(workload.machines)
    for places, begin, end in runs:
        machines = tuple(direction[place] for place in places)
        for task in (task for tasks in found.tasks[begin:end] for task in tasks):
            turns[task] = machines
            for machine in machines:
                kept[machine] += workload.tasks[task].memory_bytes
    if any(nbytes > machine.memory_bytes for nbytes, machine in zip(kept, workload.machines, strict=True)):
        return None  # Only the rounding of sums can cause this.
    return PlacementFound(
        tuple(machines[0] for machines in turns),
        max(turn_loads(workload, turns)),
        replicas=tuple(turns),
        why=_why(
            found, f"{len(runs)} contiguous stages, at which up to {max(map(len, turns))} machines take turns"
        ),
    )


def _runs(tables: Sequence[Loads]) -> Runs | None:
    """Return the stages, each on a run of machines, whose busiest run is the least busy; None if no division
    fits. A run is as busy as its busiest machine, divided by its number of machines. A machine may be left
    out."""
    size = tables[0].shape[0]
    forward = np.triu(np.ones((size, size), dtype=bool), 1)
    least = [np.where(np.arange(size) == 0, 0.0, np.inf)]
    came: list[list[tuple[int, int]]] = [[(0, place) for place in range(size)]]
    """The number of machines used and the place before the last stage, by the two after it."""
    for upto in range(1, len(tables) + 1):
        best = least[upto - 1].copy()
        back = [(upto - 1, place) for place in range(size)]
        together = np.zeros((size, size))
        for since in reversed(range(upto)):
            together = np.maximum(together, np.where(forward, tables[since], np.inf))
            reached = np.maximum(least[since][:, None], together / (upto - since))
            begins, value = reached.argmin(axis=0), reached.min(axis=0)
            for place in np.flatnonzero(value < best):
                back[place] = since, int(begins[place])
            best = np.minimum(best, value)
        least.append(best)
        came.append(back)
    if not np.isfinite(least[-1][-1]):
        return None
    return tuple(reversed(list(_back(came, len(tables), size - 1))))


def _back(
    came: Sequence[Sequence[tuple[int, int]]], used: int, place: int
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    while place > 0:
        since, begin = came[used][place]
        if begin != place:
            yield tuple(range(since, used)), begin, place
        used, place = since, begin
