"""Task graph: what of a workload is the same on whatever machines it is placed. Facts.

What follows from a record alone can be remembered in it. So workloads that share a graph, as those of one model on one
set of machines after another, share everything that follows from the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar, cast

from edgepart.planner.errors import UsageError

Record = TypeVar("Record", bound="Remembering")
Made = TypeVar("Made")


class Remembering:
    """A frozen record that remembers what was made of it. Copies by `replace` remember nothing."""

    def once(self: Record, make: Callable[[Record], Made]) -> Made:
        """Return the result of `make` for this record; `make` is called once. It must depend on nothing else, and nobody
        may change its result."""
        made: dict[Callable[[Any], Any], Any] = self.__dict__.setdefault("_made", {})
        if make not in made:
            made[make] = make(self)
        return cast(Made, made[make])


@dataclass(frozen=True)
class TaskGraph(Remembering):
    """Which of n tasks makes each of t tensors, which ones read it, and which tasks stay together."""

    name: str
    tasks: tuple[str, ...]
    """(n,). The names of the tasks."""
    colocate: tuple[str, ...]
    """(n,). The name of the group of tasks that share a machine; "" for none."""
    sources: tuple[int, ...]
    """(t,). The task that makes each tensor."""
    readers: tuple[tuple[int, ...], ...]
    """(t,). The tasks that read each tensor, each once, ascending."""
    nbytes: tuple[float, ...]
    """(t,)."""

    @cached_property
    def written(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tensors that each task makes."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for number, source in enumerate(self.sources):
            found[source].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def read(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tensors that each task reads."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for number, readers in enumerate(self.readers):
            for reader in readers:
                found[reader].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """The tasks whose tensors each task reads, each once, ascending."""
        return tuple(tuple(sorted({self.sources[t] for t in read})) for read in self.read)

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """The tasks that read each task's tensors, each once, ascending."""
        return tuple(
            tuple(sorted({reader for t in written for reader in self.readers[t]})) for written in self.written
        )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The tasks, each after those that it reads from. Of tasks that could be next, the first in the file
        comes next.

        UsageError if tasks wait for each other."""
        waits = [len(before) for before in self.before]
        ready = [task for task, count in enumerate(waits) if not count]
        heapify(ready)
        found: list[int] = []
        while ready:
            task = heappop(ready)
            found.append(task)
            for reader in self.after[task]:
                waits[reader] -= 1
                if not waits[reader]:
                    heappush(ready, reader)
        if len(found) < len(self.tasks):
            stuck = next(name for name, count in zip(self.tasks, waits, strict=True) if count)
            raise UsageError(
                f"{self.name}: {len(self.tasks) - len(found)} nodes wait for each other in a circle or behind one, "
                f"{stuck!r} among them; a workload's edges must lead in one direction"
            )
        return tuple(found)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of tasks that must share a machine, ordered by their first tasks. Every task is in one group."""
        named: dict[str, list[int]] = defaultdict(list)
        alone: list[list[int]] = []
        for number, name in enumerate(self.colocate):
            if name:
                named[name].append(number)
            else:
                alone.append([number])
        return tuple(sorted(map(tuple, [*named.values(), *alone])))

    @cached_property
    def group(self) -> tuple[int, ...]:
        """The index of each task's group in `groups`."""
        found = [0] * len(self.tasks)
        for number, tasks in enumerate(self.groups):
            for task in tasks:
                found[task] = number
        return tuple(found)
