"""Dominators: tasks that every other task comes before or after, and the pieces of the graph between them.
Rules only.

When a dominator ends, everything before it has ended, nothing travels, and nothing after it has begun. The
latency of a sample is therefore the sum of the latencies of the pieces. Only the machines of the dominators
couple the pieces (and memory, which is ignored here).
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
    """The tasks between two dominators, and the dominators themselves."""

    workload: Workload
    """The workload of the piece. Its first dominator costs nothing, as the piece before has computed it."""
    tasks: tuple[int, ...]
    """The index of each task of the piece in the whole workload."""
    tensors: tuple[int, ...]
    """The index of each tensor of the piece in the whole workload."""
    entry: int | None
    """Index, within the piece, of the dominator that it begins with; None for the first piece."""
    exit: int | None
    """Index, within the piece, of the dominator that it ends with; None for a last piece without one."""

    @property
    def kept_bytes(self) -> float:
        """Bytes that all tasks of the piece keep."""
        return sum(task.memory_bytes for task in self.workload.tasks)

    def pin(self, pair: Pair) -> Workload:
        """Return the piece with its ends on the two machines of `pair`; -1 stands for an end that it lacks."""
        tasks = list(self.workload.tasks)
        for end, machine in ((self.entry, pair[0]), (self.exit, pair[1])):
            if end is not None:
                row = tuple(s if m == machine else inf for m, s in enumerate(tasks[end].compute_s))
                tasks[end] = replace(tasks[end], compute_s=row)
        return replace(self.workload, tasks=tuple(tasks)).like(self.workload)

    @cached_property
    def likeness(self) -> object:
        """A key that is equal for pieces that differ only in names."""
        return (
            tuple((task.compute_s, task.memory_bytes) for task in self.workload.tasks),
            tuple((t.source, t.readers, t.nbytes, _items(t.transfer_s)) for t in self.workload.tensors),
            self.workload.groups,
            (self.entry, self.exit),
        )


def _items(transfer_s: Mapping[Pair, float]) -> tuple[tuple[Pair, float], ...]:
    return tuple(sorted(transfer_s.items()))


def dominators(workload: Workload) -> tuple[int, ...]:
    """Return the dominators in order, except those that would separate tasks which must be together."""
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
    """Return the pieces in order; the whole graph is one piece if there are no dominators."""
    order = workload.order
    position = {task: number for number, task in enumerate(order)}
    borders = [position[task] for task in dominators(workload)]
    found, entry, first = [], None, 0
    for border in borders:
        found.append(cut_piece(workload, order[first : border + 1], entry, order[border]))
        entry, first = order[border], border
    if not borders or borders[-1] < len(order) - 1:
        found.append(cut_piece(workload, order[first:], entry, None))
    return tuple(found)


def cut_piece(workload: Workload, tasks: tuple[int, ...], entry: int | None, exit: int | None) -> GraphPiece:
    """Return the piece of these tasks, which are in an order that they can run in, from `entry` to `exit`. What others read
    of its tensors is left out."""
    local = {task: number for number, task in enumerate(tasks)}
    made: list[Task] = []
    for task in tasks:
        known = workload.tasks[task]
        row = tuple(0.0 if s < inf else inf for s in known.compute_s) if task == entry else known.compute_s
        made.append(replace(known, compute_s=row))
    numbers, tensors = [], []
    for number in (number for task in tasks if task != exit for number in workload.written[task]):
        tensor = workload.tensors[number]
        if readers := tuple(sorted(local[reader] for reader in tensor.readers if reader in local)):
            numbers.append(number)
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
    """Return a schedule of the whole in which the schedules of all pieces follow one another."""
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
