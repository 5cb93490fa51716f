"""Favourites: of each task at most one child, and of each at most one parent, that shall be spared their transfer
(Hanen and Munier, 1995; Baechi, SoCC 2020). From the linear relaxation, or from paths where there is no time for it.
Rules only.

The papers know one kind of machine: here every cost is its average over machines, or pairs of them. A big graph is relaxed
piece by piece along its order, each piece with the longest paths before and behind it.
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
"""Tasks of one linear programme: a third of a second. Of three times as many it takes ten times as long."""

THRESHOLD = 0.5
"""Below it a relaxed variable says that the child is the favourite: the papers' rounding."""

TIE_BREAK = 0.01
"""The part of the makespan that all favourites together count for. It is ours, not the papers'."""

Edge = tuple[int, int]
"""A task, and one that reads from it."""


@dataclass(frozen=True)
class Favourites:
    """The pairs of tasks that are spared a transfer."""

    child: tuple[int, ...]
    """By task; -1 for none. No task is the child of two."""
    relaxed: int
    """Tasks whose edges out the linear relaxation decided on; the rest was left to the paths."""


@dataclass(frozen=True)
class _Costs:
    """On average over machines and pairs of them, seconds."""

    compute_s: Sequence[float]
    way_s: dict[Edge, float]
    head_s: Sequence[float]
    """By task, the longest path up to its start."""
    tail_s: Sequence[float]
    """By task, the longest path from its start to the end."""


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
    """The best first, each task once as a parent and once as a child: rounding alone may leave it more."""
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
    """By edge within the piece, from 0 for a favourite to 1 for none: of the linear programme that ends the sample
    first on equal machines without number. None where it was not solved in about `limit_s` seconds."""
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
    # Where it makes no difference to the end, still as many as may be.
    model.minimize(end + (TIE_BREAK / max(len(apart), 1)) * builder.LinearExpr.sum(list(apart.values())))
    solver = builder.Solver("GLOP")
    solver.set_time_limit_in_seconds(limit_s)
    if solver.solve(model) != builder.SolveStatus.OPTIMAL:
        return None
    return {edge: float(solver.value(variable)) for edge, variable in apart.items()}
