"""Retiming: start everything in a schedule as early as possible without a change of order. Rules only."""

from __future__ import annotations

from heapq import heappop, heappush

from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload


def retime(workload: Workload, schedule: PlacementSchedule) -> PlacementSchedule:
    """Return the schedule with the same placement and the same orders, and with the times that everything
    really takes.

    The given times need only be about right: a task or transfer comes after everything that it waits for, and
    of those that can begin, the one that is first in the given schedule begins first. A schedule that keeps
    the rules never gets longer.
    """
    return _Retiming(workload, schedule).run()


class _Retiming:
    def __init__(self, workload: Workload, schedule: PlacementSchedule) -> None:
        self._workload = workload
        self._schedule = schedule
        machines = len(workload.machines)
        self._computing, self._sending, self._receiving = ([0.0] * machines for _ in range(3))
        self._crossing = [0.0] * len(workload.media)
        self._moved = {(t.tensor, t.target): t for t in schedule.transfers}
        self._missing = [len(read) for read in workload.read]
        self._ready_s = [0.0] * len(workload.tasks)
        self._start_s = [0.0] * len(workload.tasks)
        self._transfers: list[PlacedTransfer] = []
        self._waiting: list[tuple[float, float, int, int]] = []
        """(planned start, planned end, task or tensor, receiver or -1 for a task)."""
        self._end_s = 0.0

    def run(self) -> PlacementSchedule:
        for task, count in enumerate(self._missing):
            if not count:
                self._offer(task)
        while self._waiting:
            _, _, which, target = heappop(self._waiting)
            if target < 0:
                self._compute(which)
            else:
                self._move(which, target)
        return PlacementSchedule(
            self._schedule.placement, tuple(self._start_s), tuple(self._transfers), self._end_s
        )

    def _offer(self, task: int) -> None:
        start_s = self._schedule.start_s[task]
        took_s = self._workload.tasks[task].compute_s[self._schedule.placement[task]]
        heappush(self._waiting, (start_s, start_s + took_s, task, -1))

    def _compute(self, task: int) -> None:
        workload, here = self._workload, self._schedule.placement[task]
        start_s = max(self._ready_s[task], self._computing[here])
        end_s = start_s + workload.tasks[task].compute_s[here]
        self._start_s[task] = start_s
        self._computing[here] = end_s
        self._end_s = max(self._end_s, end_s)
        for number in workload.written[task]:
            targets: set[int] = set()
            for reader in workload.tensors[number].readers:
                there = self._schedule.placement[reader]
                if there == here:
                    self._got(reader, end_s)
                else:
                    targets.add(there)
            for there in sorted(targets):
                planned = self._moved[number, there]
                heappush(self._waiting, (planned.start_s, planned.end_s, number, there))

    def _move(self, number: int, there: int) -> None:
        tensor = self._workload.tensors[number]
        here = self._schedule.placement[tensor.source]
        made_s = self._start_s[tensor.source] + self._workload.tasks[tensor.source].compute_s[here]
        crossed = self._workload.crossed[here][there]
        free_s = (self._crossing[medium] for medium in crossed)
        start_s = max(made_s, self._sending[here], self._receiving[there], *free_s)
        end_s = start_s + self._workload.transfer_s(tensor, here, there)
        self._sending[here] = self._receiving[there] = end_s
        for medium in crossed:
            self._crossing[medium] = end_s
        self._transfers.append(PlacedTransfer(number, here, there, start_s, end_s))
        for reader in tensor.readers:
            if self._schedule.placement[reader] == there:
                self._got(reader, end_s)

    def _got(self, task: int, now_s: float) -> None:
        self._missing[task] -= 1
        self._ready_s[task] = max(self._ready_s[task], now_s)
        if not self._missing[task]:
            self._offer(task)
