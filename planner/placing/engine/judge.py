"""Judging: the value of one placement after another, each like one before, and where it could be better. Rules only.

Placements are judged by compiled schedules on arrays (flat_dispatch.py, flat_serial.py) once `prepare` was called, and
before by dispatch.py and serial.py, with the same values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from types import ModuleType

import numpy as np

from edgepart.planner.errors import InternalError
from edgepart.planner.placing.engine import flat_dispatch, flat_serial, serial
from edgepart.planner.placing.engine.compiler import INSTALLED, compile_module
from edgepart.planner.placing.engine.dispatch import dispatch, mean_costs, upward_ranks
from edgepart.planner.placing.engine.flat_workload import (
    FlatSchedule,
    FlatWorkload,
    Floats,
    Integers,
    flatten,
    unflatten,
)
from edgepart.planner.placing.engine.load import loads
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Machine, Placement, Task, Workload

Made = PlacementSchedule | FlatSchedule
"""A schedule, as a record or as arrays."""


def as_record(where: Integers, made: Made) -> PlacementSchedule:
    """Return the schedule of a placement as a record."""
    return unflatten(where, made) if isinstance(made, FlatSchedule) else made


@dataclass(frozen=True)
class Judged:
    """A placement and its value."""

    where: Integers
    """(n,). The machine of each task."""
    value_s: float
    made: Made | None
    """The schedule, if latency is the objective."""
    busy: Sequence[int] | Integers
    """Tasks of which, roughly, at least one has to move for a better value."""
    in_order: bool = False
    """Whether tasks were booked in an order, so that machines may wait for something better (serial.py)."""

    @cached_property
    def placement(self) -> tuple[int, ...]:
        """The machine of each task."""
        return tuple(self.where.tolist())

    @cached_property
    def schedule(self) -> PlacementSchedule | None:
        """The schedule, if latency is the objective."""
        return None if self.made is None else as_record(self.where, self.made)


class _Prepared:
    """The module of compiled schedules, once it is prepared."""

    code: ModuleType | None = None


def prepare() -> bool:
    """Have schedules compiled, so that this process judges some forty times as fast. Returns whether they are:
    numba has to be installed. This takes a second, and much longer when it is the first time on this machine."""
    if INSTALLED and _Prepared.code is None:
        flat = flatten(Workload("", (Machine("", ""),), (Task("", "", (1.0,)),), (), ((inf,),), ((0.0,),)))
        for module in (flat_dispatch, flat_serial):
            compile_module(module)
            module.warm_up(flat)
        _Prepared.code = flat_dispatch
    return is_prepared()


def is_prepared() -> bool:
    """Whether this process judges by compiled schedules."""
    return _Prepared.code is not None


def compiled_code() -> ModuleType:
    """Return the module of compiled schedules. Raises InternalError if it is not prepared."""
    if _Prepared.code is None:
        raise InternalError("schedules are not compiled: `prepare` was not called, or numba is not installed")
    return _Prepared.code


def serial_code() -> ModuleType:
    """Return the module of serial schedules: the compiled one if it is prepared, or the one for lists."""
    return flat_serial if is_prepared() else serial


Dispatcher = Callable[[Placement, Sequence[float] | None], PlacementSchedule]
"""Returns the schedule of a placement by ranks, or by the upward ranks on this placement."""


def dispatcher_of(workload: Workload) -> Dispatcher:
    """Return what makes schedules of the workload, as `dispatch` does."""

    def schedule(placement: Placement, ranks: Sequence[float] | None) -> PlacementSchedule:
        where = np.array(placement, np.int64)
        return as_record(
            where, make_schedule(workload, where, find_ranks(workload, where) if ranks is None else ranks)
        )

    return schedule


def make_schedule(workload: Workload, where: Integers, ranks: Sequence[float] | Floats) -> Made:
    """Return the schedule of a placement by ranks, as `dispatch` does."""
    if is_prepared():
        made: FlatSchedule = compiled_code().schedule(flatten(workload), where, np.array(ranks, np.float64))
        return made
    return dispatch(workload, where.tolist(), np.asarray(ranks).tolist())


def find_ranks(workload: Workload, where: Integers) -> Sequence[float] | Floats:
    """Return the upward rank of each task on a placement, as `upward_ranks` does."""
    if is_prepared():
        ranks: Floats = compiled_code().rank_upward(flatten(workload), where)
        return ranks
    return upward_ranks(workload, where.tolist())


def mean_ranks(workload: Workload) -> Floats:
    """Return the upward rank of each task on average over machines and pairs of machines, as `upward_ranks` does."""
    compute_s, transfer_s = (np.array(seconds, np.float64) for seconds in mean_costs(workload))
    ranks: Floats = serial_code().rank_both_ways(flatten(workload), compute_s, transfer_s)[0]
    return ranks


def book_in_order(flat: FlatWorkload, where: Integers, start_s: Sequence[float] | Floats) -> FlatSchedule:
    """Return the schedule of a placement if tasks are booked as they start in a schedule of another placement."""
    # What takes no time may start with what it reads: the order of the graph then decides.
    order = flat.order[np.argsort(np.asarray(start_s)[flat.order], kind="stable")]
    made: FlatSchedule = serial_code().schedule_in_order(flat, where, order)
    return made


Judge = Callable[[Integers, Judged | None], Judged]
"""Judges a placement. The second argument may be the judgement of a similar placement."""


def judge_of(workload: Workload, objective: str) -> Judge:
    """Return what judges placements of the workload by the objective, "latency" or "throughput"."""
    if is_prepared():
        return _CompiledJudge(workload, compiled_code()).judge(objective)
    return _judge_by_load(workload) if objective == "throughput" else _judge_by_latency(workload)


def _judge_by_latency(workload: Workload) -> Judge:
    """Judge by the makespan when tasks are dispatched by their own ranks, or in the order of the similar placement."""

    def judge(where: Integers, like: Judged | None) -> Judged:
        placement, in_order = where.tolist(), False
        schedule = dispatch(workload, placement)
        if like is not None and like.made is not None:
            if like.in_order:
                again = unflatten(where, book_in_order(flatten(workload), where, like.made.start_s))
            else:
                again = dispatch(workload, placement, [-start for start in like.made.start_s])
            if again.makespan_s < schedule.makespan_s:
                schedule, in_order = again, like.in_order
        busy = find_critical_chain(workload, schedule)
        return Judged(where, schedule.makespan_s, schedule, busy, in_order)

    return judge


def _judge_by_load(workload: Workload) -> Judge:
    """Judge by the largest load."""

    def judge(where: Integers, like: Judged | None) -> Judged:
        found = loads(workload, where.tolist())
        most = max(range(len(found)), key=found.__getitem__)
        return Judged(where, found[most], None, find_busy(workload, where, most))

    return judge


class _CompiledJudge:
    def __init__(self, workload: Workload, code: ModuleType) -> None:
        self._code = code
        self._workload = workload
        self._flat = flatten(workload)
        self._tasks = np.arange(len(workload.tasks))

    def judge(self, objective: str) -> Judge:
        return self._by_load if objective == "throughput" else self._by_latency

    def _by_latency(self, where: Integers, like: Judged | None) -> Judged:
        made = self._code.schedule(self._flat, where, self._code.rank_upward(self._flat, where))
        in_order = False
        if like is not None and like.made is not None:
            if like.in_order:
                again = book_in_order(self._flat, where, like.made.start_s)
            else:
                again = self._code.schedule(self._flat, where, -np.asarray(like.made.start_s))
            if again.makespan_s < made.makespan_s:
                made, in_order = again, like.in_order
        end_s = made.start_s + self._flat.compute_s[self._tasks, where]
        busy = self._code.chain(end_s, made.waited_for)
        return Judged(where, made.makespan_s, made, busy, in_order)

    def _by_load(self, where: Integers, like: Judged | None) -> Judged:
        found = self._code.loads(self._flat, where)
        most = int(found.argmax())
        return Judged(where, float(found[most]), None, find_busy(self._workload, where, most))


def find_busy(workload: Workload, where: Integers, most: int) -> Integers:
    """Return the tasks that load what is number `most` of `loads`: those on a machine, or those that send something over a
    medium."""
    if most < len(workload.machines):
        return np.flatnonzero(where == most)
    pairs = workload.media[most - len(workload.machines)].pairs
    senders = {
        tensor.source
        for tensor in workload.tensors
        if any((where[tensor.source], where[reader]) in pairs for reader in tensor.readers)
    }
    return np.array(sorted(senders), np.int64)


def find_critical_chain(workload: Workload, schedule: PlacementSchedule) -> tuple[int, ...]:
    """Return a chain of tasks from the end of the schedule to its start: each task waited for the next one in
    the chain, for its data or for its machine."""
    ends = [
        start + task.compute_s[m]
        for start, task, m in zip(schedule.start_s, workload.tasks, schedule.placement, strict=True)
    ]
    if not ends:
        return ()
    ended_there: dict[tuple[int, float], list[int]] = defaultdict(list)
    for number, end_s in enumerate(ends):
        ended_there[schedule.placement[number], end_s].append(number)
    arrived = {(t.tensor, t.target): t.end_s for t in schedule.transfers}
    task = max(range(len(ends)), key=ends.__getitem__)
    chain, seen = [task], {task}
    while True:
        here = schedule.placement[task]
        came = [
            (
                arrived.get((number, here), ends[workload.tensors[number].source]),
                workload.tensors[number].source,
            )
            for number in workload.read[task]
        ]
        data_s, source = max(came, default=(-1.0, -1))
        if data_s < schedule.start_s[task]:
            # What takes no time ends when it starts, and did not wait for itself.
            before = [one for one in ended_there[here, schedule.start_s[task]] if one not in seen]
            source = before[-1] if before else source
        if source < 0 or source in seen:
            return tuple(chain)
        task = source
        chain.append(task)
        seen.add(task)
