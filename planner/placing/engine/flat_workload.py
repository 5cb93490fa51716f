"""Flat workload: a workload and its schedules as arrays, for code that is compiled or that computes many placements
at once. Facts.

Lists of different lengths, one for each task or tensor, lie one after another in one array: those of number k are
`items[starts[k]:starts[k + 1]]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementSchedule
from edgepart.planner.placing.problem.task_graph import TaskGraph
from edgepart.planner.placing.problem.workload import Workload

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class FlatWorkload(NamedTuple):
    """The numbers of a workload: n tasks, t tensors, m machines. A tuple, as compiled code can take no other record."""

    compute_s: Floats
    """(n, m). Seconds of each task on each machine; inf where it cannot run."""
    order: Integers
    """(n,). The tasks, each after those that it reads from."""
    source: Integers
    """(t,). The task that makes each tensor."""
    nbytes: Floats
    """(t,)."""
    latency_s: Floats
    """(m, m), [from][to]."""
    bytes_per_s: Floats
    """(m, m), [from][to]."""
    given: Integers
    """(t,). The row of `given_s` that has the tensor's transfers; -1 if the links tell how long they take."""
    given_s: Floats
    """(g, m, m), [row][from][to]. Seconds of a transfer; nan where the link tells."""
    reader_starts: Integers
    """(t + 1,)."""
    readers: Integers
    """The tasks that read each tensor."""
    read_starts: Integers
    """(n + 1,)."""
    read: Integers
    """The tensors that each task reads."""
    written_starts: Integers
    """(n + 1,)."""
    written: Integers
    """The tensors that each task makes."""
    overlap: bool
    """Whether a machine computes, sends and receives at the same time."""
    media: int
    """The number of media."""
    crossed_starts: Integers
    """(m * m + 1,)."""
    crossed: Integers
    """The media that a transfer crosses, by from * m + to."""


class FlatSchedule(NamedTuple):
    """A schedule as arrays, of n tasks and k transfers."""

    makespan_s: float
    start_s: Floats
    """(n,)."""
    waited_for: Integers
    """(n,). The task that each task waited for last, for its data or for its machine; -1 for none."""
    transfers: Integers
    """(k, 2). The tensor and the receiver of each transfer, as they begin."""
    transfer_source: Integers
    """(k,)."""
    transfer_start_s: Floats
    transfer_end_s: Floats
    """(k,)."""


class FlatGraph(NamedTuple):
    """Those arrays of a flat workload that follow from its graph."""

    order: Integers
    source: Integers
    nbytes: Floats
    reader_starts: Integers
    readers: Integers
    read_starts: Integers
    read: Integers
    written_starts: Integers
    written: Integers


def flatten_graph(graph: TaskGraph) -> FlatGraph:
    """Return what the graph alone tells, as arrays, which nobody may change. Raises UsageError if tasks wait for each other
    in a circle."""
    return graph.once(_flatten_graph)


def _flatten_graph(graph: TaskGraph) -> FlatGraph:
    return FlatGraph(
        np.array(graph.order, np.int64),
        np.array(graph.sources, np.int64),
        np.array(graph.nbytes, np.float64),
        *_joined(graph.readers),
        *_joined(graph.read),
        *_joined(graph.written),
    )


def flatten(workload: Workload) -> FlatWorkload:
    """Return the workload's numbers as arrays, which nobody may change. Raises UsageError if tasks wait for each other in
    a circle."""
    return workload.once(_flatten)


def _flatten(workload: Workload) -> FlatWorkload:
    count = len(workload.machines)
    crossed_starts, crossed = _joined([sorted(media) for row in workload.crossed for media in row])
    given, given_s = _given(workload)
    return FlatWorkload(
        compute_s=np.array([task.compute_s for task in workload.tasks], np.float64).reshape(-1, count),
        latency_s=np.array(workload.latency_s, np.float64).reshape(count, count),
        bytes_per_s=np.array(workload.bytes_per_s, np.float64).reshape(count, count),
        given=given,
        given_s=given_s,
        overlap=workload.overlap,
        media=len(workload.media),
        crossed_starts=crossed_starts,
        crossed=crossed,
        **flatten_graph(workload.graph)._asdict(),
    )


def _joined(lists: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """Return where each list starts, and the items of all lists."""
    starts = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=starts[1:])
    return starts, np.array([item for one in lists for item in one], np.int64)


def _given(workload: Workload) -> tuple[Integers, Floats]:
    count = len(workload.machines)
    given = np.full(len(workload.tensors), -1, np.int64)
    rows: list[Floats] = []
    for number, tensor in enumerate(workload.tensors):
        if tensor.transfer_s:
            row = np.full((count, count), nan)
            for pair, seconds in tensor.transfer_s.items():
                row[pair] = seconds
            given[number] = len(rows)
            rows.append(row)
    return given, np.array(rows, np.float64).reshape(-1, count, count)


def unflatten(placement: Integers, schedule: FlatSchedule) -> PlacementSchedule:
    """Return the schedule as a record."""
    columns = (
        schedule.transfers[:, 0],
        schedule.transfer_source,
        schedule.transfers[:, 1],
        schedule.transfer_start_s,
        schedule.transfer_end_s,
    )
    return PlacementSchedule(
        tuple(placement.tolist()),
        tuple(schedule.start_s.tolist()),
        tuple(PlacedTransfer(*row) for row in zip(*(column.tolist() for column in columns), strict=True)),
        float(schedule.makespan_s),
    )
