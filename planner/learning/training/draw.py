"""Drawn workloads: graphs of families with costs on drawn clusters. Rules only.

Speeds differ up to eightfold, and operators of one kind may suit a machine better or worse. Bandwidths and latencies are
drawn from two decades around what computing takes, and in three of ten clusters memory is tight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from random import Random
from statistics import mean

from edgepart.planner.learning.training.families import SketchedTask, draw_sketch
from edgepart.planner.placing.problem.workload import Machine, Task, TaskTensor, Workload

Matrix = tuple[tuple[float, ...], ...]

FLOPS_PER_S = 4e9
"""What the slowest machine computes."""

LAUNCH_S = 20e-6
"""What each operator takes besides."""

TIGHT = 0.3
"""The share of clusters whose memory is tight."""


def draw_workload(family: str, random: Random, size: int, machines: int) -> Workload:
    """Return a graph of the family with about `size` tasks, on so many machines."""
    return draw_workloads([family], random, size, machines)[0]


def draw_workloads(families: Sequence[str], random: Random, size: int, machines: int) -> tuple[Workload, ...]:
    """Return a graph of about `size` tasks of each of the families, which may be the same again, all on one cluster.

    Memory is tight or not for the heaviest of them, and links are wide for all of them together."""
    sketches = [draw_sketch(family, random, size) for family in families]
    speeds = [8 ** random.random() if random.random() < 0.7 else 1.0 for _ in range(machines)]
    suits: dict[tuple[str, int], float] = {}
    tasks = [_cost_tasks(sketch, random, speeds, suits) for sketch in sketches]
    typical_s = mean(min(task.compute_s) for graph in tasks for task in graph)
    typical_bytes = mean(task.nbytes for sketch in sketches for task in sketch)
    kept = [[task.memory_bytes for task in graph] for graph in tasks]
    most = _draw_memory(random, max(map(max, kept)), max(map(sum, kept)), machines)
    bytes_per_s, latency_s = _draw_links(random, machines, typical_s, typical_bytes)
    drawn = tuple(Machine(f"m{n}", f"kind{n}", nbytes) for n, nbytes in enumerate(most))
    return tuple(
        Workload(family, drawn, graph, _tensors(sketch), bytes_per_s, latency_s)
        for family, graph, sketch in zip(families, tasks, sketches, strict=True)
    )


def _cost_tasks(
    sketch: Sequence[SketchedTask],
    random: Random,
    speeds: Sequence[float],
    suits: dict[tuple[str, int], float],
) -> tuple[Task, ...]:
    """Return the tasks with what they take on machines of these speeds. `suits` has how well a kind of operator suits a
    machine, and is added to."""
    tasks = []
    for number, task in enumerate(sketch):
        row = []
        for machine, speed in enumerate(speeds):
            suit = suits.setdefault((task.op, machine), random.uniform(0.7, 1.3))
            row.append(LAUNCH_S + (task.flops + task.nbytes) / (FLOPS_PER_S * speed * suit))
        tasks.append(Task(f"{number}: {task.op}", task.op, tuple(row), task.weight_bytes))
    return tuple(tasks)


def _draw_memory(random: Random, largest: float, total: float, machines: int) -> list[float]:
    """Return the bytes of each machine, for graphs whose largest task and heaviest graph keep so many."""
    if random.random() >= TIGHT:
        return [inf] * machines
    # The largest task has to fit beside others, or the packing alone is hard.
    least = 2 * largest
    shares = [random.uniform(0.5, 1.5) for _ in range(machines)]
    room = random.uniform(1.2, 2.0) * total / sum(shares)
    return [max(least, room * share) for share in shares]


def _draw_links(
    random: Random, machines: int, typical_s: float, typical_bytes: float
) -> tuple[Matrix, Matrix]:
    """Return the bandwidths and latencies, [from][to]: of one network, or of links that differ."""
    wide = typical_bytes / typical_s * 10 ** random.uniform(-0.5, 1.5)
    late, mixed = typical_s * 10 ** random.uniform(-2, 0), random.random() < 0.3
    bytes_per_s = [[inf if a == b else wide for b in range(machines)] for a in range(machines)]
    latency_s = [[0.0 if a == b else late for b in range(machines)] for a in range(machines)]
    for a in range(machines):
        for b in range(a):
            if mixed:
                bytes_per_s[a][b] = bytes_per_s[b][a] = wide * 10 ** random.uniform(-0.5, 0.5)
                latency_s[a][b] = latency_s[b][a] = late * 10 ** random.uniform(-0.5, 0.5)
    return tuple(map(tuple, bytes_per_s)), tuple(map(tuple, latency_s))


def _tensors(sketch: Sequence[SketchedTask]) -> tuple[TaskTensor, ...]:
    readers: dict[int, list[int]] = defaultdict(list)
    for number, task in enumerate(sketch):
        for source in task.inputs:
            readers[source].append(number)
    return tuple(
        TaskTensor(source, tuple(read), sketch[source].nbytes) for source, read in sorted(readers.items())
    )
