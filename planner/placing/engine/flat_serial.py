"""Serial schedules on arrays, in a form that numba compiles: tasks are booked one after another. Rules only. Where nothing
is compiled, serial.py computes the same.

A task begins in the first gap of its machine that is long enough, and a transfer behind those before it of its two
sides and of the media that it crosses, even if something else could begin before. dispatch.py never lets a machine
wait for something better; here it may, so that of the same placement now the one and now the other schedule is
shorter. The machine of each task is given (`schedule_in_order`), or chosen when its turn comes (`decode`).

What is compiled calls nothing but what is compiled.
"""

from __future__ import annotations

from math import inf, log1p
from typing import NamedTuple

import numpy as np

from edgepart.planner.placing.engine.compiler import compiled, compiled_part
from edgepart.planner.placing.engine.flat_workload import (
    Booleans,
    FlatSchedule,
    FlatWorkload,
    Floats,
    Integers,
)

STANDINGS = 8
"""The number of figures that say how a machine stands for a task."""


class _SerialBooking(NamedTuple):
    """What is booked so far, of n tasks, t tensors and m machines."""

    where: Integers
    start_s: Floats
    end_s: Floats
    """(n,)."""
    waited_for: Integers
    """(n,). The task that each task waited for last, for its data or for its machine; -1 for none."""
    run_start_s: Floats
    run_end_s: Floats
    """(m, n). When each machine begins and ends what it computes, in order; `runs` of them count."""
    run_task: Integers
    runs: Integers
    """(m,)."""
    sending_s: Floats
    receiving_s: Floats
    """(m,). When each machine sends and receives nothing any more."""
    crossing_s: Floats
    """When nothing crosses each medium any more."""
    there_s: Floats
    """(t, m). When each tensor is on each machine; inf where it was not sent."""
    transfers: Integers
    """(k, 2). The tensor and the receiver of each transfer; `moved` of them count."""
    transfer_source: Integers
    transfer_start_s: Floats
    transfer_end_s: Floats
    moved: Integers
    """(1,)."""


@compiled
def _begin(flat: FlatWorkload) -> _SerialBooking:
    tasks, machines = flat.compute_s.shape
    most = len(flat.readers)
    return _SerialBooking(
        np.zeros(tasks, np.int64),
        np.zeros(tasks),
        np.zeros(tasks),
        np.full(tasks, -1, np.int64),
        np.zeros((machines, tasks)),
        np.zeros((machines, tasks)),
        np.zeros((machines, tasks), np.int64),
        np.zeros(machines, np.int64),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(flat.media),
        np.full((len(flat.source), machines), inf),
        np.empty((most, 2), np.int64),
        np.empty(most, np.int64),
        np.empty(most),
        np.empty(most),
        np.zeros(1, np.int64),
    )


@compiled_part
def _way_s(flat: FlatWorkload, number: int, here: int, there: int) -> float:
    """Return the seconds for which a transfer of the tensor occupies both ends; 0 from a machine to itself.

    This is written as in flat_dispatch.py and not called there, as numba keeps what it compiled by the file of the caller,
    and would not notice a change in another file."""
    if here == there:
        return 0.0
    row = flat.given[number]
    if row >= 0:
        seconds = flat.given_s[row, here, there]
        if not np.isnan(seconds):
            return seconds  # type: ignore[no-any-return]
    return flat.latency_s[here, there] + flat.nbytes[number] / flat.bytes_per_s[here, there]  # type: ignore[no-any-return]


@compiled_part
def _leave_s(flat: FlatWorkload, booked: _SerialBooking, number: int, there: int) -> float:
    """Return when a transfer of the tensor to another machine could begin."""
    source = flat.source[number]
    here = booked.where[source]
    found_s = max(booked.end_s[source], max(booked.sending_s[here], booked.receiving_s[there]))
    way = here * len(booked.runs) + there
    for at in range(flat.crossed_starts[way], flat.crossed_starts[way + 1]):
        found_s = max(found_s, booked.crossing_s[flat.crossed[at]])
    return found_s  # type: ignore[no-any-return]


@compiled_part
def _gap(booked: _SerialBooking, machine: int, ready_s: float, took_s: float) -> int:
    """Return behind how many of the machine's runs something that takes `took_s` could begin first."""
    at = booked.runs[machine]
    found = at
    while at > 0 and booked.run_start_s[machine, at - 1] > ready_s:
        at -= 1
        free_s = max(ready_s, booked.run_end_s[machine, at - 1]) if at > 0 else ready_s
        if free_s + took_s <= booked.run_start_s[machine, at]:
            found = at
    return found  # type: ignore[no-any-return]


@compiled_part
def _begin_s(booked: _SerialBooking, machine: int, behind: int, ready_s: float) -> float:
    """Return when the machine begins something behind so many of its runs."""
    return max(ready_s, booked.run_end_s[machine, behind - 1]) if behind > 0 else ready_s


@compiled_part
def _book(flat: FlatWorkload, booked: _SerialBooking, task: int, here: int) -> None:
    """Book the task on the machine, and the transfers that this takes."""
    ready_s, came_from = 0.0, -1
    for at in range(flat.read_starts[task], flat.read_starts[task + 1]):
        number = flat.read[at]
        if booked.there_s[number, here] == inf:
            _send(flat, booked, number, here)
        if booked.there_s[number, here] > ready_s or came_from < 0:
            ready_s, came_from = booked.there_s[number, here], flat.source[number]
    took_s = flat.compute_s[task, here]
    behind = _gap(booked, here, ready_s, took_s)
    start_s = _begin_s(booked, here, behind, ready_s)
    booked.where[task], booked.start_s[task], booked.end_s[task] = here, start_s, start_s + took_s
    booked.waited_for[task] = came_from
    if behind > 0 and start_s > ready_s:
        booked.waited_for[task] = booked.run_task[here, behind - 1]
    for run in range(booked.runs[here], behind, -1):
        booked.run_start_s[here, run] = booked.run_start_s[here, run - 1]
        booked.run_end_s[here, run] = booked.run_end_s[here, run - 1]
        booked.run_task[here, run] = booked.run_task[here, run - 1]
    booked.run_start_s[here, behind], booked.run_end_s[here, behind] = start_s, start_s + took_s
    booked.run_task[here, behind] = task
    booked.runs[here] += 1
    for at in range(flat.written_starts[task], flat.written_starts[task + 1]):
        booked.there_s[flat.written[at], here] = start_s + took_s


@compiled_part
def _send(flat: FlatWorkload, booked: _SerialBooking, number: int, there: int) -> None:
    """Book a transfer of the tensor."""
    here, start_s = booked.where[flat.source[number]], _leave_s(flat, booked, number, there)
    end_s = start_s + _way_s(flat, number, here, there)
    booked.sending_s[here] = booked.receiving_s[there] = booked.there_s[number, there] = end_s
    way, moved = here * len(booked.runs) + there, booked.moved[0]
    for at in range(flat.crossed_starts[way], flat.crossed_starts[way + 1]):
        booked.crossing_s[flat.crossed[at]] = end_s
    booked.transfers[moved, 0], booked.transfers[moved, 1] = number, there
    booked.transfer_source[moved] = here
    booked.transfer_start_s[moved], booked.transfer_end_s[moved] = start_s, end_s
    booked.moved[0] = moved + 1


@compiled
def schedule_in_order(flat: FlatWorkload, placement: Integers, order: Integers) -> FlatSchedule:
    """Return the schedule of a placement if tasks are booked in this order (n,), each after those that it reads from."""
    booked = _begin(flat)
    makespan_s = 0.0
    for task in order:
        _book(flat, booked, task, placement[task])
        makespan_s = max(makespan_s, booked.end_s[task])
    moved = booked.moved[0]
    return FlatSchedule(
        makespan_s,
        booked.start_s,
        booked.waited_for,
        booked.transfers[:moved],
        booked.transfer_source[:moved],
        booked.transfer_start_s[:moved],
        booked.transfer_end_s[:moved],
    )


class FlatProblem(NamedTuple):
    """What decoding knows of a workload with n tasks, m machines and g groups of tasks that stay together."""

    flat: FlatWorkload
    order: Integers
    """(n,). The tasks as they are placed, each after those that it reads from."""
    able: Booleans
    """(n, m). The machines that can have each task, were there nothing else."""
    group: Integers
    """(n,). The group of each task."""
    group_bytes: Floats
    """(g,). The memory that each group takes."""
    memory_bytes: Floats
    """(m,)."""
    unit_s: float
    """The mean over tasks of their seconds on the machine that computes them fastest."""


class _Choosing(NamedTuple):
    """What machines have so far, and how they stand for the task that is placed now; (m,) but for `chosen`."""

    busy_s: Floats
    """The seconds that each machine computes."""
    left_bytes: Floats
    chosen: Integers
    """(g,). The machine of each group; -1 before it has one."""
    ready_s: Floats
    begin_s: Floats
    finish_s: Floats
    """When the task's inputs could be on each machine, and when it could begin and be done there."""
    moving_s: Floats
    """The seconds of the transfers that this takes."""
    here: Floats
    """The bytes of its inputs that are there already."""


@compiled
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
    samples, tasks, machines = noise.shape
    placements = np.empty((samples, tasks), np.int64)
    starts_s, makespans_s = np.empty((samples, tasks)), np.zeros(samples)
    stands, may = np.empty((machines, STANDINGS)), np.empty(machines, np.bool_)
    for sample in range(samples):
        booked, choosing = _begin(problem.flat), _begin_choosing(problem)
        for task in problem.order:
            _find_allowed(problem, choosing, task, may)
            _look(problem, booked, choosing, task, may, stands)
            here, best = -1, -inf
            for machine in range(machines):
                if may[machine]:
                    score = bias[task, machine] + noise[sample, task, machine]
                    for figure in range(STANDINGS):
                        score += stands[machine, figure] * weights[task, figure]
                    if here < 0 or score > best:
                        here, best = machine, score
            if len(standings) > 0:
                standings[sample, task] = stands
                allowed[sample, task] = may
            _book(problem.flat, booked, task, here)
            _take(problem, choosing, task, here)
            makespans_s[sample] = max(makespans_s[sample], booked.end_s[task])
        placements[sample] = booked.where
        starts_s[sample] = booked.start_s
    return placements, starts_s, makespans_s


@compiled
def _begin_choosing(problem: FlatProblem) -> _Choosing:
    machines = len(problem.memory_bytes)
    return _Choosing(
        np.zeros(machines),
        problem.memory_bytes.copy(),
        np.full(len(problem.group_bytes), -1, np.int64),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(machines),
    )


@compiled_part
def _find_allowed(problem: FlatProblem, choosing: _Choosing, task: int, may: Booleans) -> None:
    """Find the machines that can have the task. Where none has room, it is the one with most memory left."""
    group = problem.group[task]
    chosen, roomiest, roomy = choosing.chosen[group], -1, False
    left = choosing.left_bytes
    for machine in range(len(may)):
        may[machine] = problem.able[task, machine] and problem.group_bytes[group] <= left[machine]
        roomy = roomy or may[machine]
        if problem.able[task, machine] and (roomiest < 0 or left[machine] > left[roomiest]):
            roomiest = machine
    if chosen >= 0 or not roomy:
        for machine in range(len(may)):
            may[machine] = machine == (chosen if chosen >= 0 else roomiest)


@compiled_part
def _look(
    problem: FlatProblem,
    booked: _SerialBooking,
    choosing: _Choosing,
    task: int,
    may: Booleans,
    stands: Floats,
) -> None:
    """Find how each machine stands for the task."""
    flat, machines, whole = problem.flat, len(may), 0.0
    for machine in range(machines):
        choosing.ready_s[machine] = choosing.moving_s[machine] = choosing.here[machine] = 0.0
    for at in range(flat.read_starts[task], flat.read_starts[task + 1]):
        number = flat.read[at]
        place = booked.where[flat.source[number]]
        whole += flat.nbytes[number]
        for machine in range(machines):
            came_s = booked.there_s[number, machine]
            if came_s == inf:
                way_s = _way_s(flat, number, place, machine)
                came_s = _leave_s(flat, booked, number, machine) + way_s
                choosing.moving_s[machine] += way_s
            else:
                choosing.here[machine] += flat.nbytes[number]
            choosing.ready_s[machine] = max(choosing.ready_s[machine], came_s)
    for machine in range(machines):
        took_s, ready_s = flat.compute_s[task, machine] if may[machine] else 0.0, choosing.ready_s[machine]
        choosing.begin_s[machine] = _begin_s(booked, machine, _gap(booked, machine, ready_s, took_s), ready_s)
        choosing.finish_s[machine] = choosing.begin_s[machine] + took_s
    _compare(problem.unit_s, choosing, whole, may, stands)


@compiled_part
def _compare(unit_s: float, choosing: _Choosing, whole: float, may: Booleans, stands: Floats) -> None:
    """Find the figures that say how each machine stands, of which none has a unit. `whole` is the bytes of the
    task's inputs."""
    machines, first_s, soonest_s, all_busy_s = len(may), inf, inf, unit_s
    for machine in range(machines):
        if may[machine]:
            first_s = min(first_s, choosing.finish_s[machine])
        soonest_s = min(soonest_s, choosing.ready_s[machine])
        all_busy_s += choosing.busy_s[machine]
    for machine in range(machines):
        late = max(0.0, choosing.finish_s[machine] - first_s) / unit_s
        # Python's logarithm, as numpy's differs in the last bit on processors with AVX-512, and the compiled one does not.
        stands[machine, 0] = log1p(late)
        stands[machine, 1] = min(late, 10.0)
        stands[machine, 2] = log1p((choosing.begin_s[machine] - choosing.ready_s[machine]) / unit_s)
        stands[machine, 3] = log1p((choosing.ready_s[machine] - soonest_s) / unit_s)
        stands[machine, 4] = choosing.here[machine] / whole if whole > 0 else 0.0
        stands[machine, 5] = 1.0 if choosing.busy_s[machine] > 0 else 0.0
        stands[machine, 6] = choosing.busy_s[machine] / all_busy_s
        stands[machine, 7] = log1p(choosing.moving_s[machine] / unit_s)


@compiled_part
def _take(problem: FlatProblem, choosing: _Choosing, task: int, here: int) -> None:
    """Note that the machine has the task, and so the group of the task."""
    group = problem.group[task]
    choosing.busy_s[here] += problem.flat.compute_s[task, here]
    if choosing.chosen[group] < 0:
        choosing.chosen[group] = here
        choosing.left_bytes[here] -= problem.group_bytes[group]


@compiled
def rank_both_ways(flat: FlatWorkload, mean_s: Floats, way_s: Floats) -> tuple[Floats, Floats]:
    """Return the upward and the downward rank of each task (n,), in seconds, for tasks that take `mean_s` (n,) and
    transfers that take `way_s` (t,): from its start to the end, and from the beginning to its start, if nothing had to
    wait."""
    behind_s, before_s = np.zeros(len(mean_s)), np.zeros(len(mean_s))
    for task in flat.order:
        for at in range(flat.read_starts[task], flat.read_starts[task + 1]):
            number = flat.read[at]
            source = flat.source[number]
            before_s[task] = max(before_s[task], before_s[source] + mean_s[source] + way_s[number])
    for task in flat.order[::-1]:
        after_s = 0.0
        for at in range(flat.written_starts[task], flat.written_starts[task + 1]):
            number = flat.written[at]
            for slot in range(flat.reader_starts[number], flat.reader_starts[number + 1]):
                after_s = max(after_s, way_s[number] + behind_s[flat.readers[slot]])
        behind_s[task] = mean_s[task] + after_s
    return behind_s, before_s


def warm_up(flat: FlatWorkload) -> None:
    """Call everything once for a workload of one task on one machine, so that it is compiled, or loaded from where it is
    kept."""
    number, cube = np.zeros(1, np.int64), np.zeros((1, 1, 1))
    schedule_in_order(flat, number, number)
    ranks_s, _ = rank_both_ways(flat, np.zeros(1), np.zeros(0))
    problem = FlatProblem(flat, number, np.ones((1, 1), np.bool_), number, ranks_s, np.zeros(1), 1.0)
    decode(
        problem,
        cube[0],
        np.zeros((1, STANDINGS)),
        cube,
        np.zeros((0, 0, 0, 0)),
        np.zeros((0, 0, 0), np.bool_),
    )
