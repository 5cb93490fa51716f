"""The paper's mixed-integer program (4)-(8), with its big numbers, on HiGHS: the twin of the model on intervals."""

from __future__ import annotations

from itertools import combinations
from math import inf
from typing import Any

from edgepart.planner.placing.engine.ortools import model_builder
from edgepart.planner.placing.problem.workload import Workload


def least_makespan(workload: Workload) -> float:
    """inf where nothing fits. Ours beyond the paper: a tensor travels once to a machine; groups stay together."""
    return _Program(workload).solved()


class _Program:
    def __init__(self, workload: Workload) -> None:
        self._builder = model_builder()
        self._model: Any = self._builder.Model()
        self._workload = workload
        self._machines = range(len(workload.machines))
        self._long_s = self._longest()
        self._end = self._model.new_num_var(0, self._long_s, "C")
        self._x = [[self._binary() for _ in self._machines] for _ in workload.tasks]
        """(4c), and who is where."""
        self._s = [self._time() for _ in workload.tasks]
        self._c = [self._time() for _ in workload.tasks]
        self._moves: dict[tuple[int, int], tuple[dict[int, Any], Any, Any]] = {}
        """By tensor and receiver: by sender whether it travels, its start, its end."""
        self._tasks()
        self._flows()
        self._congestion()
        self._model.minimize(self._end)

    def _longest(self) -> float:
        tasks = sum(max((s for s in t.compute_s if s < inf), default=0.0) for t in self._workload.tasks)
        pairs = [(a, b) for a in self._machines for b in self._machines]
        moves = sum(
            max(self._workload.transfer_s(t, *pair) for pair in pairs) * len(self._machines)
            for t in self._workload.tensors
        )
        return tasks + moves + 1.0

    def _binary(self) -> Any:
        return self._model.new_bool_var("b")

    def _time(self) -> Any:
        return self._model.new_num_var(0, self._long_s, "t")

    def _apart(self, one: tuple[Any, Any], other: tuple[Any, Any], both: list[Any]) -> None:
        """(6), (8): one after the other, if all of `both` are one."""
        first = self._binary()
        spare = self._long_s * (len(both) - sum(both))
        self._model.add(one[1] <= other[0] + self._long_s * first + spare)
        self._model.add(other[1] <= one[0] + self._long_s * (1 - first) + spare)

    def _tasks(self) -> None:
        workload, model = self._workload, self._model
        for task, row in enumerate(self._x):
            compute_s = workload.tasks[task].compute_s
            model.add(sum(row) == 1)
            for m in self._machines:
                if compute_s[m] == inf:
                    model.add(row[m] == 0)
            took = sum(compute_s[m] * row[m] for m in self._machines if compute_s[m] < inf)
            model.add(self._c[task] == self._s[task] + took)
            model.add(self._end >= self._c[task])
        for group in workload.groups:
            for task in group[1:]:
                for m in self._machines:
                    model.add(self._x[task][m] == self._x[group[0]][m])
        for m, machine in enumerate(workload.machines):
            if machine.memory_bytes < inf:
                kept = sum(t.memory_bytes * self._x[n][m] for n, t in enumerate(workload.tasks))
                model.add(kept + 0 * self._end <= machine.memory_bytes)
        for one, other in combinations(range(len(workload.tasks)), 2):
            for m in self._machines:
                both = [self._x[one][m], self._x[other][m]]
                self._apart((self._s[one], self._c[one]), (self._s[other], self._c[other]), both)

    def _flows(self) -> None:
        """(4a), (7)."""
        workload, model = self._workload, self._model
        for number, tensor in enumerate(workload.tensors):
            for reader in tensor.readers:
                model.add(self._s[reader] >= self._c[tensor.source])
            for there in self._machines:
                ways = {here: self._binary() for here in self._machines if here != there}
                start, end = self._time(), self._time()
                took = sum(workload.transfer_s(tensor, here, there) * z for here, z in ways.items())
                model.add(end == start + took)
                model.add(start >= self._c[tensor.source])
                for here, z in ways.items():
                    model.add(z <= self._x[tensor.source][here])
                    for reader in tensor.readers:
                        model.add(z >= self._x[tensor.source][here] + self._x[reader][there] - 1)
                for reader in tensor.readers:
                    far = 2 - self._x[reader][there] - sum(ways.values())
                    model.add(self._s[reader] >= end - self._long_s * far)
                self._moves[number, there] = ways, start, end

    def _congestion(self) -> None:
        """(8), on the sender's side and on the receiver's."""
        for (one, to_one), (other, to_other) in combinations(self._moves, 2):
            ways, start, end = self._moves[one, to_one]
            others, other_start, other_end = self._moves[other, to_other]
            spans = (start, end), (other_start, other_end)
            if to_one == to_other:
                self._apart(*spans, [sum(ways.values()), sum(others.values())])
                continue
            for here in ways.keys() & others.keys():
                self._apart(*spans, [ways[here], others[here]])

    def solved(self) -> float:
        solver = self._builder.Solver("HIGHS")
        solver.enable_output(False)
        status = solver.solve(self._model)
        if status == self._builder.SolveStatus.INFEASIBLE:
            return inf
        assert status == self._builder.SolveStatus.OPTIMAL
        return float(solver.objective_value)
