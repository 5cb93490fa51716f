"""One graph on one setting, placed by one placer after another.

Each placer runs in a process of its own with limits on memory and time; the checker tests its schedule
against the rules.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.connection import Connection

from benchmarks.models.sketches import sketch
from benchmarks.placing_clusters import setting
from benchmarks.placing_costs import Groups, workload
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.planner.errors import EdgepartError
from edgepart.planner.layers.runtime_fusion import find_fused_groups
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.placing.engine.evaluate import find_shortest
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.checker import violations
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Placement, Workload

GRAPHS = ("original", "coarsened")


@dataclass(frozen=True)
class Case:
    """A graph and a setting to place it on."""

    model: str
    setting: str
    graph: str
    """One of `GRAPHS`: a task is an operator, or operators that the runtime fuses."""


@dataclass(frozen=True)
class Limits:
    """The limits of one placer's search."""

    budget_s: float
    """Budget that the placer is given."""
    seconds: float
    """Seconds after which the placer is killed."""
    memory_bytes: int
    """Bound on address space."""


@dataclass(frozen=True)
class Cell:
    """The result of one placer."""

    model: str
    setting: str
    graph: str
    placer: str
    budget_s: float
    tasks: int
    makespan_s: float | None = None
    """None if nothing was found; `why` gives the reason."""
    as_run_s: float | None = None
    """The same placement if each device fuses what it can of its operators; for a coarsened graph, the
    makespan itself."""
    bound_s: float | None = None
    """A lower bound on the makespan."""
    search_s: float = 0.0
    """Wall-clock seconds."""
    search_cpu_s: float = 0.0
    """CPU seconds of all threads."""
    peak_bytes: int = 0
    """Peak resident memory, with the graph."""
    violations: tuple[str, ...] = ()
    """Rules that the schedule breaks."""
    failed: bool = False
    """Whether the placer's process crashed or was stopped at a limit, so that it is worth another try."""
    devices: int = 0
    """Devices that compute something."""
    why: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.model, self.setting, self.graph, self.placer


class Trial:
    """A case, built once for all its placers."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._setting = setting(case.setting)

    @cached_property
    def _sketch(self) -> Graph:
        return sketch(self.case.model)

    @cached_property
    def workload(self) -> Workload:
        groups = find_fused_groups(self._sketch) if self.case.graph == "coarsened" else _alone(self._sketch)
        return workload(f"{self.case.model}, {self.case.graph}", self._sketch, groups, self._setting)

    def cells(self, placers: Sequence[str], limits: Limits) -> Iterator[Cell]:
        """Yield the placers' cells, one after the other."""
        for name in placers:
            yield self._cell(name, limits)

    def _cell(self, name: str, limits: Limits) -> Cell:
        case = self.case
        empty = Cell(case.model, case.setting, case.graph, name, limits.budget_s, len(self.workload.tasks))
        ours, theirs = get_context("fork").Pipe(duplex=False)
        child = get_context("fork").Process(target=self._answer, args=(theirs, empty, limits))
        child.start()
        theirs.close()
        try:
            found: Cell = (
                ours.recv() if ours.poll(limits.seconds) else replace(empty, failed=True, why=_late(limits))
            )
        except EOFError:
            child.join()
            found = replace(empty, failed=True, why=f"its process ended with {child.exitcode}")
        child.kill()
        child.join()
        return found

    def _answer(self, answers: Connection, empty: Cell, limits: Limits) -> None:
        """Find a placement and send its cell. Runs in the child process."""
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        try:
            answers.send(self._found(empty, limits))
        except EdgepartError as error:
            answers.send(replace(empty, why=str(error)))
        except MemoryError:
            answers.send(replace(empty, failed=True, why=f"more than {limits.memory_bytes / 2**30:.0f} GiB"))
        answers.close()

    def _found(self, empty: Cell, limits: Limits) -> Cell:
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        asked = Asked(time.monotonic, "latency", limits.budget_s)
        try:
            found = find(self.workload, empty.placer, asked)
        finally:
            took = time.monotonic() - start_s, time.process_time() - start_cpu_s
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        cell = replace(empty, search_s=took[0], search_cpu_s=took[1], peak_bytes=peak)
        return replace(
            cell,
            makespan_s=found.value_s,
            as_run_s=self._as_run_s(found),
            bound_s=found.bound_s,
            violations=tuple(f"{v.rule}: {v.what}" for v in violations(self.workload, found)),
            devices=len(set(found.placement)),
            why=found.why,
        )

    def _as_run_s(self, found: PlacementFound) -> float:
        if self.case.graph == "coarsened":
            return found.value_s
        groups = as_run(self._sketch, found.placement)
        number = {op.name: n for n, op in enumerate(self._sketch.operators)}
        leads = [number[group[0].name] for group in groups]
        run = workload("as run", self._sketch, groups, self._setting)
        orders = [[-found.schedule.start_s[lead] for lead in leads]] if found.schedule else []
        return find_shortest(run, [found.placement[lead] for lead in leads], orders).makespan_s


def _alone(graph: Graph) -> Groups:
    return [(op,) for op in graph.operators]


def _late(limits: Limits) -> str:
    return f"killed after {limits.seconds:.0f} s"


def as_run(graph: Graph, placement: Placement) -> Groups:
    """Return the groups that each device fuses of its operators; `placement` is by operator, in the graph's order."""
    groups: list[Sequence[Operator]] = []
    for machine in sorted(set(placement)):
        groups += find_fused_groups(
            _part(graph, [op for op, m in zip(graph.operators, placement, strict=True) if m == machine])
        )
    return groups


def _part(graph: Graph, operators: Sequence[Operator]) -> Graph:
    """Return these operators as a graph of their own, with the tensors that others make as inputs, and those
    that others read as outputs."""
    members = {op.name for op in operators}
    made = {name for op in operators for name in op.outputs}
    coming = dict.fromkeys(name for op in operators for name in graph.reads(op) if name not in made)
    leaving = tuple(
        name
        for op in operators
        for name in op.outputs
        if name in graph.outputs or any(reader.name not in members for reader in graph.consumers[name])
    )
    return replace(
        graph,
        inputs=tuple(coming),
        outputs=leaving,
        tensors={
            name: graph.tensors[name] for name in (*coming, *(n for op in operators for n in op.outputs))
        },
        constants={n: graph.constants[n] for op in operators for n in op.inputs if n in graph.constants},
        operators=tuple(operators),
    )


def run(answers: Connection, case: Case, placers: Sequence[str], limits: Limits) -> None:
    """Send each cell as soon as it is there. Runs in a process of its own."""
    collect_rarely()
    for cell in Trial(case).cells(placers, limits):
        answers.send(cell)
