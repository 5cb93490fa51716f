"""Dispatch on arrays: the schedules of dispatch.py, to the last bit, in a form that numba compiles. Rules only.

Compiled, a schedule takes about a fiftieth of the time that dispatch.py takes (docs/benchmarks.md); not compiled, it takes
longer. What is compiled calls nothing but what is compiled.
"""

from __future__ import annotations

from math import inf
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


class _Queues(NamedTuple):
    """Heaps that lie one after another in one array: the smallest (key, item) of each is at its top."""

    base: Integers
    """Where each heap begins."""
    size: Integers
    keys: Floats
    items: Integers


class _State(NamedTuple):
    """What has begun and what can begin. Machines have -1 for what they do not do."""

    ready: _Queues
    """The tasks that could start on each machine, by negated rank."""
    waiting: _Queues
    """The tensors that wait only for a busy side, by negated rank; the heap from * m + to."""
    missing: Integers
    """The number of tensors that each task still waits for."""
    came_s: Floats
    """When the last tensor of each task came; -1 for none."""
    waited_for: Integers
    start_s: Floats
    computing: Integers
    computed: Integers
    """The task that each machine computes, and the one that it computed last."""
    computed_s: Floats
    """When each machine ends what it computes."""
    sending: Integers
    """The transfer that each machine sends: its row in `transfers`."""
    sent_s: Floats
    receiving: Booleans
    crossing: Booleans
    """Whether something crosses each medium."""
    touched: Booleans
    """The machines that may begin something new."""
    wanted: Booleans
    urgency: Floats
    """The machines that a tensor is sent to, and how urgently, while its task ends."""
    transfers: Integers
    transfer_source: Integers
    transfer_start_s: Floats
    transfer_end_s: Floats


@compiled_part
def transfer_s(flat: FlatWorkload, number: int, here: int, there: int) -> float:
    """Seconds for which a transfer of the tensor occupies both ends; 0 from a machine to itself."""
    if here == there:
        return 0.0
    row = flat.given[number]
    if row >= 0:
        seconds = flat.given_s[row, here, there]
        if not np.isnan(seconds):
            return seconds  # type: ignore[no-any-return]
    return flat.latency_s[here, there] + flat.nbytes[number] / flat.bytes_per_s[here, there]  # type: ignore[no-any-return]


@compiled
def rank_upward(flat: FlatWorkload, placement: Integers) -> Floats:
    """Return the upward rank of each task on this placement, in seconds, as `upward_ranks` does."""
    ranks = np.zeros(flat.compute_s.shape[0])
    for task in flat.order[::-1]:
        here, behind_s = placement[task], 0.0
        for at in range(flat.written_starts[task], flat.written_starts[task + 1]):
            number = flat.written[at]
            for slot in range(flat.reader_starts[number], flat.reader_starts[number + 1]):
                reader = flat.readers[slot]
                behind_s = max(behind_s, transfer_s(flat, number, here, placement[reader]) + ranks[reader])
        ranks[task] = flat.compute_s[task, here] + behind_s
    return ranks


@compiled
def schedule(flat: FlatWorkload, placement: Integers, ranks: Floats) -> FlatSchedule:
    """Return the schedule of a placement by a rank for each task, larger first."""
    state = _begin(flat, placement)
    makespan_s = _run(flat, state, placement, ranks)
    return FlatSchedule(
        makespan_s,
        state.start_s,
        state.waited_for,
        state.transfers,
        state.transfer_source,
        state.transfer_start_s,
        state.transfer_end_s,
    )


@compiled_part
def _run(flat: FlatWorkload, state: _State, placement: Integers, ranks: Floats) -> float:
    """Run the schedule from its beginning to its end; return when it ends."""
    begun, now_s = 0, 0.0
    for task in range(placement.shape[0]):
        if state.missing[task] == 0:
            _push(state.ready, placement[task], -ranks[task], task)
    while True:
        _begin_tasks(flat, state, now_s)
        begun = _begin_transfers(flat, state, now_s, begun)
        next_s = _next_end_s(state)
        if next_s < 0:
            break
        now_s = next_s
        state.touched[:] = False
        _end_transfers(flat, state, placement, ranks, now_s)
        _end_tasks(flat, state, placement, ranks, now_s)
    return now_s


@compiled
def _begin(flat: FlatWorkload, placement: Integers) -> _State:
    tasks, machines = flat.compute_s.shape
    ready, waiting = np.zeros(machines + 1, np.int64), np.zeros(machines * machines + 1, np.int64)
    for task in range(tasks):
        ready[placement[task] + 1] += 1
    last = np.full(machines, -1, np.int64)
    for number in range(flat.source.shape[0]):
        here = placement[flat.source[number]]
        for slot in range(flat.reader_starts[number], flat.reader_starts[number + 1]):
            there = placement[flat.readers[slot]]
            if there != here and last[there] != number:
                last[there] = number
                waiting[here * machines + there + 1] += 1
    moves = waiting.sum()
    return _State(
        _Queues(np.cumsum(ready), np.zeros(machines, np.int64), np.empty(tasks), np.empty(tasks, np.int64)),
        _Queues(
            np.cumsum(waiting), np.zeros(machines**2, np.int64), np.empty(moves), np.empty(moves, np.int64)
        ),
        flat.read_starts[1:] - flat.read_starts[:-1],
        np.full(tasks, -1.0),
        np.full(tasks, -1, np.int64),
        np.zeros(tasks),
        np.full(machines, -1, np.int64),
        np.full(machines, -1, np.int64),
        np.zeros(machines),
        np.full(machines, -1, np.int64),
        np.zeros(machines),
        np.zeros(machines, np.bool_),
        np.zeros(flat.media, np.bool_),
        np.ones(machines, np.bool_),
        np.empty(machines, np.bool_),
        np.empty(machines),
        np.empty((moves, 2), np.int64),
        np.empty(moves, np.int64),
        np.empty(moves),
        np.empty(moves),
    )


@compiled_part
def _begin_tasks(flat: FlatWorkload, state: _State, now_s: float) -> None:
    for here in range(state.touched.shape[0]):
        if state.touched[here] and state.computing[here] < 0 and state.ready.size[here] > 0:
            task = _pop(state.ready, here)
            state.computing[here] = task
            state.start_s[task] = now_s
            state.computed_s[here] = now_s + flat.compute_s[task, here]
            if state.came_s[task] < now_s and state.computed[here] >= 0:
                state.waited_for[task] = state.computed[here]


@compiled_part
def _begin_transfers(flat: FlatWorkload, state: _State, now_s: float, begun: int) -> int:
    """Begin the most urgent transfer of each machine that can send; return how many have begun so far."""
    machines = state.touched.shape[0]
    for here in range(machines):
        if not state.touched[here] or state.sending[here] >= 0:
            continue
        there = _most_urgent(flat, state, here)
        if there < 0:
            continue
        number = _pop(state.waiting, here * machines + there)
        state.sending[here], state.receiving[there] = begun, True
        _occupy(flat, state, here * machines + there, True)
        state.sent_s[here] = now_s + transfer_s(flat, number, here, there)
        state.transfers[begun, 0], state.transfers[begun, 1] = number, there
        state.transfer_source[begun] = here
        state.transfer_start_s[begun], state.transfer_end_s[begun] = now_s, state.sent_s[here]
        begun += 1
    return begun


@compiled_part
def _most_urgent(flat: FlatWorkload, state: _State, here: int) -> int:
    """Return the receiver of the transfer that `here` begins next; -1 if nothing waits for a receiver that is free, with
    free media on the way."""
    machines, best = state.touched.shape[0], -1
    base, keys, items = state.waiting.base, state.waiting.keys, state.waiting.items
    for there in range(machines):
        way = here * machines + there
        if state.waiting.size[way] > 0 and not state.receiving[there] and _is_free(flat, state, way):
            one, other = base[here * machines + there], base[here * machines + best]
            if (
                best < 0
                or keys[one] < keys[other]
                or (keys[one] == keys[other] and items[one] < items[other])
            ):
                best = there
    return best


@compiled_part
def _is_free(flat: FlatWorkload, state: _State, way: int) -> bool:
    """Whether nothing crosses the media on a way, which is from * m + to."""
    busy = 0
    for at in range(flat.crossed_starts[way], flat.crossed_starts[way + 1]):
        busy += state.crossing[flat.crossed[at]]
    return busy == 0


@compiled_part
def _occupy(flat: FlatWorkload, state: _State, way: int, busy: bool) -> None:
    for at in range(flat.crossed_starts[way], flat.crossed_starts[way + 1]):
        state.crossing[flat.crossed[at]] = busy


@compiled_part
def _touch_waiting(flat: FlatWorkload, state: _State, way: int) -> None:
    """Touch the machines that may have waited for the media on a way."""
    machines = state.touched.shape[0]
    for at in range(flat.crossed_starts[way], flat.crossed_starts[way + 1]):
        for other in range(machines * machines):
            if state.waiting.size[other] > 0 and not state.touched[other // machines]:
                for slot in range(flat.crossed_starts[other], flat.crossed_starts[other + 1]):
                    if flat.crossed[slot] == flat.crossed[at]:
                        state.touched[other // machines] = True


@compiled_part
def _next_end_s(state: _State) -> float:
    """Return when the next task or transfer ends; -1 if there is none."""
    next_s, busy = inf, False
    for here in range(state.touched.shape[0]):
        if state.computing[here] >= 0:
            next_s, busy = min(next_s, state.computed_s[here]), True
        if state.sending[here] >= 0:
            next_s, busy = min(next_s, state.sent_s[here]), True
    return next_s if busy else -1.0


@compiled_part
def _end_transfers(
    flat: FlatWorkload, state: _State, placement: Integers, ranks: Floats, now_s: float
) -> None:
    machines = state.touched.shape[0]
    for here in range(machines):
        if state.sending[here] < 0 or state.sent_s[here] != now_s:
            continue
        number, there = state.transfers[state.sending[here]]
        state.sending[here], state.receiving[there] = -1, False
        state.touched[here] = state.touched[there] = True
        _occupy(flat, state, here * machines + there, False)
        _touch_waiting(flat, state, here * machines + there)
        for other in range(machines):  # They may have waited for this receiver.
            if state.waiting.size[other * machines + there] > 0:
                state.touched[other] = True
        for slot in range(flat.reader_starts[number], flat.reader_starts[number + 1]):
            reader = flat.readers[slot]
            if placement[reader] == there:
                _hand_over(state, flat.source[number], reader, there, -ranks[reader], now_s)


@compiled_part
def _end_tasks(flat: FlatWorkload, state: _State, placement: Integers, ranks: Floats, now_s: float) -> None:
    machines = state.touched.shape[0]
    urgency, wanted = state.urgency, state.wanted
    for here in range(machines):
        task = state.computing[here]
        if task < 0 or state.computed_s[here] != now_s:
            continue
        state.computing[here], state.computed[here], state.touched[here] = -1, task, True
        for at in range(flat.written_starts[task], flat.written_starts[task + 1]):
            number = flat.written[at]
            wanted[:] = False
            for slot in range(flat.reader_starts[number], flat.reader_starts[number + 1]):
                reader = flat.readers[slot]
                there = placement[reader]
                if there == here:
                    _hand_over(state, task, reader, here, -ranks[reader], now_s)
                elif wanted[there]:
                    urgency[there] = min(urgency[there], -ranks[reader])
                else:
                    urgency[there], wanted[there] = -ranks[reader], True
            for there in range(machines):
                if wanted[there]:
                    _push(state.waiting, here * machines + there, urgency[there], number)


@compiled_part
def _hand_over(state: _State, source: int, reader: int, here: int, key: float, now_s: float) -> None:
    """Note that a tensor that `reader` reads is on its machine now."""
    if state.came_s[reader] < now_s or state.waited_for[reader] < source:
        state.came_s[reader], state.waited_for[reader] = now_s, source
    state.missing[reader] -= 1
    if state.missing[reader] == 0:
        _push(state.ready, here, key, reader)


@compiled_part
def _push(queues: _Queues, which: int, key: float, item: int) -> None:
    base, keys, items, at = queues.base[which], queues.keys, queues.items, queues.size[which]
    queues.size[which] += 1
    while at > 0:
        above = (at - 1) // 2
        if keys[base + above] < key or (keys[base + above] == key and items[base + above] < item):
            break
        keys[base + at], items[base + at] = keys[base + above], items[base + above]
        at = above
    keys[base + at], items[base + at] = key, item


@compiled_part
def _pop(queues: _Queues, which: int) -> int:
    base, keys, items = queues.base[which], queues.keys, queues.items
    queues.size[which] -= 1
    last = queues.size[which]
    top, key, item, at = items[base], keys[base + last], items[base + last], 0
    while 2 * at + 1 < last:
        one = base + 2 * at + 1
        if one + 1 < base + last and (
            keys[one + 1] < keys[one] or (keys[one + 1] == keys[one] and items[one + 1] < items[one])
        ):
            one += 1
        if key < keys[one] or (key == keys[one] and item < items[one]):
            break
        keys[base + at], items[base + at] = keys[one], items[one]
        at = one - base
    keys[base + at], items[base + at] = key, item
    return top  # type: ignore[no-any-return]


@compiled
def chain(end_s: Floats, waited_for: Integers) -> Integers:
    """Return the critical chain: the task that ends last, the one that it waited for, and so on."""
    found, count, task = np.empty(end_s.shape[0], np.int64), 0, int(np.argmax(end_s))
    while task >= 0 and count < end_s.shape[0]:
        found[count] = task
        count += 1
        task = waited_for[task]
    return found[:count]


@compiled
def loads(flat: FlatWorkload, placement: Integers) -> Floats:
    """Return each machine's seconds for one sample of a stream, and then each medium's, as load.py does."""
    tasks, machines = flat.compute_s.shape
    compute_s, send_s, receive_s = np.zeros(machines), np.zeros(machines), np.zeros(machines)
    cross_s = np.zeros(flat.media)
    for task in range(tasks):
        compute_s[placement[task]] += flat.compute_s[task, placement[task]]
    reads = np.empty(machines, np.bool_)
    for number in range(flat.source.shape[0]):
        here = placement[flat.source[number]]
        reads[:] = False
        for slot in range(flat.reader_starts[number], flat.reader_starts[number + 1]):
            reads[placement[flat.readers[slot]]] = True
        for there in range(machines):
            if reads[there] and there != here:
                took_s = transfer_s(flat, number, here, there)
                send_s[here] += took_s
                receive_s[there] += took_s
                way = here * machines + there
                for at in range(flat.crossed_starts[way], flat.crossed_starts[way + 1]):
                    cross_s[flat.crossed[at]] += took_s
    if flat.overlap:
        return np.concatenate((np.maximum(np.maximum(compute_s, send_s), receive_s), cross_s))
    return np.concatenate((compute_s + send_s + receive_s, cross_s))


def warm_up(flat: FlatWorkload) -> None:
    """Call everything once for a workload of one task, so that it is compiled, or loaded from where it is kept."""
    where = np.zeros(1, np.int64)
    made = schedule(flat, where, rank_upward(flat, where))
    chain(made.start_s, made.waited_for)
    loads(flat, where)
