"""Workload: a graph of tasks with costs, and the machines that it can be placed on. Facts.

Two numbers judge a placement. **Latency** is the makespan of one sample: a machine runs one task at a time; a
transfer occupies the sender's sending side and the receiver's receiving side from its start to its end, and the
media between them; the two sides of a machine are independent of each other and of computing. **Throughput** is
one over the largest load (load.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import inf

from edgepart.planner.errors import UsageError

Pair = tuple[int, int]
"""Indices of two machines: from, to."""

Placement = Sequence[int]
"""The index of each task's machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that tasks are placed on."""

    name: str
    kind: str
    memory_bytes: float = inf


@dataclass(frozen=True, slots=True)
class Task:
    """A unit that is placed whole: an operator, or several that stay together."""

    name: str
    op: str
    compute_s: tuple[float, ...]
    """Seconds on each machine; inf where the task cannot run."""
    memory_bytes: float = 0.0
    """Bytes that its machine keeps for it while the plan is loaded."""
    colocate: str = ""
    """The name of the group of tasks that share a machine; "" for none."""


@dataclass(frozen=True, slots=True)
class TaskTensor:
    """A tensor that one task makes and others read. It travels once to each machine that reads it and does not make it."""

    source: int
    """Index of the task that makes it."""
    readers: tuple[int, ...]
    """Indices of the tasks that read it, each once, ascending."""
    nbytes: float
    transfer_s: Mapping[Pair, float] = field(default_factory=dict)
    """Seconds of a transfer between two machines, where these differ from what their link says."""


@dataclass(frozen=True, slots=True)
class SharedMedium:
    """What several links share, such as a Wi-Fi channel: one transfer at a time crosses it, in either direction."""

    name: str
    pairs: frozenset[Pair]
    """The machines, from and to, between which transfers cross it."""


@dataclass(frozen=True)
class Workload:
    """A costed graph and its machines. read.py raises ModelError for an unsound one, and `order` UsageError for circles."""

    name: str
    machines: tuple[Machine, ...]
    tasks: tuple[Task, ...]
    tensors: tuple[TaskTensor, ...]
    bytes_per_s: tuple[tuple[float, ...], ...]
    """[from][to]; inf on the diagonal."""
    latency_s: tuple[tuple[float, ...], ...]
    """[from][to]; 0 on the diagonal."""
    overlap: bool = True
    """Whether a machine computes, sends and receives at the same time; if not, its load is the sum of the three."""
    media: tuple[SharedMedium, ...] = ()

    @cached_property
    def crossed(self) -> tuple[tuple[frozenset[int], ...], ...]:
        """[from][to]: the indices of the media that a transfer crosses."""
        machines = range(len(self.machines))
        return tuple(
            tuple(frozenset(n for n, one in enumerate(self.media) if (a, b) in one.pairs) for b in machines)
            for a in machines
        )

    def transfer_s(self, tensor: TaskTensor, source: int, target: int) -> float:
        """Seconds for which a transfer of the tensor occupies both ends; 0 from a machine to itself."""
        if source == target:
            return 0.0
        given = tensor.transfer_s.get((source, target))
        if given is not None:
            return given
        return self.latency_s[source][target] + tensor.nbytes / self.bytes_per_s[source][target]

    @cached_property
    def written(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tensors that each task makes."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for number, tensor in enumerate(self.tensors):
            found[tensor.source].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def read(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tensors that each task reads."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for number, tensor in enumerate(self.tensors):
            for reader in tensor.readers:
                found[reader].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """The tasks whose tensors each task reads, each once, ascending."""
        return tuple(tuple(sorted({self.tensors[t].source for t in read})) for read in self.read)

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """The tasks that read each task's tensors, each once, ascending."""
        return tuple(
            tuple(sorted({reader for t in written for reader in self.tensors[t].readers}))
            for written in self.written
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
            stuck = next(task.name for task, count in zip(self.tasks, waits, strict=True) if count)
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
        for number, task in enumerate(self.tasks):
            if task.colocate:
                named[task.colocate].append(number)
            else:
                alone.append([number])
        return tuple(sorted(map(tuple, [*named.values(), *alone])))

    def memory_bytes(self, placement: Placement) -> list[float]:
        """Return the bytes that each machine keeps."""
        kept = [0.0] * len(self.machines)
        for task, machine in zip(self.tasks, placement, strict=True):
            kept[machine] += task.memory_bytes
        return kept

    def short_bytes(self, placement: Placement) -> dict[str, int]:
        """Return the bytes of memory that machines lack, by name; {} if everything fits."""
        return {
            machine.name: int(-(-(kept - machine.memory_bytes) // 1))
            for machine, kept in zip(self.machines, self.memory_bytes(placement), strict=True)
            if kept > machine.memory_bytes
        }
