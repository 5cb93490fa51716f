"""Dominators: tasks that everything passes through, and the pieces between them. Rules only.

When such a task ends, all before it has ended, nothing travels, and nothing behind it has begun. So a sample's latency is
the sum of what the pieces take, each between the machines of its two ends, and only these couple the pieces (and memory,
which is left out of account here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementSchedule
from edgepart.planner.placing.problem.workload import Pair, Task, TaskTensor, Workload


@dataclass(frozen=True)
class GraphPiece:
    """What lies between two dominators, and they themselves."""

    workload: Workload
    """The dominator that the piece begins with costs nothing in it: it was done before."""
    tasks: tuple[int, ...]
    """By task of the piece, its index in the whole."""
    tensors: tuple[int, ...]
    """By tensor of the piece, its index in the whole."""
    entry: int | None
    """Index of the task that it begins with, in the piece; None for the first."""
    exit: int | None
    """The task that the piece ends with; None for the last piece."""

    @property
    def kept_bytes(self) -> float:
        """By all of its tasks."""
        return sum(task.memory_bytes for task in self.workload.tasks)

    def pin(self, pair: Pair) -> Workload:
        """The piece with its ends on these two machines; -1 stands for an end that it lacks."""
        tasks = list(self.workload.tasks)
        for end, machine in ((self.entry, pair[0]), (self.exit, pair[1])):
            if end is not None:
                row = tuple(s if m == machine else inf for m, s in enumerate(tasks[end].compute_s))
                tasks[end] = replace(tasks[end], compute_s=row)
        return replace(self.workload, tasks=tuple(tasks))

    @cached_property
    def likeness(self) -> object:
        """Equal for pieces that are the same but for names."""
        return (
            tuple((task.compute_s, task.memory_bytes) for task in self.workload.tasks),
            tuple((t.source, t.readers, t.nbytes, _items(t.transfer_s)) for t in self.workload.tensors),
            self.workload.groups,
            (self.entry, self.exit),
        )


def _items(transfer_s: Mapping[Pair, float]) -> tuple[tuple[Pair, float], ...]:
    return tuple(sorted(transfer_s.items()))


def dominators(workload: Workload) -> tuple[int, ...]:
    """Tasks that all others come before or after, in order; but for those that would part tasks which must be together."""
    order = workload.order
    position = {task: number for number, task in enumerate(order)}
    together = [0] * (len(order) + 1)
    for group in workload.groups:
        if len(group) > 1:
            places = [position[task] for task in group]
            together[min(places)] += 1
            together[max(places) + 1] -= 1
    reach = [
        max(
            (position[reader] for t in workload.written[task] for reader in workload.tensors[t].readers),
            default=-1,
        )
        for task in order
    ]
    last_source = max(place for place, task in enumerate(order) if not workload.read[task])
    found, furthest, spanning, dead_end = [], 0, 0, False
    for place, task in enumerate(order):
        spanning += together[place]
        if furthest <= place and not dead_end and place >= last_source and not spanning:
            found.append(task)
        furthest = max(furthest, reach[place])
        dead_end = dead_end or reach[place] < 0
    return tuple(found)


def pieces(workload: Workload) -> tuple[GraphPiece, ...]:
    """The pieces in order; the whole graph is one piece if nothing dominates."""
    order = workload.order
    position = {task: number for number, task in enumerate(order)}
    borders = [position[task] for task in dominators(workload)]
    found, entry, first = [], None, 0
    for border in borders:
        found.append(_piece(workload, order[first : border + 1], entry, order[border]))
        entry, first = order[border], border
    if not borders or borders[-1] < len(order) - 1:
        found.append(_piece(workload, order[first:], entry, None))
    return tuple(found)


def _piece(workload: Workload, tasks: tuple[int, ...], entry: int | None, exit: int | None) -> GraphPiece:
    local = {task: number for number, task in enumerate(tasks)}
    made: list[Task] = []
    for task in tasks:
        known = workload.tasks[task]
        row = tuple(0.0 if s < inf else inf for s in known.compute_s) if task == entry else known.compute_s
        made.append(replace(known, compute_s=row))
    numbers = [number for task in tasks if task != exit for number in workload.written[task]]
    tensors = []
    for number in numbers:
        tensor = workload.tensors[number]
        readers = tuple(sorted(local[reader] for reader in tensor.readers))
        tensors.append(TaskTensor(local[tensor.source], readers, tensor.nbytes, tensor.transfer_s))
    inner = replace(workload, tasks=tuple(made), tensors=tuple(tensors))
    return GraphPiece(
        inner,
        tasks,
        tuple(numbers),
        None if entry is None else local[entry],
        None if exit is None else local[exit],
    )


def join_schedules(
    workload: Workload, parts: list[tuple[GraphPiece, PlacementSchedule]]
) -> PlacementSchedule:
    """The schedules of all pieces, one after the other."""
    placement, start_s = [0] * len(workload.tasks), [0.0] * len(workload.tasks)
    transfers: list[PlacedTransfer] = []
    begin_s = 0.0
    for piece, schedule in parts:
        for number, task in enumerate(piece.tasks):
            if number != piece.entry:
                placement[task] = schedule.placement[number]
                start_s[task] = begin_s + schedule.start_s[number]
        transfers += [
            PlacedTransfer(
                piece.tensors[t.tensor], t.source, t.target, begin_s + t.start_s, begin_s + t.end_s
            )
            for t in schedule.transfers
        ]
        begin_s += schedule.makespan_s
    return PlacementSchedule(tuple(placement), tuple(start_s), tuple(transfers), begin_s)
