"""Serial schedules: tasks are booked one after another, on given machines or on those that score highest. Rules only.

A task begins in the first gap of its machine that is long enough, and a transfer behind those before it of its two
sides and of the media that it crosses, even if something else could begin before. dispatch.py never lets a machine
wait for something better; here it may, so that of the same placement now the one and now the other schedule is
shorter. flat_serial.py computes the same, to the last bit, in a form that numba compiles; this is for where nothing is
compiled, on lists, as Python looks into a list sooner than into an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isnan, log1p

import numpy as np

from edgepart.planner.placing.engine.flat_serial import FlatProblem
from edgepart.planner.placing.engine.flat_workload import (
    Booleans,
    FlatSchedule,
    FlatWorkload,
    Floats,
    Integers,
)


def schedule_in_order(flat: FlatWorkload, placement: Integers, order: Integers) -> FlatSchedule:
    """Return the schedule of a placement if tasks are booked in this order (n,), each after those that it reads from."""
    booked, where = _Booking(_Lists(flat)), placement.tolist()
    for task in order.tolist():
        booked.book(task, where[task])
    columns = zip(*booked.transfers, strict=True) if booked.transfers else ((), (), (), (), ())
    number, target, source, start_s, end_s = columns
    return FlatSchedule(
        max(booked.end_s, default=0.0),
        np.array(booked.start_s),
        np.array(booked.waited_for, np.int64),
        np.array([number, target], np.int64).T,
        np.array(source, np.int64),
        np.array(start_s, np.float64),
        np.array(end_s, np.float64),
    )


def decode(
    problem: FlatProblem,
    bias: Floats,
    weights: Floats,
    noise: Floats,
    standings: Floats,
    allowed: Booleans,
) -> tuple[Integers, Floats, Floats]:
    """Return the placements (k, n), starts (k, n) and makespans (k,) of k samples.

    A task goes to the machine of the highest score: `bias` (n, m), plus the machine's standings in the weights
    (n, STANDINGS) of the task, plus `noise` (k, n, m). If `standings` (k, n, m, STANDINGS) and `allowed` (k, n, m) are
    not empty, how machines stood and which could have the task are written there."""
    lists, order = _Lists(problem.flat), problem.order.tolist()
    bias_of, weights_of = bias.tolist(), weights.tolist()
    placements, starts_s, makespans_s = [], [], []
    for sample, noises in enumerate(noise.tolist()):
        decoding = _Decoding(problem, lists)
        for task in order:
            may = decoding.find_allowed(task)
            stands = decoding.compare(task, may)
            if len(standings):
                standings[sample, task], allowed[sample, task] = stands, may
            decoding.take(task, _choose(may, stands, bias_of[task], weights_of[task], noises[task]))
        placements.append(decoding.booked.where)
        starts_s.append(decoding.booked.start_s)
        makespans_s.append(max(decoding.booked.end_s, default=0.0))
    shape = len(noise), len(order)
    return (
        np.array(placements, np.int64).reshape(shape),
        np.array(starts_s, np.float64).reshape(shape),
        np.array(makespans_s, np.float64),
    )


def _choose(
    may: Sequence[bool],
    stands: Sequence[Sequence[float]],
    bias: Sequence[float],
    weights: Sequence[float],
    noise: Sequence[float],
) -> int:
    """Return the machine of the highest score. The sum is written out, as a loop takes Python as long as all the rest."""
    here, best = -1, -inf
    u0, u1, u2, u3, u4, u5, u6, u7 = weights
    for machine, (f0, f1, f2, f3, f4, f5, f6, f7) in enumerate(stands):
        if may[machine]:
            score = bias[machine] + noise[machine] + f0 * u0 + f1 * u1 + f2 * u2 + f3 * u3
            score = score + f4 * u4 + f5 * u5 + f6 * u6 + f7 * u7
            if here < 0 or score > best:
                here, best = machine, score
    return here


def rank_both_ways(flat: FlatWorkload, mean_s: Floats, way_s: Floats) -> tuple[Floats, Floats]:
    """Return the upward and the downward rank of each task (n,), in seconds, as flat_serial.py does, for tasks that take
    `mean_s` (n,) and transfers that take `way_s` (t,)."""
    lists, order = _Lists(flat), flat.order.tolist()
    took_s, moved_s = mean_s.tolist(), way_s.tolist()
    readers = _parted(flat.reader_starts, flat.readers)
    behind_s, before_s = [0.0] * len(order), [0.0] * len(order)
    for task in order:
        for number in lists.read[task]:
            source = lists.source[number]
            before_s[task] = max(before_s[task], before_s[source] + took_s[source] + moved_s[number])
    for task in reversed(order):
        after_s = 0.0
        for number in lists.written[task]:
            for reader in readers[number]:
                after_s = max(after_s, moved_s[number] + behind_s[reader])
        behind_s[task] = took_s[task] + after_s
    return np.array(behind_s), np.array(before_s)


def _parted(starts: Integers, items: Integers) -> list[list[int]]:
    """Return the lists that lie one after another in `items`."""
    every = items.tolist()
    return [every[a:b] for a, b in pairwise(starts.tolist())]


class _Lists:
    """A flat workload in lists."""

    def __init__(self, flat: FlatWorkload) -> None:
        self.machines = flat.compute_s.shape[1]
        self.compute_s: list[list[float]] = flat.compute_s.tolist()
        self.source: list[int] = flat.source.tolist()
        self.nbytes: list[float] = flat.nbytes.tolist()
        self.read, self.written = (
            _parted(flat.read_starts, flat.read),
            _parted(flat.written_starts, flat.written),
        )
        self.media = flat.media
        self.crossed = _parted(flat.crossed_starts, flat.crossed)
        self._latency_s: list[list[float]] = flat.latency_s.tolist()
        self._bytes_per_s: list[list[float]] = flat.bytes_per_s.tolist()
        self._given: list[int] = flat.given.tolist()
        self._given_s: list[list[list[float]]] = flat.given_s.tolist()

    def way_s(self, number: int, here: int, there: int) -> float:
        """Seconds for which a transfer of the tensor occupies both ends; 0 from a machine to itself."""
        if here == there:
            return 0.0
        row = self._given[number]
        if row >= 0 and not isnan(seconds := self._given_s[row][here][there]):
            return seconds
        return self._latency_s[here][there] + self.nbytes[number] / self._bytes_per_s[here][there]


class _Booking:
    """What is booked so far."""

    def __init__(self, lists: _Lists) -> None:
        tasks, machines = len(lists.compute_s), lists.machines
        self._lists = lists
        self.where = [0] * tasks
        self.start_s, self.end_s = [0.0] * tasks, [0.0] * tasks
        self.waited_for = [-1] * tasks
        """The task that each task waited for last, for its data or for its machine; -1 for none."""
        self._run_start_s: list[list[float]] = [[] for _ in range(machines)]
        self._run_end_s: list[list[float]] = [[] for _ in range(machines)]
        self._run_task: list[list[int]] = [[] for _ in range(machines)]
        """When each machine begins and ends what it computes, in order."""
        self._sending_s, self._receiving_s = [0.0] * machines, [0.0] * machines
        self._crossing_s = [0.0] * lists.media
        self.there_s = [[inf] * machines for _ in lists.source]
        """When each tensor is on each machine; inf where it was not sent."""
        self.transfers: list[tuple[int, int, int, float, float]] = []
        """(tensor, receiver, sender, start, end)."""

    def leave_s(self, number: int, there: int) -> float:
        """When a transfer of the tensor to another machine could begin."""
        source = self._lists.source[number]
        here = self.where[source]
        found_s = max(self.end_s[source], self._sending_s[here], self._receiving_s[there])
        for medium in self._lists.crossed[here * self._lists.machines + there]:
            found_s = max(found_s, self._crossing_s[medium])
        return found_s

    def find_arrivals(self, number: int) -> Iterator[tuple[float, float]]:
        """For each machine, when the tensor is or could be there, and the seconds of the transfer; -1 if it is there."""
        here = self.where[self._lists.source[number]]
        for machine, there_s in enumerate(self.there_s[number]):
            if there_s == inf:
                way_s = self._lists.way_s(number, here, machine)
                yield self.leave_s(number, machine) + way_s, way_s
            else:
                yield there_s, -1.0

    def find_gap(self, machine: int, ready_s: float, took_s: float) -> tuple[int, float]:
        """Behind how many of the machine's runs something that takes `took_s` could begin first, and when."""
        starts_s, ends_s = self._run_start_s[machine], self._run_end_s[machine]
        at = found = len(starts_s)
        while at > 0 and starts_s[at - 1] > ready_s:
            at -= 1
            free_s = ready_s
            if at > 0 and ends_s[at - 1] > ready_s:
                free_s = ends_s[at - 1]
            if free_s + took_s <= starts_s[at]:
                found = at
        if found > 0 and ends_s[found - 1] > ready_s:
            return found, ends_s[found - 1]
        return found, ready_s

    def book(self, task: int, here: int) -> None:
        """Book the task on the machine, and the transfers that this takes."""
        lists, ready_s, came_from = self._lists, 0.0, -1
        for number in lists.read[task]:
            there_s = self.there_s[number]
            if there_s[here] == inf:
                self._send(number, here)
            if there_s[here] > ready_s or came_from < 0:
                ready_s, came_from = there_s[here], lists.source[number]
        took_s = lists.compute_s[task][here]
        behind, start_s = self.find_gap(here, ready_s, took_s)
        end_s = start_s + took_s
        self.where[task], self.start_s[task], self.end_s[task] = here, start_s, end_s
        self.waited_for[task] = came_from
        if behind > 0 and start_s > ready_s:
            self.waited_for[task] = self._run_task[here][behind - 1]
        self._run_start_s[here].insert(behind, start_s)
        self._run_end_s[here].insert(behind, end_s)
        self._run_task[here].insert(behind, task)
        for number in lists.written[task]:
            self.there_s[number][here] = end_s

    def _send(self, number: int, there: int) -> None:
        here, start_s = self.where[self._lists.source[number]], self.leave_s(number, there)
        end_s = start_s + self._lists.way_s(number, here, there)
        self._sending_s[here] = self._receiving_s[there] = self.there_s[number][there] = end_s
        for medium in self._lists.crossed[here * self._lists.machines + there]:
            self._crossing_s[medium] = end_s
        self.transfers.append((number, there, here, start_s, end_s))


class _Decoding:
    """What machines have so far, and how they stand for the task that is placed now."""

    def __init__(self, problem: FlatProblem, lists: _Lists) -> None:
        self.booked = _Booking(lists)
        self._lists, self._unit_s = lists, problem.unit_s
        self._able: list[list[bool]] = problem.able.tolist()
        self._group: list[int] = problem.group.tolist()
        self._group_bytes: list[float] = problem.group_bytes.tolist()
        self._left_bytes: list[float] = problem.memory_bytes.tolist()
        self._chosen = [-1] * len(self._group_bytes)
        self._busy_s = [0.0] * lists.machines

    def find_allowed(self, task: int) -> list[bool]:
        """The machines that can have the task. Where none has room, it is the one with most memory left."""
        group, able, left = self._group[task], self._able[task], self._left_bytes
        chosen, need = self._chosen[group], self._group_bytes[self._group[task]]
        if chosen < 0:
            may = [can and need <= room for can, room in zip(able, left, strict=True)]
            if True in may:
                return may
            chosen = max((m for m, can in enumerate(able) if can), key=left.__getitem__)
        return [machine == chosen for machine in range(len(able))]

    def compare(self, task: int, may: Sequence[bool]) -> list[tuple[float, ...]]:
        """The figures that say how each machine stands, of which none has a unit."""
        lists, booked = self._lists, self.booked
        ready_s, moving_s, kept = ([0.0] * lists.machines for _ in range(3))
        whole = 0.0
        for number in lists.read[task]:
            nbytes = lists.nbytes[number]
            whole += nbytes
            for machine, (came_s, way_s) in enumerate(booked.find_arrivals(number)):
                if way_s < 0.0:
                    kept[machine] += nbytes
                else:
                    moving_s[machine] += way_s
                if came_s > ready_s[machine]:
                    ready_s[machine] = came_s
        took_s = [s if can else 0.0 for s, can in zip(lists.compute_s[task], may, strict=True)]
        begin_s = [
            booked.find_gap(machine, *both)[1]
            for machine, both in enumerate(zip(ready_s, took_s, strict=True))
        ]
        finish_s = [begin + took for begin, took in zip(begin_s, took_s, strict=True)]
        first_s = min([one for one, can in zip(finish_s, may, strict=True) if can])
        soonest_s, unit_s, all_busy_s = min(ready_s), self._unit_s, self._unit_s
        for busy_s in self._busy_s:
            all_busy_s += busy_s
        stands: list[tuple[float, ...]] = []
        columns = zip(finish_s, begin_s, ready_s, kept, self._busy_s, moving_s, strict=True)
        for finish, begin, ready, stays, busy_s, moving in columns:
            late = (finish - first_s) / unit_s if finish > first_s else 0.0
            stands.append(
                (
                    log1p(late),
                    late if late < 10.0 else 10.0,
                    log1p((begin - ready) / unit_s),
                    log1p((ready - soonest_s) / unit_s),
                    stays / whole if whole > 0 else 0.0,
                    1.0 if busy_s > 0 else 0.0,
                    busy_s / all_busy_s,
                    log1p(moving / unit_s),
                )
            )
        return stands

    def take(self, task: int, here: int) -> None:
        """Book the task on the machine, which then has the group of the task."""
        self.booked.book(task, here)
        group = self._group[task]
        self._busy_s[here] += self._lists.compute_s[task][here]
        if self._chosen[group] < 0:
            self._chosen[group] = here
            self._left_bytes[here] -= self._group_bytes[group]
