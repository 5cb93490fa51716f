"""Metis: place groups of tasks with a small cut and a balanced load; the order of tasks is ignored. Pure rules.

The multilevel scheme is that of METIS (Karypis and Kumar, 1998): heavy edges are contracted until few
vertices are left; these are bisected repeatedly by Kernighan and Lin's exchange (networkx), in proportion to
the machines' speeds; then each contraction is undone, and vertices at a border move where that makes the cut
smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import networkx as nx

from edgepart.planner.placing.engine.dispatch import mean_costs
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.fit_memory import Room
from edgepart.planner.placing.engine.speeds import speeds
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register

COARSE = 160
"""The vertices at which contraction stops. A merged vertex has at most three times its share of all work."""

IMBALANCE = 1.05
"""The most load that a machine may get, over the average load."""

PASSES = 4
"""The most passes over all vertices at each level."""


@dataclass(frozen=True)
class Level:
    """A graph with weights on its edges and vertices."""

    ways_s: list[dict[int, float]]
    """The neighbours of each vertex, with the seconds of what moves between them over an average link."""
    took_s: list[list[float]]
    """Seconds of each vertex on each machine; inf where it cannot run."""
    work_s: list[float]
    """Seconds of each vertex on an average machine."""
    nbytes: Sequence[float]
    choices: list[frozenset[int]]
    """The machines that could have each vertex."""
    finer: list[list[int]]
    """The vertices of the level below that each vertex was merged from; [] at the bottom."""


def partition(workload: Workload) -> list[int]:
    """Return the machine of each task. Vertices only move where there is memory for them, but the bisection ignores it."""
    room = Room(workload)
    levels = [_bottom(workload, room)]
    random = Random(0)
    while len(levels[-1].work_s) > COARSE:
        coarser = _coarser(levels[-1], random)
        # Contraction has got stuck: hardly any two vertices can still be merged.
        if len(coarser.work_s) > 0.95 * len(levels[-1].work_s):
            break
        levels.append(coarser)
    where = _bisect(workload, levels[-1])
    for level in reversed(levels):
        _refine(workload, level, where)
        if level.finer:
            below = [0] * sum(map(len, level.finer))
            for vertex, members in enumerate(level.finer):
                for member in members:
                    below[member] = where[vertex]
            where = below
    return [where[group] for group in room.group]


def _bottom(workload: Workload, room: Room) -> Level:
    compute_s, transfer_s = mean_costs(workload)
    ways_s: list[dict[int, float]] = [{} for _ in workload.groups]
    for tensor, took_s in zip(workload.tensors, transfer_s, strict=True):
        here = room.group[tensor.source]
        for there in {room.group[reader] for reader in tensor.readers} - {here}:
            ways_s[here][there] = ways_s[there][here] = ways_s[here].get(there, 0.0) + took_s
    return Level(
        ways_s,
        [
            [sum(workload.tasks[task].compute_s[m] for task in group) for m in range(len(workload.machines))]
            for group in workload.groups
        ],
        [sum(compute_s[task] for task in group) for group in workload.groups],
        room.bytes,
        [frozenset(able) for able in room.choices],
        [],
    )


def _coarser(level: Level, random: Random) -> Level:
    """Merge each vertex with the free neighbour over its heaviest edge, unless the two are too heavy together."""
    most_s = 3 * sum(level.work_s) / COARSE
    most_bytes = 3 * sum(level.nbytes) / COARSE
    partner = [-1] * len(level.work_s)
    order = list(range(len(partner)))
    random.shuffle(order)
    for vertex in order:
        if partner[vertex] >= 0:
            continue
        fitting = [
            (way_s, -other)
            for other, way_s in level.ways_s[vertex].items()
            if partner[other] < 0
            and level.work_s[vertex] + level.work_s[other] <= most_s
            and level.nbytes[vertex] + level.nbytes[other] <= most_bytes
            and level.choices[vertex] & level.choices[other]
        ]
        other = -max(fitting)[1] if fitting else vertex
        partner[vertex], partner[other] = other, vertex
    finer = [sorted({vertex, other}) for vertex, other in enumerate(partner) if vertex <= other]
    return _merge(level, finer)


def _merge(level: Level, finer: list[list[int]]) -> Level:
    above = {member: vertex for vertex, members in enumerate(finer) for member in members}
    ways_s: list[dict[int, float]] = [{} for _ in finer]
    for vertex, members in enumerate(finer):
        for member in members:
            for other, way_s in level.ways_s[member].items():
                if above[other] != vertex:
                    ways_s[vertex][above[other]] = ways_s[vertex].get(above[other], 0.0) + way_s
    return Level(
        ways_s,
        [
            [sum(parts) for parts in zip(*(level.took_s[one] for one in members), strict=True)]
            for members in finer
        ],
        [sum(level.work_s[one] for one in members) for members in finer],
        [sum(level.nbytes[one] for one in members) for members in finer],
        [frozenset.intersection(*(level.choices[one] for one in members)) for members in finer],
        finer,
    )


def _bisect(workload: Workload, level: Level) -> list[int]:
    """Return the machine of each vertex: each half of the machines gets a half of the graph, recursively."""
    fast = speeds(workload)
    where = [0] * len(level.work_s)
    pending = [(list(range(len(where))), _neighbours(workload))]
    while pending:
        vertices, machines = pending.pop()
        if len(machines) == 1 or not vertices:
            for vertex in vertices:
                where[vertex] = machines[0]
            continue
        halves = machines[: len(machines) // 2], machines[len(machines) // 2 :]
        weights = [sum(fast[machine] for machine in half) for half in halves]
        share = weights[0] / sum(weights) if sum(weights) else 0.5
        pending += zip(_halve(level, vertices, share), halves, strict=True)
    for vertex, able in enumerate(level.choices):
        if where[vertex] not in able:
            where[vertex] = min(able, key=lambda machine: level.took_s[vertex][machine])
    return where


def _neighbours(workload: Workload) -> list[int]:
    """Return the machines, each followed by the one of the remaining machines that it has the fastest link to."""
    left = set(range(1, len(workload.machines)))
    order = [0]
    while left:
        here = order[-1]
        order.append(max(left, key=lambda there: (workload.bytes_per_s[here][there], -there)))
        left.discard(order[-1])
    return order


def _halve(level: Level, vertices: list[int], share: float) -> tuple[list[int], list[int]]:
    """Divide the vertices in two: those with the first `share` of the work, in the given order, and the
    others. Pairs are then exchanged while that makes the cut smaller."""
    whole_s, done_s, first = sum(level.work_s[vertex] for vertex in vertices), 0.0, 0
    while first < len(vertices) and done_s + level.work_s[vertices[first]] / 2 <= share * whole_s:
        done_s += level.work_s[vertices[first]]
        first += 1
    one, other = set(vertices[:first]), set(vertices[first:])
    if not one or not other:
        return sorted(one), sorted(other)
    graph = nx.Graph()
    graph.add_nodes_from(vertices)
    inside = one | other
    graph.add_weighted_edges_from(
        (vertex, there, way_s)
        for vertex in vertices
        for there, way_s in level.ways_s[vertex].items()
        if there in inside and vertex < there
    )
    one, other = nx.community.kernighan_lin_bisection(graph, (one, other), seed=0)
    return sorted(one), sorted(other)


def _refine(workload: Workload, level: Level, where: list[int]) -> None:
    """Move vertices, in place, to a machine of a neighbour, or from a machine that is too busy or too full to any other."""
    state = _Loads(workload, level, where)
    for _ in range(PASSES):
        if not sum(state.improve(vertex) for vertex in range(len(where))):
            return


class _Loads:
    def __init__(self, workload: Workload, level: Level, where: list[int]) -> None:
        self.level, self.where = level, where
        count = len(workload.machines)
        self.busy_s, self.left_bytes = [0.0] * count, [machine.memory_bytes for machine in workload.machines]
        for vertex, machine in enumerate(where):
            self.busy_s[machine] += level.took_s[vertex][machine]
            self.left_bytes[machine] -= level.nbytes[vertex]
        fast = speeds(workload)
        least_s = sum(min(row) for row in level.took_s)
        self.most_s = IMBALANCE * least_s / sum(fast) if sum(fast) else 0.0

    def improve(self, vertex: int) -> bool:
        """Move the vertex if that is better; return whether it moved."""
        level, here = self.level, self.where[vertex]
        near: dict[int, float] = {}
        for other, way_s in level.ways_s[vertex].items():
            near[self.where[other]] = near.get(self.where[other], 0.0) + way_s
        urgent = self.busy_s[here] > self.most_s or self.left_bytes[here] < 0
        if not urgent and not near.keys() - {here}:
            return False
        best, best_gain = here, (0.0, 0.0)
        for there in level.choices[vertex] if urgent else near.keys() & level.choices[vertex]:
            if there == here or level.nbytes[vertex] > self.left_bytes[there]:
                continue
            then_s = self.busy_s[there] + level.took_s[vertex][there]
            relief_s = max(self.busy_s[here] - max(then_s, self.most_s), 0.0)
            if then_s > self.most_s and not relief_s and self.left_bytes[here] >= 0:
                continue
            gain = (relief_s if urgent else 0.0, near.get(there, 0.0) - near.get(here, 0.0))
            # Any move off an overfull machine is a gain.
            if self.left_bytes[here] < 0:
                gain = (gain[0] + 1e-30, gain[1])
            if gain > best_gain:
                best, best_gain = there, gain
        if best == here:
            return False
        for machine, sign in ((here, -1), (best, 1)):
            self.busy_s[machine] += sign * level.took_s[vertex][machine]
            self.left_bytes[machine] -= sign * level.nbytes[vertex]
        self.where[vertex] = best
        return True


@register("metis")
def metis(workload: Workload, asked: Asked) -> PlacementFound:
    """Place tasks by cut and balance, whatever the objective."""
    why = "little between machines that are about as busy as each other, by Kernighan and Lin's bisection over and over"
    if asked.objective == "latency":
        why += "; it does not see what waits for what"
    return settle(workload, partition(workload), asked, why)
