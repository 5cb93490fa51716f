"""Decoding on arrays, in a form that numba compiles: list scheduling that a network biases. Rules only.

Not compiled, one sample takes about as long as one of HEFT's placements; compiled, a hundredth of that. What is compiled
calls nothing but what is compiled.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from edgepart.planner.placing.engine.compiler import compiled, compiled_part
from edgepart.planner.placing.engine.flat_workload import Booleans, FlatWorkload, Floats, Integers

STANDINGS = 8
"""The number of figures that say how a machine stands for a task."""


class FlatProblem(NamedTuple):
    """What decoding knows of a workload with n tasks, m machines, t tensors and g groups of tasks that stay together."""

    flat: FlatWorkload
    moves_s: Floats
    """(t, m, m). The seconds for which a transfer of each tensor occupies both ends, [from][to]; 0 on the diagonal."""
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


class _PlacedSoFar(NamedTuple):
    """What is placed so far."""

    where: Integers
    start_s: Floats
    end_s: Floats
    """(n,)."""
    free_s: Floats
    sending_s: Floats
    receiving_s: Floats
    """(m,). When each machine computes, sends and receives nothing any more."""
    busy_s: Floats
    """(m,). The seconds that each machine computes."""
    there_s: Floats
    """(t, m). When each tensor is on each machine; inf where it was not sent."""
    left_bytes: Floats
    """(m,)."""
    chosen: Integers
    """(g,). The machine of each group; -1 before it has one."""
    ready_s: Floats
    finish_s: Floats
    moving_s: Floats
    here: Floats
    """(m,). Of the task that is placed now: when its inputs could be on each machine, when it could be done there, how many
    seconds of transfers that takes, and how many bytes of its inputs are there already."""


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

    A task goes to the machine of the highest score: `bias` (n, m), plus the machine's standings in the weights (n,
    STANDINGS) of the task, plus `noise` (k, n, m). If `standings` (k, n, m, STANDINGS) and `allowed` (k, n, m) are
    not empty, how machines stood and which could have the task are written there."""
    samples, tasks, machines = noise.shape
    placements = np.empty((samples, tasks), np.int64)
    starts_s = np.empty((samples, tasks))
    makespans_s = np.zeros(samples)
    stands, may = np.empty((machines, STANDINGS)), np.empty(machines, np.bool_)
    for sample in range(samples):
        state = _begin(problem)
        for task in problem.order:
            _find_allowed(problem, state, task, may)
            _look(problem, state, task, may, stands)
            best, best_score = -1, -inf
            for machine in range(machines):
                if may[machine]:
                    score = bias[task, machine] + noise[sample, task, machine]
                    for figure in range(STANDINGS):
                        score += stands[machine, figure] * weights[task, figure]
                    if best < 0 or score > best_score:
                        best, best_score = machine, score
            if len(standings) > 0:
                standings[sample, task] = stands
                allowed[sample, task] = may
            _place(problem, state, task, best)
            makespans_s[sample] = max(makespans_s[sample], state.end_s[task])
        placements[sample] = state.where
        starts_s[sample] = state.start_s
    return placements, starts_s, makespans_s


@compiled
def _begin(problem: FlatProblem) -> _PlacedSoFar:
    tasks, machines = problem.able.shape
    return _PlacedSoFar(
        np.zeros(tasks, np.int64),
        np.zeros(tasks),
        np.zeros(tasks),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(machines),
        np.full((len(problem.moves_s), machines), inf),
        problem.memory_bytes.copy(),
        np.full(len(problem.group_bytes), -1, np.int64),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(machines),
        np.zeros(machines),
    )


@compiled_part
def _find_allowed(problem: FlatProblem, state: _PlacedSoFar, task: int, may: Booleans) -> None:
    """Find the machines that can have the task. Where none has room, it is the one with most memory left."""
    group = problem.group[task]
    chosen, roomiest, roomy = state.chosen[group], -1, False
    for machine in range(len(may)):
        may[machine] = problem.able[task, machine] and problem.group_bytes[group] <= state.left_bytes[machine]
        roomy = roomy or may[machine]
        if problem.able[task, machine] and (
            roomiest < 0 or state.left_bytes[machine] > state.left_bytes[roomiest]
        ):
            roomiest = machine
    if chosen >= 0 or not roomy:
        for machine in range(len(may)):
            may[machine] = machine == (chosen if chosen >= 0 else roomiest)


@compiled_part
def _look(problem: FlatProblem, state: _PlacedSoFar, task: int, may: Booleans, stands: Floats) -> None:
    """Find how each machine stands for the task."""
    flat, unit_s, machines = problem.flat, problem.unit_s, len(may)
    whole = 0.0
    for machine in range(machines):
        state.ready_s[machine] = state.moving_s[machine] = state.here[machine] = 0.0
    for at in range(flat.read_starts[task], flat.read_starts[task + 1]):
        number = flat.read[at]
        source = flat.source[number]
        place = state.where[source]
        begin_s = max(state.end_s[source], state.sending_s[place])
        whole += flat.nbytes[number]
        for machine in range(machines):
            came_s = state.there_s[number, machine]
            if came_s == inf:
                way_s = problem.moves_s[number, place, machine]
                came_s = max(begin_s, state.receiving_s[machine]) + way_s
                state.moving_s[machine] += way_s
            else:
                state.here[machine] += flat.nbytes[number]
            state.ready_s[machine] = max(state.ready_s[machine], came_s)
    first_s, soonest_s, all_busy_s = inf, inf, unit_s
    for machine in range(machines):
        took_s = flat.compute_s[task, machine] if may[machine] else 0.0
        state.finish_s[machine] = max(state.ready_s[machine], state.free_s[machine]) + took_s
        if may[machine]:
            first_s = min(first_s, state.finish_s[machine])
        soonest_s = min(soonest_s, state.ready_s[machine])
        all_busy_s += state.busy_s[machine]
    for machine in range(machines):
        late = max(0.0, state.finish_s[machine] - first_s) / unit_s
        stands[machine, 0] = np.log1p(late)
        stands[machine, 1] = min(late, 10.0)
        stands[machine, 2] = np.log1p(max(0.0, state.free_s[machine] - state.ready_s[machine]) / unit_s)
        stands[machine, 3] = np.log1p((state.ready_s[machine] - soonest_s) / unit_s)
        stands[machine, 4] = state.here[machine] / whole if whole > 0 else 0.0
        stands[machine, 5] = 1.0 if state.busy_s[machine] > 0 else 0.0
        stands[machine, 6] = state.busy_s[machine] / all_busy_s
        stands[machine, 7] = np.log1p(state.moving_s[machine] / unit_s)


@compiled_part
def _place(problem: FlatProblem, state: _PlacedSoFar, task: int, here: int) -> None:
    """Place the task on the machine, and book the transfers that this takes."""
    flat, ready_s = problem.flat, 0.0
    for at in range(flat.read_starts[task], flat.read_starts[task + 1]):
        number = flat.read[at]
        if state.there_s[number, here] == inf:
            source = flat.source[number]
            place = state.where[source]
            begin_s = max(state.sending_s[place], state.receiving_s[here])
            end_s = max(begin_s, state.end_s[source]) + problem.moves_s[number, place, here]
            state.sending_s[place] = state.receiving_s[here] = state.there_s[number, here] = end_s
        ready_s = max(ready_s, state.there_s[number, here])
    group, took_s = problem.group[task], flat.compute_s[task, here]
    if state.chosen[group] < 0:
        state.chosen[group] = here
        state.left_bytes[here] -= problem.group_bytes[group]
    state.where[task] = here
    state.start_s[task] = max(ready_s, state.free_s[here])
    state.end_s[task] = state.free_s[here] = state.start_s[task] + took_s
    state.busy_s[here] += took_s
    for at in range(flat.written_starts[task], flat.written_starts[task + 1]):
        state.there_s[flat.written[at], here] = state.end_s[task]


@compiled
def rank_both_ways(flat: FlatWorkload, mean_s: Floats, way_s: Floats) -> tuple[Floats, Floats]:
    """Return the upward and the downward rank of each task (n,), in seconds, for tasks that take `mean_s` (n,) and
    transfers that take `way_s` (t,): from its start to the end, and from the beginning to its start, if nothing had
    to wait."""
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
