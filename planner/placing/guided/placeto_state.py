"""Placeto's episode: one group of operators after another gets a machine, and what its network reads before each.
Rules only.

After Addanki et al., Placeto (NeurIPS 2019): the state of a group is what it takes to compute, the bytes it hands on, the
machine it is on, whether it was visited, and whether it is the one to place now. Its time of start and its memory are
of the authors' code. Placements are judged by this package's schedules, and not by the authors' simulator. Ours is what
follows from machines that differ: a group's cost is its mean over the machines that can run it, groups that share a
machine move together, and machines that cannot take a group are no choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.placing.engine.fit_memory import choices
from edgepart.planner.placing.engine.flat_workload import Booleans, Integers
from edgepart.planner.placing.engine.judge import Judge, judge_of
from edgepart.planner.placing.problem.workload import Workload

Singles = NDArray[np.float32]

GROUPS = 128
"""The most groups of a graph, as in the paper's graphs of two of three families."""

COLUMNS = 6
"""The numbers in a group's state, besides one for each machine."""

PENALTY, MOST_PENALTY = 20.0, 10.0
"""What it costs if a machine lacks memory: for each whole of its memory that it lacks, and at most. The paper adds two
seconds for each GB, and ten at most, to steps of about a second on machines of 8 to 11 GB."""


def width(machines: int) -> int:
    """The numbers in a group's state."""
    return COLUMNS + machines


@dataclass(frozen=True)
class PlacetoGraph:
    """What stays the same in every episode on a graph of n groups and D machines."""

    workload: Workload
    """The graph whose tasks are the groups."""
    order: Integers
    """(n,). The groups in the order in which they are visited: each after those that it reads from."""
    parents: Singles
    """(n, n). 1 where the group of the row reads from that of the column."""
    pools: Singles
    """(n, 3, n). For the group that is placed: its ancestors, its descendants, and the groups that are neither."""
    fixed: Singles
    """(n, 3). Seconds, bytes of output and bytes of memory, each divided by its maximum."""
    together: tuple[tuple[int, ...], ...]
    """For each group, those that share its machine, itself among them."""
    able: Booleans
    """(n, D). The machines that can run and keep each group."""
    alone_s: float
    """The unit of runtime, in seconds: what computing all groups takes on the machine that computes them fastest."""

    @property
    def machines(self) -> int:
        return len(self.workload.machines)


def placeto_graph(workload: Workload) -> PlacetoGraph:
    """Return what Placeto reads of a graph. Raises Infeasible if no machine can take a group."""
    tasks, machines = len(workload.tasks), len(workload.machines)
    parents = np.zeros((tasks, tasks), np.float32)
    for task, before in enumerate(workload.before):
        parents[task, list(before)] = 1
    able = np.zeros((tasks, machines), np.bool_)
    together: list[tuple[int, ...]] = [()] * tasks
    for group, allowed in zip(workload.groups, choices(workload), strict=True):
        for task in group:
            able[task, list(allowed)] = True
            together[task] = group
    compute_s = np.array([task.compute_s for task in workload.tasks])
    runs = compute_s < inf
    mean_s = np.where(runs, compute_s, 0).sum(1) / runs.sum(1)
    nbytes = np.zeros(tasks)
    for tensor in workload.tensors:
        nbytes[tensor.source] += tensor.nbytes
    memory = [task.memory_bytes for task in workload.tasks]
    fixed = np.stack([_scaled(mean_s), _scaled(nbytes), _scaled(np.array(memory))], axis=1)
    alone_s = float(compute_s.sum(0).min())
    return PlacetoGraph(
        workload,
        np.array(workload.order, np.int64),
        parents,
        _pools(workload),
        fixed.astype(np.float32),
        tuple(together),
        able,
        (alone_s if alone_s < inf else float(mean_s.sum())) or 1.0,
    )


def _scaled(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers divided by the largest magnitude among them, if it is not 0."""
    most = np.abs(column).max(initial=0.0)
    return column / most if most > 0 else column


def _pools(workload: Workload) -> Singles:
    tasks = len(workload.tasks)
    above = np.zeros((tasks, tasks), np.bool_)
    for task in workload.order:
        for source in workload.before[task]:
            above[task] |= above[source]
            above[task, source] = True
    beside = ~(above | above.T | np.eye(tasks, dtype=np.bool_))
    return np.stack([above, above.T, beside], axis=1).astype(np.float32)


class Episode:
    """A pass over a graph: each step places the current group, and has the placement judged."""

    def __init__(self, graph: PlacetoGraph, where: Integers, judge: Judge | None = None) -> None:
        """`where` is the machine of each group to begin with; `judge` may be that of another episode on the graph."""
        self.graph = graph
        self.judge = judge or judge_of(graph.workload, "latency")
        self.where = where.copy()
        self.step = 0
        self._visits = np.zeros(len(where))
        self._memory = np.array([task.memory_bytes for task in graph.workload.tasks])
        self._cap = np.array([machine.memory_bytes for machine in graph.workload.machines])
        self._judge_it()
        self.best, self.best_runtime = self.where.copy(), self.runtime

    @property
    def done(self) -> bool:
        return self.step == len(self.graph.order)

    @property
    def current(self) -> int:
        """The group that is placed next."""
        return int(self.graph.order[self.step])

    def state(self) -> Singles:
        """Return the state, (n, 6 + D): seconds, bytes out, bytes kept, time of start less that of the current group, and
        visits, each divided by its maximum; whether a group is the current one; and its machine, one-hot."""
        found = np.zeros((len(self.where), width(self.graph.machines)), np.float32)
        found[:, :3] = self.graph.fixed
        found[:, 3] = _scaled(self._start_s - self._start_s[self.current])
        found[:, 4] = _scaled(self._visits)
        found[self.current, 5] = 1
        found[np.arange(len(self.where)), COLUMNS + self.where] = 1
        return found

    def place(self, machine: int) -> None:
        """Put the current group, and those that share its machine, on the machine, and go on to the next group."""
        self.where[list(self.graph.together[self.current])] = machine
        self._visits[self.current] += 1
        self.step += 1
        self._judge_it()
        if self.runtime < self.best_runtime:
            self.best, self.best_runtime = self.where.copy(), self.runtime

    def _judge_it(self) -> None:
        """Find the runtime: the makespan in units of `alone_s`, and the penalty where memory is short."""
        judged = self.judge(self.where, None)
        self._start_s = np.asarray(judged.made.start_s if judged.made else ())
        kept = np.bincount(self.where, self._memory, minlength=len(self._cap))
        short = float((kept / np.maximum(self._cap, 1) - 1).max())
        self.runtime = judged.value_s / self.graph.alone_s + min(MOST_PENALTY, PENALTY * max(0.0, short))


def start_alone(graph: PlacetoGraph) -> Integers:
    """Return the placement that answers start from: all groups on the machine that computes them fastest, or the first
    that can take them."""
    compute_s = np.array([task.compute_s for task in graph.workload.tasks])
    fastest = int(compute_s.sum(0).argmin())
    return np.where(graph.able[:, fastest], fastest, graph.able.argmax(1))
