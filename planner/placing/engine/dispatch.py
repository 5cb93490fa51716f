"""Dispatch: turn a placement into a schedule. Rules only.

Tasks and transfers wait in lists; the one that can begin first begins, and of those that could begin at the
same time, the one with the larger rank, or with equal ranks the first in the file. A placement and ranks
therefore determine a schedule, by which the answers of all placers are judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf

from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementSchedule
from edgepart.planner.placing.problem.workload import Placement, Workload


def upward_ranks(workload: Workload, placement: Placement | None = None) -> list[float]:
    """Return HEFT's upward rank of each task: the seconds from its start to the end of the sample if nothing
    had to wait, on the machines of `placement`, or on average over machines and pairs of machines."""
    if placement is None:
        compute_s, transfer_s = mean_costs(workload)
    else:
        compute_s = [task.compute_s[m] for task, m in zip(workload.tasks, placement, strict=True)]
        transfer_s = []
    ranks = [0.0] * len(workload.tasks)
    for task in reversed(workload.order):
        behind = 0.0
        for number in workload.written[task]:
            tensor = workload.tensors[number]
            for reader in tensor.readers:
                if placement is None:
                    way_s = transfer_s[number]
                else:
                    way_s = workload.transfer_s(tensor, placement[task], placement[reader])
                behind = max(behind, way_s + ranks[reader])
        ranks[task] = compute_s[task] + behind
    return ranks


def mean_costs(workload: Workload) -> tuple[list[float], list[float]]:
    """Return the mean seconds to compute each task, over the machines that can run it, and the mean seconds
    to move each tensor, over pairs of machines."""
    finite = [[s for s in task.compute_s if s < float("inf")] for task in workload.tasks]
    compute_s = [sum(row) / len(row) if row else 0.0 for row in finite]
    machines = range(len(workload.machines))
    pairs = [(a, b) for a in machines for b in machines if a != b]
    if not pairs:
        return compute_s, [0.0] * len(workload.tensors)
    latency_s = sum(workload.latency_s[a][b] for a, b in pairs) / len(pairs)
    per_byte_s = sum(1 / workload.bytes_per_s[a][b] for a, b in pairs) / len(pairs)
    return compute_s, [
        sum(workload.transfer_s(tensor, a, b) for a, b in pairs) / len(pairs)
        if tensor.transfer_s
        else latency_s + per_byte_s * tensor.nbytes
        for tensor in workload.tensors
    ]


def dispatch(
    workload: Workload, placement: Placement, ranks: Sequence[float] | None = None
) -> PlacementSchedule:
    """Return the schedule of a placement. `ranks` has a rank for each task, larger first; the default is the
    upward ranks on that placement.

    A machine runs the task that can start there first; a transfer needs both of its sides, and the media that it
    crosses, to be free."""
    return _Dispatch(workload, placement, ranks or upward_ranks(workload, placement)).run()


class _Dispatch:
    def __init__(self, workload: Workload, placement: Placement, ranks: Sequence[float]) -> None:
        self._workload = workload
        self._placement = tuple(placement)
        self._ranks = ranks
        machines = len(workload.machines)
        self._computing = [False] * machines
        self._crossing: set[int] = set()
        """The media that something crosses."""
        self._sending = [False] * machines
        self._receiving = [False] * machines
        self._ready: list[list[tuple[float, int]]] = [[] for _ in range(machines)]
        """The tasks that could start on each machine, as (-rank, task)."""
        self._waiting: list[dict[int, list[tuple[float, int]]]] = [{} for _ in range(machines)]
        """The tensors that wait only for a busy side, as (-rank, tensor), by sender and receiver; no list is empty."""
        self._missing = [0] * len(workload.tasks)
        self._start_s = [0.0] * len(workload.tasks)
        self._transfers: list[PlacedTransfer] = []
        self._events: list[tuple[float, int, int, int]] = []
        """(end, kind, tensor or task, receiver or machine). Kind is 0 for a transfer and 1 for a task."""

    def run(self) -> PlacementSchedule:
        workload, now = self._workload, 0.0
        for task, read in enumerate(workload.read):
            self._missing[task] = len(read)
            if not read:
                self._offer(task)
        self._begin(now, range(len(workload.machines)))
        while self._events:
            now = self._events[0][0]
            touched: set[int] = set()
            while self._events and self._events[0][0] == now:
                _, kind, which, machine = heappop(self._events)
                touched |= self._note_arrival(which, machine) if kind == 0 else self._note_end(which)
            self._begin(now, touched)
        return PlacementSchedule(self._placement, tuple(self._start_s), tuple(self._transfers), now)

    def _offer(self, task: int) -> None:
        heappush(self._ready[self._placement[task]], (-self._ranks[task], task))

    def _note_end(self, task: int) -> set[int]:
        """Queue what a task that has ended makes possible; return the machines that may begin something new."""
        workload, here = self._workload, self._placement[task]
        self._computing[here] = False
        for number in workload.written[task]:
            urgency: dict[int, float] = {}
            for reader in workload.tensors[number].readers:
                there = self._placement[reader]
                if there == here:
                    self._got(reader)
                else:
                    # From below all ranks: those that are negated starts are negative.
                    urgency[there] = max(urgency.get(there, -inf), self._ranks[reader])
            for there, rank in urgency.items():
                heappush(self._waiting[here].setdefault(there, []), (-rank, number))
        return {here}

    def _note_arrival(self, number: int, there: int) -> set[int]:
        tensor = self._workload.tensors[number]
        here = self._placement[tensor.source]
        self._sending[here] = self._receiving[there] = False
        for reader in tensor.readers:
            if self._placement[reader] == there:
                self._got(reader)
        # Other senders may have been waiting for this receiving side, or for a medium.
        touched = {here, there}
        touched.update([m for m, waiting in enumerate(self._waiting) if there in waiting])
        for medium in self._workload.crossed[here][there]:
            self._crossing.remove(medium)
            touched.update([a for a, b in self._workload.media[medium].pairs if b in self._waiting[a]])
        return touched

    def _got(self, task: int) -> None:
        self._missing[task] -= 1
        if not self._missing[task]:
            self._offer(task)

    def _begin(self, now: float, touched: Iterable[int]) -> None:
        machines = sorted(touched)
        for machine in machines:
            if self._ready[machine] and not self._computing[machine]:
                _, task = heappop(self._ready[machine])
                self._computing[machine] = True
                self._start_s[task] = now
                heappush(
                    self._events, (now + self._workload.tasks[task].compute_s[machine], 1, task, machine)
                )
        for machine in machines:
            if self._waiting[machine] and not self._sending[machine]:
                self._send(now, machine)

    def _send(self, now: float, here: int) -> None:
        """Begin the most urgent transfer whose receiver has its receiving side free, with all media on the way."""
        crossed, waiting = self._workload.crossed[here], self._waiting[here]
        free = [
            (queue[0], there)
            for there, queue in waiting.items()
            if not self._receiving[there] and self._crossing.isdisjoint(crossed[there])
        ]
        if not free:
            return
        (_, number), there = min(free)
        heappop(waiting[there])
        if not waiting[there]:
            del waiting[there]
        end_s = now + self._workload.transfer_s(self._workload.tensors[number], here, there)
        self._sending[here] = self._receiving[there] = True
        self._crossing |= crossed[there]
        self._transfers.append(PlacedTransfer(number, here, there, now, end_s))
        heappush(self._events, (end_s, 0, number, there))
