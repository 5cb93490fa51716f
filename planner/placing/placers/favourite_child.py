"""Favourites: pairs of a task and a child that should be on one machine, to save the transfer between them. A
task has at most one favourite child, and is the favourite child of at most one parent (Hanen and Munier,
1995; Baechi, SoCC 2020). A linear relaxation chooses them, or the longest paths where there is no time for
it. Rules only.

The papers assume equal machines: here every cost is its average over machines, or pairs of machines. A big
graph is relaxed piece by piece along its order, each piece with the longest paths before and behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from edgepart.planner.placing.engine.dispatch import mean_costs, upward_ranks
from edgepart.planner.placing.engine.ortools import model_builder
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Workload

PIECE = 3000
"""The tasks of one linear program, which takes a third of a second. Three times as many take ten times as long."""

THRESHOLD = 0.5
"""The value of a relaxed variable below which the child is the favourite: the papers' rounding."""

TIE_BREAK = 0.01
"""The part of the makespan that all favourites together count for. This term is our addition, not in the papers."""

Edge = tuple[int, int]
"""A task, and a task that reads from it."""


@dataclass(frozen=True)
class Favourites:
    """The pairs of tasks that are spared a transfer."""

    child: tuple[int, ...]
    """The favourite child of each task; -1 for none. No task is the child of two."""
    relaxed: int
    """The number of tasks whose outgoing edges the linear relaxation decided on; the paths decided on the others."""


@dataclass(frozen=True)
class _Costs:
    """Seconds, on average over machines and pairs of machines."""

    compute_s: Sequence[float]
    way_s: dict[Edge, float]
    head_s: Sequence[float]
    """The longest path up to the start of each task."""
    tail_s: Sequence[float]
    """The longest path from the start of each task to the end."""


def favourites(workload: Workload, asked: Asked) -> Favourites:
    """Find the favourites, in about half of the budget."""
    until_s = asked.clock() + asked.budget_s / 2
    costs = _costs(workload)
    scores: list[tuple[float, float, Edge]] = []
    solved = 0
    for first in range(0, len(workload.order), PIECE):
        piece = workload.order[first : first + PIECE]
        left_s = until_s - asked.clock()
        spared = solve_relaxation(workload, costs, piece, left_s) if left_s > 0 else None
        inside = set(piece)
        solved += len(piece) if spared is not None else 0
        for source in piece:
            for reader in workload.after[source]:
                edge = source, reader
                path_s = costs.head_s[source] + costs.way_s[edge] + costs.tail_s[reader]
                if spared is None or reader not in inside:
                    scores.append((THRESHOLD, -path_s, edge))
                elif spared[edge] < THRESHOLD:
                    scores.append((spared[edge], -path_s, edge))
    return Favourites(_match(len(workload.tasks), scores), solved)


def _match(count: int, scores: list[tuple[float, float, Edge]]) -> tuple[int, ...]:
    """Return each task's favourite child. The best edges are taken first, and each task at most once as a
    parent and once as a child, which rounding alone does not ensure."""
    child, taken = [-1] * count, [False] * count
    for _, _, (source, reader) in sorted(scores):
        if child[source] < 0 and not taken[reader]:
            child[source], taken[reader] = reader, True
    return tuple(child)


def _costs(workload: Workload) -> _Costs:
    compute_s, transfer_s = mean_costs(workload)
    way_s: dict[Edge, float] = defaultdict(float)
    for number, tensor in enumerate(workload.tensors):
        for reader in tensor.readers:
            way_s[tensor.source, reader] += transfer_s[number]
    head_s = [0.0] * len(workload.tasks)
    for task in workload.order:
        for reader in workload.after[task]:
            path_s = head_s[task] + compute_s[task] + way_s[task, reader]
            head_s[reader] = max(head_s[reader], path_s)
    return _Costs(compute_s, way_s, head_s, upward_ranks(workload))


def solve_relaxation(
    workload: Workload, costs: _Costs, piece: Sequence[int], limit_s: float
) -> dict[Edge, float] | None:
    """Return the relaxed variable of each edge within the piece, from 0 for a favourite to 1 for none, in the
    linear program that minimises the makespan on infinitely many equal machines. None if it was not solved in
    about `limit_s` seconds."""
    builder = model_builder()
    model = builder.Model()
    scale = max(costs.tail_s[task] + costs.head_s[task] for task in piece) or 1.0
    start = {task: model.new_num_var(0.0, float("inf"), "") for task in piece}
    end = model.new_num_var(0.0, float("inf"), "")
    edges = [(task, reader) for task in piece for reader in workload.after[task] if reader in start]
    apart = {edge: model.new_num_var(0.0, 1.0, "") for edge in edges}
    for source, reader in edges:
        late = start[reader] - start[source] - (costs.way_s[source, reader] / scale) * apart[source, reader]
        model.add_linear_constraint(late, costs.compute_s[source] / scale, float("inf"))
    for task in piece:
        outside = [reader for reader in workload.after[task] if reader not in start]
        behind_s = max((costs.way_s[task, reader] + costs.tail_s[reader] for reader in outside), default=0.0)
        model.add_linear_constraint(
            end - start[task], (costs.compute_s[task] + behind_s) / scale, float("inf")
        )
        if any(source not in start for source in workload.before[task]):
            model.add_linear_constraint(start[task], costs.head_s[task] / scale, float("inf"))
        for several in (
            [(task, reader) for reader in workload.after[task] if reader in start],
            [(source, task) for source in workload.before[task] if source in start],
        ):
            if len(several) > 1:
                whole = builder.LinearExpr.sum([apart[edge] for edge in several])
                model.add_linear_constraint(whole, len(several) - 1, float("inf"))
    # Where favourites do not change the end, there should still be as many as possible.
    model.minimize(end + (TIE_BREAK / max(len(apart), 1)) * builder.LinearExpr.sum(list(apart.values())))
    solver = builder.Solver("GLOP")
    solver.set_time_limit_in_seconds(limit_s)
    if solver.solve(model) != builder.SolveStatus.OPTIMAL:
        return None
    return {edge: float(solver.value(variable)) for edge, variable in apart.items()}
