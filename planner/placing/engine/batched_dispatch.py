"""Batched dispatch: the makespans of many placements of one workload at once, in a fixed order of tasks. Rules only.

Everything is booked in the order of the tasks: a task begins behind the one before it on its machine, a transfer
behind those before it of its two sides and of the media that it crosses. dispatch.py lets whatever can begin first
begin first, so that a makespan here is often a little longer, but placements that are better by the one are better
by the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgepart.planner.placing.engine.flat_workload import Booleans, FlatWorkload, Floats, Integers


def batched_makespans(flat: FlatWorkload, placements: Integers, order: Integers) -> Floats:
    """Return the makespan, in seconds, of each of `placements` (b, n). `order` (n,) has the tasks, each after those that it
    reads from."""
    batch, tasks = placements.shape
    machines = flat.compute_s.shape[1]
    rows = np.arange(batch)
    computing, sending, receiving = (np.zeros((batch, machines)) for _ in range(3))
    crossing = np.zeros((batch, flat.media))
    end_s = np.zeros((tasks, batch))
    arrived: dict[int, Floats] = {}
    unread = flat.reader_starts[1:] - flat.reader_starts[:-1]
    for task in order.tolist():
        here = placements[:, task]
        ready_s = np.zeros(batch)
        for number in flat.read[flat.read_starts[task] : flat.read_starts[task + 1]].tolist():
            if number not in arrived:
                arrived[number] = np.full((batch, machines), np.nan)
            source = int(flat.source[number])
            booked = _Booked(arrived[number], sending, receiving, crossing)
            came_s = _fetch(flat, number, placements[:, source], here, end_s[source], booked)
            ready_s = np.maximum(ready_s, came_s)
            unread[number] -= 1
            if not unread[number]:
                del arrived[number]
        begin_s = np.maximum(ready_s, computing[rows, here])
        end_s[task] = computing[rows, here] = begin_s + flat.compute_s[task, here]
    return np.asarray(end_s.max(axis=0, initial=0.0))


class _Booked(NamedTuple):
    """When a tensor arrived on each machine (b, m), nan where it did not; and until when sides (b, m) and media (b, k) are
    occupied."""

    arrived: Floats
    sending: Floats
    receiving: Floats
    crossing: Floats


def _fetch(
    flat: FlatWorkload, number: int, source: Integers, target: Integers, made_s: Floats, booked: _Booked
) -> Floats:
    """Return when the tensor is on each placement's target (b,), and book the transfers that this takes."""
    rows = np.flatnonzero(source != target)
    rows = rows[np.isnan(booked.arrived[rows, target[rows]])]
    here, there = source[rows], target[rows]
    begin_s = np.maximum(made_s[rows], np.maximum(booked.sending[rows, here], booked.receiving[rows, there]))
    crossed = _crossed(flat, here, there) if flat.media else np.zeros((len(rows), 0), np.bool_)
    occupied_s = np.where(crossed, booked.crossing[rows], 0.0)
    begin_s = np.maximum(begin_s, occupied_s.max(axis=1, initial=0.0))
    end_s = begin_s + _transfer_s(flat, number, here, there)
    booked.sending[rows, here] = booked.receiving[rows, there] = booked.arrived[rows, there] = end_s
    booked.crossing[rows] = np.where(crossed, end_s[:, None], booked.crossing[rows])
    every = np.arange(len(source))
    return np.where(source == target, made_s, booked.arrived[every, target])


def _crossed(flat: FlatWorkload, here: Integers, there: Integers) -> Booleans:
    """Return which media each transfer crosses, (transfers, k)."""
    machines = flat.compute_s.shape[1]
    table = np.zeros((machines * machines, flat.media), np.bool_)
    table[np.repeat(np.arange(machines**2), np.diff(flat.crossed_starts)), flat.crossed] = True
    return np.asarray(table[here * machines + there])


def _transfer_s(flat: FlatWorkload, number: int, here: Integers, there: Integers) -> Floats:
    """Return the seconds for which transfers of the tensor occupy both ends, between machines that differ."""
    by_link_s = flat.latency_s[here, there] + flat.nbytes[number] / flat.bytes_per_s[here, there]
    row = flat.given[number]
    if row < 0:
        return np.asarray(by_link_s)
    given_s = flat.given_s[row, here, there]
    return np.asarray(np.where(np.isnan(given_s), by_link_s, given_s))
