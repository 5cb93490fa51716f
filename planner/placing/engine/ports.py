"""Sides: when machines are free to compute, send and receive, while a list scheduler books them. Rules only."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf

from edgepart.planner.placing.problem.workload import Workload

MOST_SPANS = 256
"""The most busy spans that a timeline keeps apart. With more, the gaps in the earlier half are given up."""


class Timeline:
    """Busy spans of one side of a machine, in order, none touching the next."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []

    @property
    def end(self) -> float:
        """The time at which the last span ends."""
        return self.ends[-1] if self.ends else 0.0

    def first(self, ready_s: float, length_s: float) -> float:
        """The first time, from `ready_s` on, at which the timeline is free for `length_s`."""
        starts, ends = self.starts, self.ends
        if not ends or ready_s >= ends[-1]:
            return ready_s
        at = bisect_right(ends, ready_s)
        start_s = ready_s
        for number in range(at, len(ends)):
            if start_s + length_s <= starts[number]:
                return start_s
            start_s = max(start_s, ends[number])
        return start_s

    def take(self, start_s: float, end_s: float) -> None:
        """Mark the time from `start_s` to `end_s`, which was free, as busy."""
        starts, ends = self.starts, self.ends
        if end_s <= start_s:
            return
        if not ends or start_s > ends[-1]:
            starts.append(start_s)
            ends.append(end_s)
        elif start_s == ends[-1]:
            ends[-1] = end_s
        else:
            at = bisect_left(starts, start_s)
            starts.insert(at, start_s)
            ends.insert(at, end_s)
            self._join(at)
            self._join(at - 1)
        if len(ends) > MOST_SPANS:
            del starts[1 : MOST_SPANS // 2]
            del ends[: MOST_SPANS // 2 - 1]

    def _join(self, at: int) -> None:
        """Merge a span with the next one if they touch."""
        if 0 <= at < len(self.ends) - 1 and self.ends[at] >= self.starts[at + 1]:
            self.ends[at] = max(self.ends[at], self.ends.pop(at + 1))
            del self.starts[at + 1]


def all_first(timelines: Sequence[Timeline], ready_s: float, length_s: float) -> float:
    """The first time, from `ready_s` on, at which all timelines are free for `length_s`."""
    while True:
        start_s = ready_s
        for one in timelines:
            start_s = one.first(start_s, length_s)
        if start_s == ready_s:
            return start_s
        ready_s = start_s


class Sides:
    """The bookings of all machines' sides while tasks are placed, each after those that it reads from."""

    def __init__(self, workload: Workload, *, contention: bool = True) -> None:
        """Without `contention`, transfers do not wait for each other, as in HEFT's paper."""
        count = len(workload.machines)
        self._workload = workload
        self._contention = contention
        self.computing = [Timeline() for _ in range(count)]
        self.sending = [Timeline() for _ in range(count)]
        self.receiving = [Timeline() for _ in range(count)]
        self.crossing = [Timeline() for _ in workload.media]
        self.machine = [-1] * len(workload.tasks)
        """The machine of each task; -1 before the task is placed."""
        self.start_s = [0.0] * len(workload.tasks)
        self.end_s = [0.0] * len(workload.tasks)
        self._arrived: list[dict[int, float]] = [{} for _ in workload.tensors]
        """The time at which each tensor arrived, by tensor and machine."""

    def ready_s(self, task: int, machine: int) -> float:
        """The time at which everything that the task reads could be there. All tasks that it reads from must be placed."""
        return self._schedule_arrivals(task, machine)[0]

    def _schedule_arrivals(self, task: int, there: int) -> tuple[float, list[tuple[int, int, float, float]]]:
        """Return the time at which the task can start there, and the transfers for it, one after another, as
        (tensor, source, start, end)."""
        workload, ready_s = self._workload, 0.0
        wanted: list[tuple[float, int]] = []
        for number in workload.read[task]:
            source = workload.tensors[number].source
            if self.machine[source] == there:
                ready_s = max(ready_s, self.end_s[source])
            elif there in self._arrived[number]:
                ready_s = max(ready_s, self._arrived[number][there])
            else:
                wanted.append((self.end_s[source], number))
        if not wanted:
            return ready_s, []
        wanted.sort()
        last_s, transfers = 0.0, []
        for made_s, number in wanted:
            tensor = workload.tensors[number]
            here = self.machine[tensor.source]
            took_s = workload.transfer_s(tensor, here, there)
            start_s = made_s
            if self._contention:
                start_s = all_first(self._occupied(here, there), max(made_s, last_s), took_s)
            last_s = start_s + took_s
            ready_s = max(ready_s, last_s)
            transfers.append((number, here, start_s, last_s))
        return ready_s, transfers

    def _occupied(self, here: int, there: int) -> list[Timeline]:
        """The sides and media that a transfer occupies."""
        media = [self.crossing[medium] for medium in self._workload.crossed[here][there]]
        return [self.sending[here], self.receiving[there], *media]

    def place(self, task: int, machine: int, *, gaps: bool = False) -> None:
        """Book the task and its transfers. With `gaps`, it may start before tasks that were placed earlier."""
        ready_s, transfers = self._schedule_arrivals(task, machine)
        for number, here, start_s, end_s in transfers:
            self._arrived[number][machine] = end_s
            if self._contention:
                for timeline in self._occupied(here, machine):
                    timeline.take(start_s, end_s)
        took_s = self._workload.tasks[task].compute_s[machine]
        computing = self.computing[machine]
        start_s = computing.first(ready_s, took_s) if gaps else max(ready_s, computing.end)
        computing.take(start_s, start_s + took_s)
        self.machine[task] = machine
        self.start_s[task], self.end_s[task] = start_s, start_s + took_s

    def finish_s(self, task: int, machine: int) -> float:
        """The time at which the task would end there, in the first gap that is long enough; inf if it cannot run there."""
        took_s = self._workload.tasks[task].compute_s[machine]
        if took_s == inf:
            return inf
        return self.computing[machine].first(self.ready_s(task, machine), took_s) + took_s
