"""Workload: a graph of tasks with costs, and the machines that it can be placed on. Facts.

Two numbers judge a placement. **Latency** is the makespan of one sample: a machine runs one task at a time; a
transfer occupies the sender's sending side and the receiver's receiving side from its start to its end, and the
media between them; the two sides of a machine are independent of each other and of computing. **Throughput** is
one over the largest load (load.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from edgepart.planner.placing.problem.task_graph import Remembering, TaskGraph

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
class Workload(Remembering):
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
    def graph(self) -> TaskGraph:
        """What is the same on other machines."""
        return TaskGraph(
            self.name,
            tuple(task.name for task in self.tasks),
            tuple(task.colocate for task in self.tasks),
            tuple(tensor.source for tensor in self.tensors),
            tuple(tensor.readers for tensor in self.tensors),
            tuple(tensor.nbytes for tensor in self.tensors),
        )

    def like(self, other: Workload) -> Workload:
        """Return this workload with the very graph of the other one, if the two are equal: then nothing that follows from
        the graph alone is computed again."""
        if self.graph is other.graph or self.graph != other.graph:
            return self
        found = replace(self)
        found.__dict__["graph"] = other.graph  # Fills the cached property.
        return found

    @cached_property
    def written(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tensors that each task makes."""
        return self.graph.written

    @cached_property
    def read(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tensors that each task reads."""
        return self.graph.read

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """The tasks whose tensors each task reads, each once, ascending."""
        return self.graph.before

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """The tasks that read each task's tensors, each once, ascending."""
        return self.graph.after

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The tasks, each after those that it reads from. Of tasks that could be next, the first in the file
        comes next.

        UsageError if tasks wait for each other."""
        return self.graph.order

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of tasks that must share a machine, ordered by their first tasks. Every task is in one group."""
        return self.graph.groups

    @cached_property
    def group_bytes(self) -> tuple[float, ...]:
        """The memory that each group takes."""
        return tuple(sum(self.tasks[task].memory_bytes for task in group) for group in self.groups)

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
