"""Dispatch: when everything happens, given where. Rules only.

Tasks and transfers wait in lists; whatever can begin first begins, and among those that could begin at the same
time the one with the larger rank. So a placement, and ranks, are a schedule. It is what all placers' answers are judged by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush

from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementSchedule
from edgepart.planner.placing.problem.workload import Placement, Workload


def upward_ranks(workload: Workload, placement: Placement | None = None) -> list[float]:
    """By task, seconds from its start to the end of the sample if nothing had to wait: on the machines of `placement`, or
    on average over machines and pairs of them (HEFT's upward rank)."""
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
    """By task what computing it takes where it can run, and by tensor what moving it takes, on average over machines and
    pairs of them."""
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
    """The schedule of a placement; `ranks` by task, larger first, default: upward ranks on that placement.

    A machine's place goes to what can start there first; a transfer needs both its sides."""
    return _Dispatch(workload, placement, ranks or upward_ranks(workload, placement)).run()


class _Dispatch:
    def __init__(self, workload: Workload, placement: Placement, ranks: Sequence[float]) -> None:
        self._workload = workload
        self._placement = tuple(placement)
        self._ranks = ranks
        machines = len(workload.machines)
        self._computing = [False] * machines
        self._sending = [False] * machines
        self._receiving = [False] * machines
        self._ready: list[list[tuple[float, int]]] = [[] for _ in range(machines)]
        """By machine, (-rank, task) that could start."""
        self._waiting: list[dict[int, list[tuple[float, int]]]] = [defaultdict(list) for _ in range(machines)]
        """By sender and receiver, (-rank, tensor) that could start but for a busy side."""
        self._missing = [0] * len(workload.tasks)
        self._start_s = [0.0] * len(workload.tasks)
        self._transfers: list[PlacedTransfer] = []
        self._events: list[tuple[float, int, int, int]] = []
        """(when, kind: 0 a transfer, 1 a task ends; which; receiver or machine)."""

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
                touched |= self._arrived(which, machine) if kind == 0 else self._computed(which)
            self._begin(now, touched)
        return PlacementSchedule(self._placement, tuple(self._start_s), tuple(self._transfers), now)

    def _offer(self, task: int) -> None:
        heappush(self._ready[self._placement[task]], (-self._ranks[task], task))

    def _computed(self, task: int) -> set[int]:
        """What has to do with machines that are free for more now."""
        workload, here = self._workload, self._placement[task]
        self._computing[here] = False
        for number in workload.written[task]:
            urgency: dict[int, float] = {}
            for reader in workload.tensors[number].readers:
                there = self._placement[reader]
                if there == here:
                    self._got(reader)
                else:
                    urgency[there] = max(urgency.get(there, 0.0), self._ranks[reader])
            for there, rank in urgency.items():
                heappush(self._waiting[here][there], (-rank, number))
        return {here}

    def _arrived(self, number: int, there: int) -> set[int]:
        tensor = self._workload.tensors[number]
        here = self._placement[tensor.source]
        self._sending[here] = self._receiving[there] = False
        for reader in tensor.readers:
            if self._placement[reader] == there:
                self._got(reader)
        # A receiving side that is free again may be what other senders wait for.
        return {here, there, *(m for m, waiting in enumerate(self._waiting) if waiting[there])}

    def _got(self, task: int) -> None:
        self._missing[task] -= 1
        if not self._missing[task]:
            self._offer(task)

    def _begin(self, now: float, machines: Sequence[int] | set[int] | range) -> None:
        for machine in sorted(machines):
            if not self._computing[machine] and self._ready[machine]:
                _, task = heappop(self._ready[machine])
                self._computing[machine] = True
                self._start_s[task] = now
                heappush(
                    self._events, (now + self._workload.tasks[task].compute_s[machine], 1, task, machine)
                )
        for machine in sorted(machines):
            if not self._sending[machine]:
                self._send(now, machine)

    def _send(self, now: float, here: int) -> None:
        """The most urgent transfer whose receiver has a side free."""
        free = [there for there, queue in self._waiting[here].items() if queue and not self._receiving[there]]
        if not free:
            return
        there = min(free, key=lambda receiver: self._waiting[here][receiver][0])
        _, number = heappop(self._waiting[here][there])
        end_s = now + self._workload.transfer_s(self._workload.tensors[number], here, there)
        self._sending[here] = self._receiving[there] = True
        self._transfers.append(PlacedTransfer(number, here, there, now, end_s))
        heappush(self._events, (end_s, 0, number, there))
