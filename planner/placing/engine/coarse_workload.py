"""A coarser workload: make one task of each group of tasks, and turn the results back. Rules only.

Whatever happens in the coarse workload can happen in the fine one at the same times: the members of a group
run one after another, and tensors that were merged travel one after another. A schedule of the coarse
workload is therefore one of the fine workload, but perhaps not the best one of its placement; a bound on the
coarse workload says nothing about the fine one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgepart.planner.errors import InternalError, UsageError
from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementSchedule
from edgepart.planner.placing.problem.workload import Pair, Placement, Task, TaskTensor, Workload

Groups = Sequence[Sequence[int]]
"""Indices of tasks, each task in one group."""


def coarsen(workload: Workload, groups: Groups) -> Workload:
    """Return the workload with one task for each group, whose seconds and bytes are the sums of its members'.

    Tensors of one group that the same other groups read become one tensor. Raises InternalError if a task is
    in no group or in two, or if groups wait for each other."""
    of = group_of(workload, groups)
    names = _together(workload, groups)
    tasks = tuple(_merged_task(workload, group, name) for group, name in zip(groups, names, strict=True))
    tensors = tuple(
        _merged_tensor(workload, source, readers, numbers)
        for (source, readers), numbers in _crossing_tensors(workload, of)
    )
    coarse = replace(workload, tasks=tasks, tensors=tensors)
    try:
        _ = coarse.order
    except UsageError as error:
        raise InternalError("tasks were put into groups that wait for each other") from error
    return coarse


def expand(groups: Groups, placement: Placement) -> tuple[int, ...]:
    """Return the machine of each task: that of its group."""
    found = [0] * sum(map(len, groups))
    for group, machine in zip(groups, placement, strict=True):
        for task in group:
            found[task] = machine
    return tuple(found)


def expand_schedule(workload: Workload, groups: Groups, schedule: PlacementSchedule) -> PlacementSchedule:
    """Return the schedule of the coarse workload as a schedule of `workload`."""
    of = group_of(workload, groups)
    placement = expand(groups, schedule.placement)
    merged = [numbers for _, numbers in _crossing_tensors(workload, of)]
    begins = list(schedule.start_s)
    start_s = [0.0] * len(workload.tasks)
    for task in workload.order:
        start_s[task] = begins[of[task]]
        begins[of[task]] += workload.tasks[task].compute_s[placement[task]]
    transfers: list[PlacedTransfer] = []
    for moved in schedule.transfers:
        at_s = moved.start_s
        for number in merged[moved.tensor]:
            end_s = at_s + workload.transfer_s(workload.tensors[number], moved.source, moved.target)
            transfers.append(PlacedTransfer(number, moved.source, moved.target, at_s, end_s))
            at_s = end_s
    return PlacementSchedule(placement, tuple(start_s), tuple(transfers), schedule.makespan_s)


def group_of(workload: Workload, groups: Groups) -> list[int]:
    """Return the index of each task's group. Raises InternalError if a task is in no group or in two."""
    of = [-1] * len(workload.tasks)
    for number, group in enumerate(groups):
        for task in group:
            if of[task] >= 0:
                raise InternalError(f"{workload.tasks[task].name!r} is in two groups")
            of[task] = number
    if -1 in of:
        raise InternalError(f"{workload.tasks[of.index(-1)].name!r} is in no group")
    return of


def _crossing_tensors(
    workload: Workload, of: Sequence[int]
) -> list[tuple[tuple[int, tuple[int, ...]], list[int]]]:
    """Return the tensors that leave their group, by the group that makes them and the groups that read them."""
    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, tensor in enumerate(workload.tensors):
        source = of[tensor.source]
        if readers := {of[reader] for reader in tensor.readers} - {source}:
            found.setdefault((source, tuple(sorted(readers))), []).append(number)
    return list(found.items())


def _merged_task(workload: Workload, group: Sequence[int], name: str) -> Task:
    members = [workload.tasks[task] for task in group]
    if len(members) == 1:
        return replace(members[0], colocate=name)
    return Task(
        f"{members[0].name}+{len(members) - 1}",
        members[0].op,
        tuple(map(sum, zip(*(task.compute_s for task in members), strict=True))),
        sum(task.memory_bytes for task in members),
        name,
    )


def _merged_tensor(
    workload: Workload, source: int, readers: tuple[int, ...], numbers: Sequence[int]
) -> TaskTensor:
    tensors = [workload.tensors[number] for number in numbers]
    nbytes = sum(tensor.nbytes for tensor in tensors)
    if len(tensors) == 1:
        return TaskTensor(source, readers, nbytes, tensors[0].transfer_s)
    if not any(tensor.transfer_s for tensor in tensors) and not any(map(any, workload.latency_s)):
        return TaskTensor(source, readers, nbytes)
    took_s = {
        pair: sum(workload.transfer_s(tensor, *pair) for tensor in tensors) for pair in _pairs(workload)
    }
    return TaskTensor(source, readers, nbytes, took_s)


def _pairs(workload: Workload) -> Iterator[Pair]:
    machines = range(len(workload.machines))
    return ((a, b) for a in machines for b in machines if a != b)


def _together(workload: Workload, groups: Groups) -> list[str]:
    """Return the name under which each group shares a machine with others. Names that meet in one group become one."""
    leads: dict[str, str] = {}

    def lead(name: str) -> str:
        while leads.setdefault(name, name) != name:
            name = leads[name]
        return name

    named = [sorted({workload.tasks[task].colocate for task in group} - {""}) for group in groups]
    for names in named:
        for name in names[1:]:
            leads[lead(name)] = lead(names[0])
    return [lead(names[0]) if names else "" for names in named]
