"""Contraction: join tasks into groups if a graph is too big to be searched task by task. Rules only.

Two groups with an edge between them are joined if that edge is the only one out of the first group or into
the second: no other path then leads around the edge, and no circle results. Edges that are the only one on
both sides (chains) come first, then those that carry the most bytes. If hardly any such edges are left,
groups that read from the same groups, or are read by the same groups, are joined; at last, neighbours in an
order in which all groups can run are joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from heapq import heappop, heappush
from math import inf

from edgepart.planner.placing.engine.fit_memory import choices
from edgepart.planner.placing.problem.workload import Placement, Workload

LOOKAHEAD = 4
"""How far an order may run ahead on one machine: by the tasks of this many average groups."""

STALE = 0.01
"""The share of the groups that a round has to join. After a round that joins fewer, groups may be larger."""


def contract(
    workload: Workload,
    most: int,
    placement: Placement | None = None,
    when: Sequence[float] | None = None,
    apart: Container[int] = (),
) -> tuple[tuple[int, ...], ...]:
    """Return about `most` groups of tasks, or more if no two can be joined. With a placement, only tasks on
    the same machine are joined. `when` gives each task a time: tasks that are near in time are joined. Tasks
    in `apart` stay alone."""
    return _Contraction(workload, placement, when, apart).run(most)


class _Contraction:
    def __init__(
        self,
        workload: Workload,
        placement: Placement | None,
        when: Sequence[float] | None,
        apart: Container[int],
    ) -> None:
        self._workload = workload
        self._apart = apart
        tasks = range(len(workload.tasks))
        self._where = list(placement) if placement is not None else [0] * len(workload.tasks)
        self._members: list[list[int]] = [[task] for task in tasks]
        self._before: list[set[int]] = [set(before) for before in workload.before]
        self._after: list[dict[int, float]] = [{} for _ in tasks]
        """The bytes that each group hands to each group that reads from it."""
        for tensor in workload.tensors:
            for reader in tensor.readers:
                after = self._after[tensor.source]
                after[reader] = after.get(reader, 0.0) + tensor.nbytes
        self._alive = set(tasks)
        self._size_s = [min((s for s in task.compute_s if s < inf), default=0.0) for task in workload.tasks]
        self._size_bytes = [task.memory_bytes for task in workload.tasks]
        self._together = [""] * len(workload.tasks)
        self._able: dict[str, frozenset[int]] = {}
        """The machines that tasks which stay together can be on, by their common name."""
        self._machines: list[frozenset[int]] = [frozenset()] * len(workload.tasks)
        for group, able in zip(workload.groups, choices(workload), strict=True):
            for task in group:
                self._together[task] = workload.tasks[task].colocate
                self._machines[task] = frozenset(able)
            self._able[workload.tasks[group[0]].colocate] = frozenset(able)
        self._position = {task: place for place, task in enumerate(workload.order)}
        self._time = dict(self._position)
        """The place of each task in the order in which neighbours are joined."""
        if when is not None:
            ordered = sorted(tasks, key=lambda task: (when[task], self._position[task]))
            self._time = {task: place for place, task in enumerate(ordered)}
        self._most_bytes = min((m.memory_bytes for m in workload.machines), default=inf) / 4

    def run(self, most: int) -> tuple[tuple[int, ...], ...]:
        limit_s = sum(self._size_s) / max(most, 1)
        highest_s = 8 * max(sum(self._size_s), 1e-300)
        while len(self._alive) > most and limit_s < highest_s:
            had = len(self._alive)
            self._join_edges(limit_s, most)
            if had - len(self._alive) < STALE * had:
                self._join_twins(limit_s, most)
            if had - len(self._alive) < STALE * had:
                self._join_neighbours(limit_s, most)
            if had - len(self._alive) < STALE * had:
                limit_s = max(2 * limit_s, highest_s / 2**40)
        position = self._position
        groups = [tuple(sorted(self._members[group], key=position.__getitem__)) for group in self._alive]
        return tuple(sorted(groups, key=lambda group: position[group[0]]))

    def _join_edges(self, limit_s: float, most: int) -> None:
        edges = [
            (not (len(self._after[here]) == 1 and len(self._before[there]) == 1), -nbytes, here, there)
            for here in self._alive
            for there, nbytes in self._after[here].items()
            if len(self._after[here]) == 1 or len(self._before[there]) == 1
        ]
        for _, _, here, there in sorted(edges):
            if len(self._alive) <= most:
                return
            # One of the two may have been joined to another by now: the next round looks at the result.
            if here in self._alive and there in self._after[here]:
                only = len(self._after[here]) == 1 or len(self._before[there]) == 1
                if only and self._may(here, there, limit_s):
                    self._join(here, there)

    def _join_twins(self, limit_s: float, most: int) -> None:
        for around in (self._before, self._after):
            alike: dict[frozenset[int], list[int]] = defaultdict(list)
            for group in sorted(self._alive):
                alike[frozenset(around[group])].append(group)
            for twins in alike.values():
                last = twins[0]
                for twin in twins[1:]:
                    if len(self._alive) <= most:
                        return
                    # Joining others may have changed the neighbours of either.
                    if frozenset(around[last]) == frozenset(around[twin]) and self._may(last, twin, limit_s):
                        self._join(last, twin)
                    else:
                        last = twin

    def _join_neighbours(self, limit_s: float, most: int) -> None:
        """Join neighbours in an order that stays on a machine while it does not run far ahead of the others."""
        last = -1
        for group in self._runs(len(self._where) // most * LOOKAHEAD + 1):
            if len(self._alive) <= most:
                return
            if last >= 0 and self._may(last, group, limit_s):
                self._join(last, group)
            else:
                last = group

    def _runs(self, ahead: int) -> list[int]:
        """Return all groups, each after those that it reads from. The order stays on a machine while it runs
        ahead of the others by at most `ahead` tasks."""
        place = {group: min(self._time[task] for task in self._members[group]) for group in self._alive}
        waits = {group: len(self._before[group]) for group in self._alive}
        ready: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for group, count in waits.items():
            if not count:
                heappush(ready[self._where[group]], (place[group], group))
        found: list[int] = []
        machine = -1
        while ready:
            first = min(ready, key=lambda one: ready[one][0])
            if machine not in ready or ready[machine][0][0] > ready[first][0][0] + ahead:
                machine = first
            _, group = heappop(ready[machine])
            if not ready[machine]:
                del ready[machine]
            found.append(group)
            for reader in self._after[group]:
                waits[reader] -= 1
                if not waits[reader]:
                    heappush(ready[self._where[reader]], (place[reader], reader))
        return found

    def _may(self, here: int, there: int, limit_s: float) -> bool:
        if self._where[here] != self._where[there] or here in self._apart or there in self._apart:
            return False
        if self._size_s[here] + self._size_s[there] > limit_s:
            return False
        both_bytes = self._size_bytes[here] + self._size_bytes[there]
        if both_bytes > self._most_bytes and self._size_bytes[here] and self._size_bytes[there]:
            return False
        names = {self._together[here], self._together[there]} - {""}
        return len(names) < 2 and bool(self._common(here, there))

    def _common(self, here: int, there: int) -> frozenset[int]:
        common = self._machines[here] & self._machines[there]
        for name in {self._together[here], self._together[there]} - {""}:
            common &= self._able[name]
        return common

    def _join(self, here: int, there: int) -> None:
        """Merge the group `there` into `here`."""
        machines = self._common(here, there)
        name = self._together[here] or self._together[there]
        if name:
            self._able[name] = machines
        self._machines[here], self._together[here] = machines, name
        self._members[here] += self._members[there]
        self._size_s[here] += self._size_s[there]
        self._size_bytes[here] += self._size_bytes[there]
        self._alive.remove(there)
        self._after[here].pop(there, None)
        self._before[here].discard(there)
        for source in self._before[there] - {here}:
            self._before[here].add(source)
            after = self._after[source]
            after[here] = after.get(here, 0.0) + after.pop(there)
        for reader, nbytes in self._after[there].items():
            if reader != here:
                self._before[reader].discard(there)
                self._before[reader].add(here)
                self._after[here][reader] = self._after[here].get(reader, 0.0) + nbytes
        self._before[there], self._after[there] = set(), {}
