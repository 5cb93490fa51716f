"""Moirai's model for throughput, on CP-SAT: place tasks, without a schedule, so that the busiest machine is
the least busy. Rules only.

Times are rounded down to ticks. The loads of any placement are no larger in ticks, so a bound in ticks holds
in seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.engine.ortools import cp_model
from edgepart.planner.placing.exact.latency_model import WORKERS, remember
from edgepart.planner.placing.exact.ticks import Ticks, ticks
from edgepart.planner.placing.problem.workload import Placement, Workload


@dataclass(frozen=True)
class Assigned:
    """The result of a search."""

    placement: tuple[int, ...] | None
    """The best placement that was found; None if none was."""
    bound_s: float
    """A lower bound: no placement has a smaller largest load. inf if there is no placement at all."""
    ended: bool
    """Whether the search is complete."""


def assign(
    workload: Workload, *, clock: Callable[[], float], until: float, start: Placement, seed: int = 0
) -> Assigned:
    """Search from `start`, until the clock says `until`, for the placement with the smallest largest load. The time in
    which the model is made counts."""
    most_s = max_load(workload, start)
    if not most_s:
        return Assigned(tuple(start), 0.0, True)
    model = _ThroughputModel(workload, ticks(workload, most_s))
    return model.search(start, until - clock(), seed)


class _ThroughputModel:
    def __init__(self, workload: Workload, took: Ticks) -> None:
        self._cp = cp_model()
        self._model: Any = self._cp.CpModel()
        self._workload = workload
        self._took = took
        self._most = self._model.new_int_var(0, took.horizon, "most")
        self._at: list[dict[int, Any]] = [{} for _ in workload.tasks]
        self._loads: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        """The terms of the load of each side of each machine."""
        self._media: dict[int, list[Any]] = defaultdict(list)
        """The terms of the load of each medium."""
        for group in workload.groups:
            able = [m for m in range(len(workload.machines)) if all(m in took.compute[t] for t in group)]
            literals = {m: self._model.new_bool_var(f"at{group[0]},{m}") for m in able}
            self._model.add_exactly_one(literals.values())
            for task in group:
                self._at[task] = literals
        self._moved: dict[tuple[int, int, int], Any] = {}
        for task, at in enumerate(self._at):
            for m, literal in at.items():
                self._loads[m]["computes"].append(took.compute[task][m] * literal)
        for number in range(len(workload.tensors)):
            self._move(number)
        remember(self._model, workload, self._at)
        for sides in self._loads.values():
            if workload.overlap:
                for side in sides.values():
                    self._model.add(sum(side) <= self._most)
            else:
                self._model.add(sum(sum(side) for side in sides.values()) <= self._most)
        for terms in self._media.values():
            self._model.add(sum(terms) <= self._most)
        self._model.minimize(self._most)

    def _move(self, number: int) -> None:
        """Make the literals that say whether the tensor travels: from a machine that makes it to another that reads it."""
        tensor = self._workload.tensors[number]
        for here, made in self._at[tensor.source].items():
            for there in sorted({m for reader in tensor.readers for m in self._at[reader]} - {here}):
                took = self._took.move[number][here, there]
                if not took:
                    continue
                literal = self._model.new_bool_var(f"moves{number},{here},{there}")
                for reader in tensor.readers:
                    if there in self._at[reader]:
                        read = self._at[reader][there]
                        self._model.add_bool_or([made.negated(), read.negated(), literal])
                self._loads[here]["sends"].append(took * literal)
                self._loads[there]["receives"].append(took * literal)
                for medium in self._workload.crossed[here][there]:
                    self._media[medium].append(took * literal)
                self._moved[number, here, there] = literal

    def search(self, start: Placement, budget_s: float, seed: int) -> Assigned:
        """Search for a placement with a smaller largest load within the budget."""
        for group in self._workload.groups:
            for m, literal in self._at[group[0]].items():
                self._model.add_hint(literal, int(m == start[group[0]]))
        for (number, here, there), literal in self._moved.items():
            tensor = self._workload.tensors[number]
            moves = start[tensor.source] == here and any(start[reader] == there for reader in tensor.readers)
            self._model.add_hint(literal, int(moves))
        solver = self._cp.CpSolver()
        solver.parameters.catch_sigint_signal = False  # It would end this search, and not the program.
        solver.parameters.max_time_in_seconds = max(budget_s, 0.01)
        solver.parameters.num_workers = WORKERS
        solver.parameters.random_seed = seed
        status = solver.solve(self._model)
        if status == self._cp.INFEASIBLE:
            return Assigned(None, inf, True)
        bound_s = self._took.bound_s(solver.best_objective_bound)
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return Assigned(None, bound_s, False)
        placement = tuple(next(m for m, x in at.items() if solver.boolean_value(x)) for at in self._at)
        return Assigned(placement, bound_s, status == self._cp.OPTIMAL)
