"""Every schedule: whether a placement has a shorter one, by trying all orders in which nothing could be earlier alone.
The plain twin of searches with proofs; for small workloads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.problem.workload import Placement, Workload


@dataclass(frozen=True)
class _Item:
    """A task, or a transfer."""

    took_s: float
    sides: tuple[tuple[str, int], ...]
    after: tuple[int, ...]
    """Indices of items."""


def placements(workload: Workload) -> Iterator[tuple[int, ...]]:
    """All that keep the rules."""
    for choice in product(range(len(workload.machines)), repeat=len(workload.groups)):
        placement = [0] * len(workload.tasks)
        for group, machine in zip(workload.groups, choice, strict=True):
            for task in group:
                placement[task] = machine
        runs = all(t.compute_s[m] < inf for t, m in zip(workload.tasks, placement, strict=True))
        if runs and not workload.short_bytes(placement):
            yield tuple(placement)


def least_load(workload: Workload) -> float:
    """Of all placements; inf where there is none."""
    return min((max_load(workload, placement) for placement in placements(workload)), default=inf)


def shortest(workload: Workload, than_s: float = inf) -> float:
    """The makespan of the shortest schedule of all placements; `than_s` where none is shorter than that."""
    best_s = than_s
    for placement in placements(workload):
        best_s = min(best_s, _Orders(_items(workload, placement), best_s).best_s)
    return best_s


def _items(workload: Workload, placement: Placement) -> list[_Item]:
    arrivals: dict[tuple[int, int], int] = {}
    items: list[_Item] = [_Item(0.0, (), ())] * len(workload.tasks)
    for number, tensor in enumerate(workload.tensors):
        here = placement[tensor.source]
        for there in sorted({placement[reader] for reader in tensor.readers} - {here}):
            arrivals[number, there] = len(items)
            media = (n for n, one in enumerate(workload.media) if (here, there) in one.pairs)
            sides = (("sends", here), ("receives", there), *(("crosses", n) for n in media))
            items.append(_Item(workload.transfer_s(tensor, here, there), sides, (tensor.source,)))
    for task, machine in enumerate(placement):
        after = tuple(
            arrivals.get((number, machine), workload.tensors[number].source) for number in workload.read[task]
        )
        items[task] = _Item(workload.tasks[task].compute_s[machine], (("computes", machine),), after)
    return items


class _Orders:
    """What can end first of all does, unless something that needs the same begins before that end: it is tried with
    each of these next (Giffler and Thompson)."""

    def __init__(self, items: list[_Item], best_s: float) -> None:
        self._items = items
        self.best_s = best_s
        self._tail_s = [0.0] * len(items)
        behind: list[list[int]] = [[] for _ in items]
        for number, item in enumerate(items):
            for before in item.after:
                behind[before].append(number)
        done: set[int] = set()
        while len(done) < len(items):
            for number in range(len(items)):
                if number not in done and done.issuperset(behind[number]):
                    self._tail_s[number] = items[number].took_s + max(
                        (self._tail_s[n] for n in behind[number]), default=0.0
                    )
                    done.add(number)
        self._try({}, {})

    def _try(self, ends: dict[int, float], free: dict[tuple[str, int], float]) -> None:
        if len(ends) == len(self._items):
            self.best_s = min(self.best_s, max(ends.values(), default=0.0))
            return
        start: dict[int, float] = {}
        for number, item in enumerate(self._items):
            if number not in ends and all(before in ends for before in item.after):
                times = [*(ends[b] for b in item.after), *(free.get(side, 0.0) for side in item.sides)]
                start[number] = max(times, default=0.0)
                if start[number] + self._tail_s[number] >= self.best_s - 1e-9:
                    return
        first = min(start, key=lambda n: (start[n] + self._items[n].took_s, start[n]))
        until_s = start[first] + self._items[first].took_s
        sides = set(self._items[first].sides)
        rivals = [n for n in start if n != first and start[n] < until_s and sides & {*self._items[n].sides}]
        for number in (first, *rivals):
            item = self._items[number]
            end_s = start[number] + item.took_s
            self._try(ends | {number: end_s}, free | dict.fromkeys(item.sides, end_s))
