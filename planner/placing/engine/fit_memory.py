"""Fitting: find the machines that a task may still go to, and make placements fit into memory. Rules only.

Groups of tasks that share a machine are placed whole. Whether everything fits at all is a packing problem:
moves and swaps start from the given placement and, if these get stuck, a search tries everything if the graph
is small, and gives up after `MOST_STEPS` if it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.engine.flat_workload import flatten
from edgepart.planner.placing.problem.workload import Placement, Workload

MOST_STEPS = 50_000
"""The most steps of the last search. After them, an infeasible workload cannot be told from one that is hard to pack."""


class Room:
    """The memory that is still free on each machine while tasks are placed one after another. A group goes
    where its first task goes, and takes the memory of all its tasks at that time."""

    def __init__(self, workload: Workload) -> None:
        """Raises Infeasible if no machine can take a group."""
        self.left_bytes = [machine.memory_bytes for machine in workload.machines]
        self.choices = choices(workload)
        """The machines that can run all of each group and have the memory for it alone."""
        self.group = workload.graph.group
        self.bytes = workload.group_bytes
        self.chosen = [-1] * len(workload.groups)
        """The machine of each group; -1 before it has one."""

    def may(self, task: int, machine: int) -> bool:
        """Whether the task can be placed on the machine now."""
        group = self.group[task]
        if self.chosen[group] >= 0:
            return self.chosen[group] == machine
        return machine in self.choices[group] and self.bytes[group] <= self.left_bytes[machine]

    def machines(self, task: int) -> list[int]:
        """The machines that can take the task now; [] if all are full."""
        group = self.group[task]
        if self.chosen[group] >= 0:
            return [self.chosen[group]]
        need = self.bytes[group]
        return [machine for machine in self.choices[group] if need <= self.left_bytes[machine]]

    def full(self, task: int, machine: int) -> bool:
        """Whether only a lack of free memory keeps the task from the machine."""
        group = self.group[task]
        if self.chosen[group] >= 0 or machine not in self.choices[group]:
            return False
        return self.bytes[group] > self.left_bytes[machine]

    def take(self, task: int, machine: int) -> None:
        """Place the task, and so its group, on the machine."""
        group = self.group[task]
        if self.chosen[group] < 0:
            self.chosen[group] = machine
            self.left_bytes[machine] -= self.bytes[group]

    def force(self, task: int) -> int:
        """Place the task where most memory is left although no machine has room, and return that machine.
        `fit` repairs the placement once all tasks are placed."""
        machine = max(self.choices[self.group[task]], key=lambda one: self.left_bytes[one])
        self.take(task, machine)
        return self.chosen[self.group[task]]


def choices(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Return the machines that can run all tasks of each group and keep them. Raises Infeasible if a group has none."""
    return workload.once(_choices)


def _choices(workload: Workload) -> tuple[tuple[int, ...], ...]:
    roomy, machines = allowed(workload), range(len(workload.machines))
    # There are few different rows, and many groups.
    known = {row: tuple(m for m in machines if row[m]) for row in set(map(tuple, roomy.tolist()))}
    return tuple(known[tuple(row)] for row in roomy.tolist())


def allowed(workload: Workload) -> NDArray[np.bool_]:
    """Return, as (groups, machines), which machines can run all tasks of each group and keep them. Raises Infeasible if a
    group has none."""
    return workload.once(_allowed)


def _allowed(workload: Workload) -> NDArray[np.bool_]:
    group = np.array(workload.graph.group, np.int64)
    able = np.ones((len(workload.groups), len(workload.machines)), bool)
    np.logical_and.at(able, group, np.isfinite(flatten(workload).compute_s))
    need = np.bincount(group, [task.memory_bytes for task in workload.tasks], len(able))
    room = np.array([machine.memory_bytes for machine in workload.machines])
    roomy = able & (need[:, None] <= room)
    for number in np.flatnonzero(~roomy.any(axis=1)).tolist():
        raise _unplaceable(workload, number, np.flatnonzero(able[number]).tolist())
    return np.asarray(roomy)


def _unplaceable(workload: Workload, number: int, able: Sequence[int]) -> Infeasible:
    """Return why no machine takes a group that the machines `able` can run."""
    group = workload.groups[number]
    name = workload.tasks[group[0]].name
    if not able:
        why = f"no machine can run {name!r} and what must be with it"
        return Infeasible(f"{workload.name}: {why}", proven=True)
    need = sum(workload.tasks[task].memory_bytes for task in group)
    most = max(able, key=lambda machine: workload.machines[machine].memory_bytes)
    short = int(-(-(need - workload.machines[most].memory_bytes) // 1))
    return Infeasible(
        f"{workload.name}: {name!r} and what must be with it need {need:.0f} bytes, more than any machine that "
        "can run them has",
        {workload.machines[most].name: short},
        proven=True,
    )


def fit(workload: Workload, placement: Placement) -> tuple[int, ...]:
    """Return the placement if it fits, or else one near it that does. Raises Infeasible, with the bytes that
    are short, if none is found; it says whether that is a proof."""
    fitting = _Fitting(workload, placement)
    if fitting.over() and not (fitting.try_moves() or fitting.try_swaps() or fitting.search()):
        raise _refuse(workload, fitting)
    return fitting.placement()


def _refuse(workload: Workload, fitting: _Fitting) -> Infeasible:
    whole = sum(fitting.room.bytes) - sum(machine.memory_bytes for machine in workload.machines)
    why = f"no placement that fits into the machines' memory was found in {MOST_STEPS:,} steps"
    if whole > 0:
        why = f"it does not fit into the machines' memory; together they lack {whole:.0f} bytes"
    elif fitting.ended:
        why = "it does not fit into the machines' memory, whichever machine each task is on"
    proven = whole > 0 or fitting.ended
    return Infeasible(f"{workload.name}: {why}", fitting.least_short, proven=proven)


class _Fitting:
    def __init__(self, workload: Workload, placement: Placement) -> None:
        self.workload = workload
        self.room = room = Room(workload)
        self.where = [placement[group[0]] for group in workload.groups]
        for number, machine in enumerate(self.where):
            if machine not in room.choices[number]:
                self.where[number] = max(room.choices[number], key=lambda one: room.left_bytes[one])
            room.left_bytes[self.where[number]] -= room.bytes[number]
        self.least_short = self.short()
        self.ended = False
        """Whether everything was tried, so that nothing fits."""

    def short(self) -> dict[str, int]:
        return self.workload.short_bytes(self.placement())

    def placement(self) -> tuple[int, ...]:
        return tuple(self.where[group] for group in self.room.group)

    def over(self) -> list[int]:
        return [machine for machine, left in enumerate(self.room.left_bytes) if left < 0]

    def _move(self, group: int, machine: int) -> None:
        self.room.left_bytes[self.where[group]] += self.room.bytes[group]
        self.room.left_bytes[machine] -= self.room.bytes[group]
        self.where[group] = machine

    def try_moves(self) -> bool:
        """Move groups off overfull machines, those first that lose the fewest seconds for each byte that they
        free. Return whether everything fits."""
        for full in self.over():
            left = self.room.left_bytes
            offers = [
                (self._loss_s(group, machine) / self.room.bytes[group], group, machine)
                for group, here in enumerate(self.where)
                if here == full and self.room.bytes[group] > 0
                for machine in self.room.choices[group]
                if machine != full and self.room.bytes[group] <= left[machine]
            ]
            for _, group, machine in sorted(offers):
                if left[full] >= 0:
                    break
                if self.where[group] == full and self.room.bytes[group] <= left[machine]:
                    self._move(group, machine)
        return not self._still_over()

    def _still_over(self) -> bool:
        if not self.over():
            return False
        short = self.short()
        if sum(short.values()) < sum(self.least_short.values()):
            self.least_short = short
        return True

    def _loss_s(self, group: int, machine: int) -> float:
        """Seconds of computing and of transfers that the move adds, with all other groups where they are."""
        workload, here = self.workload, self.where[group]
        loss_s = 0.0
        for task in workload.groups[group]:
            compute_s = workload.tasks[task].compute_s
            loss_s += compute_s[machine] - compute_s[here]
            for number in workload.read[task]:
                tensor = workload.tensors[number]
                source = self.where[self.room.group[tensor.source]]
                loss_s += workload.transfer_s(tensor, source, machine)
                loss_s -= workload.transfer_s(tensor, source, here)
            for number in workload.written[task]:
                tensor = workload.tensors[number]
                for there in {self.where[self.room.group[reader]] for reader in tensor.readers}:
                    loss_s += workload.transfer_s(tensor, machine, there)
                    loss_s -= workload.transfer_s(tensor, here, there)
        return loss_s

    def try_swaps(self) -> bool:
        """Swap pairs of groups so that fewer bytes are short in all. Return whether everything fits. Only
        tried with few groups, as all pairs are looked at."""
        if len(self.where) > 400:
            return False
        while self.over():
            found = next((pair for full in self.over() for pair in self._swaps(full)), None)
            if found is None:
                return not self._still_over()
            (one, to_there), (other, to_here) = found
            self._move(one, to_there)
            self._move(other, to_here)
        return True

    def _swaps(self, full: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Return the first swap that helps, in a list; [] if none does."""
        room, left = self.room, self.room.left_bytes
        for one in (group for group, here in enumerate(self.where) if here == full):
            for other, there in enumerate(self.where):
                frees = room.bytes[one] - room.bytes[other]
                if there == full or frees <= 0:
                    continue
                if there in room.choices[one] and full in room.choices[other] and frees <= left[there]:
                    return [((one, there), (other, full))]
        return []

    def search(self) -> bool:
        """Pack all groups from scratch by backtracking: the largest first (of equal ones, those with the
        fewest machines), each where it was if possible, or else where most memory is left. Return whether
        everything fits."""
        room, left = self.room, [machine.memory_bytes for machine in self.workload.machines]
        order = sorted(
            range(len(self.where)), key=lambda group: (-room.bytes[group], len(room.choices[group]))
        )
        options: list[list[int]] = []
        taken: list[int] = []
        behind = [0.0]
        for group in reversed(order):
            behind.append(behind[-1] + room.bytes[group])
        hopeless: set[tuple[int, tuple[float, ...]]] = set()
        for _ in range(MOST_STEPS + len(order)):
            depth = len(taken)
            if depth == len(order):
                for group, machine in zip(order, taken, strict=True):
                    self._move(group, machine)
                return not self._still_over()
            if len(options) == depth:
                state = depth, tuple(left)
                possible = sum(left) >= behind[len(order) - depth] and state not in hopeless
                options.append(self._options(order[depth], left) if possible else [])
                hopeless.add(state)
            if options[-1]:
                machine = options[-1].pop()
                left[machine] -= room.bytes[order[depth]]
                taken.append(machine)
            elif not taken:
                self.ended = True
                return False
            else:
                options.pop()
                left[taken.pop()] += room.bytes[order[depth - 1]]
        return False

    def _options(self, group: int, left: Sequence[float]) -> list[int]:
        """Return the machines with room for the group, the best last."""
        able = [machine for machine in self.room.choices[group] if self.room.bytes[group] <= left[machine]]
        return sorted(able, key=lambda machine: (machine == self.where[group], left[machine], -machine))
