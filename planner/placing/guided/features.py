"""Features: what a network sees of a workload. Rules only.

No feature has a unit: times are in units of the mean task, and bytes are shares or times. So a network can be used
on graphs and machines that are a thousand times as large or as fast as those that it was trained on, and on any
number of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.placing.engine.flat_workload import (
    Booleans,
    FlatWorkload,
    Floats,
    Integers,
    flatten,
    flatten_graph,
)
from edgepart.planner.placing.engine.judge import serial_code
from edgepart.planner.placing.problem.task_graph import TaskGraph
from edgepart.planner.placing.problem.workload import Workload

Singles = NDArray[np.float32]

NEIGHBOURS = 4
"""How many of the tasks before and behind a task the network looks at: those between which most bytes move."""

TASK_FEATURES, MACHINE_FEATURES, PAIR_FEATURES = 17, 10, 6
"""The number of features of a task, of a machine, and of a task on a machine."""

TINY_S = 1e-12
"""What keeps times that are 0 from being divided by, or having a logarithm."""


@dataclass(frozen=True)
class Features:
    """The features of a workload with n tasks and m machines."""

    tasks: Singles
    """(n, TASK_FEATURES)."""
    machines: Singles
    """(m, MACHINE_FEATURES)."""
    pairs: Singles
    """(n, m, PAIR_FEATURES)."""
    before: Integers
    """(n, NEIGHBOURS). The tasks that each task reads from; the task itself where there are fewer."""
    behind: Integers
    """(n, NEIGHBOURS). The tasks that read from each task; the task itself where there are fewer."""
    flat: FlatWorkload
    ranks: Floats
    before_s: Floats
    """(n,). HEFT's upward and downward rank of each task, in seconds: from its start to the end, and from the
    beginning to its start, if nothing had to wait, on average over machines."""
    unit_s: float
    """The mean over tasks of their seconds on the machine that computes them fastest."""
    moves_s: Floats
    """(t, m, m). The seconds for which a transfer of each tensor occupies both ends, [from][to]; 0 on the diagonal."""

    @property
    def whole(self) -> Booleans:
        """(m,). Which machines can run all tasks."""
        return np.asarray(np.isfinite(self.flat.compute_s).all(axis=0))

    @property
    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The network's inputs by name."""
        return {name: getattr(self, name) for name in ("tasks", "machines", "pairs", "before", "behind")}


def describe(workload: Workload) -> Features:
    """Return the features of a workload. Raises UsageError if tasks wait for each other in a circle."""
    costs = _costs(workload)
    overall = _describe_whole(costs)
    tasks = _describe_tasks(costs)
    return Features(
        _finite(np.hstack([tasks, np.broadcast_to(overall, (len(tasks), len(overall)))])),
        _finite(np.hstack([_describe_machines(costs), np.tile(overall, (costs.able.shape[1], 1))])),
        _finite(_describe_pairs(costs)),
        *workload.graph.once(_neighbours),
        costs.flat,
        costs.ranks_s,
        costs.before_s,
        costs.unit_s,
        costs.moves_s,
    )


@dataclass(frozen=True)
class _FeatureCosts:
    """The numbers that features are made of, of n tasks, t tensors, e edges (a tensor and one of its readers) and m
    machines."""

    flat: FlatWorkload
    able: Booleans
    """(n, m). Whether each machine can run each task."""
    compute_s: Floats
    """(n, m). The seconds of each task; 0 where it cannot run."""
    mean_s: Floats
    least_s: Floats
    """(n,). The mean and the least of them."""
    unit_s: float
    moves_s: Floats
    """(t, m, m)."""
    way_s: Floats
    """(t,). The mean seconds of a transfer."""
    sources: Integers
    readers: Integers
    edge_tensors: Integers
    """(e,). The task that makes the tensor of each edge, the task that reads it, and the tensor."""
    ranks_s: Floats
    before_s: Floats
    """(n,). The seconds from each task's start to the end, and from the beginning to its start, if nothing had to wait, on
    average over machines (HEFT's upward and downward ranks)."""
    kept_bytes: Floats
    """(n,)."""
    memory_bytes: Floats
    """(m,)."""


def _costs(workload: Workload) -> _FeatureCosts:
    flat = flatten(workload)
    able = np.isfinite(flat.compute_s)
    compute_s = np.where(able, flat.compute_s, 0.0)
    mean_s = compute_s.sum(axis=1) / np.maximum(1, able.sum(axis=1))
    least_s = np.where(able, flat.compute_s, np.inf).min(axis=1, initial=np.inf)
    least_s = np.where(np.isfinite(least_s), least_s, 0.0)
    moves_s = _moves_s(flat)
    machines = compute_s.shape[1]
    way_s = moves_s.sum(axis=(1, 2)) / max(1, machines * (machines - 1))
    edge_tensors = _edge_tensors(flat.reader_starts)
    ranks_s, before_s = serial_code().rank_both_ways(flat, mean_s, way_s)
    return _FeatureCosts(
        flat,
        able,
        compute_s,
        mean_s,
        least_s,
        float(least_s.mean()) or 1.0,
        moves_s,
        way_s,
        flat.source[edge_tensors],
        flat.readers,
        edge_tensors,
        ranks_s,
        before_s,
        np.array([task.memory_bytes for task in workload.tasks], float),
        np.array([machine.memory_bytes for machine in workload.machines], float),
    )


def _finite(values: Floats) -> Singles:
    return np.nan_to_num(np.clip(values, -20, 20)).astype(np.float32)


def _moves_s(flat: FlatWorkload) -> Floats:
    """Return the seconds of a transfer of each tensor, (t, m, m)."""
    found = flat.latency_s[None] + flat.nbytes[:, None, None] / flat.bytes_per_s[None]
    rows = np.flatnonzero(flat.given >= 0)
    given_s = flat.given_s[flat.given[rows]]
    found[rows] = np.where(np.isnan(given_s), found[rows], given_s)
    machines = np.arange(len(flat.latency_s))
    found[:, machines, machines] = 0.0
    return found


def _describe_whole(costs: _FeatureCosts) -> Floats:
    """Return what holds for all tasks and machines, (5,)."""
    tasks, machines = costs.able.shape
    least_s = float(costs.least_s.sum()) + TINY_S
    alone_s = float(costs.compute_s.sum(axis=0).min(initial=np.inf))
    return np.array(
        [
            np.log(tasks + 1) / 5,
            machines / 8,
            np.log(least_s / (costs.ranks_s.max(initial=0.0) + TINY_S)),
            np.log1p(costs.way_s.sum() / least_s),
            np.log((alone_s + TINY_S) / least_s),
        ]
    )


def _describe_tasks(costs: _FeatureCosts) -> Floats:
    """Return the features of each task alone, (n, 12)."""
    tasks, unit_s = len(costs.mean_s), costs.unit_s
    longest_s = float((costs.before_s + costs.ranks_s).max(initial=0.0)) or 1.0
    position = np.empty(tasks)
    position[costs.flat.order] = np.arange(tasks) / max(1, tasks)
    sent_s = np.bincount(costs.flat.source, costs.way_s, tasks)
    got_s = np.bincount(costs.readers, costs.way_s[costs.edge_tensors], tasks)
    columns = (
        np.log1p(costs.mean_s / unit_s),
        np.log((costs.mean_s + TINY_S) / (costs.least_s + TINY_S)),
        np.log1p(sent_s / unit_s),
        np.log1p(got_s / unit_s),
        np.log1p(sent_s / (costs.mean_s + 1e-3 * unit_s)),
        np.log1p(np.bincount(costs.readers, minlength=tasks)),
        np.log1p(np.bincount(costs.sources, minlength=tasks)),
        costs.ranks_s / longest_s,
        costs.before_s / longest_s,
        1 - (costs.before_s + costs.ranks_s) / longest_s,
        position,
        costs.kept_bytes / (costs.kept_bytes.sum() or 1.0) * np.sqrt(tasks),
    )
    return np.stack(columns, axis=1)


def _describe_machines(costs: _FeatureCosts) -> Floats:
    """Return the features of each machine alone, (m, 5)."""
    machines = costs.able.shape[1]
    total_s, others = costs.compute_s.sum(axis=0), max(1, machines - 1)
    typical_s = costs.moves_s.mean(axis=0) if len(costs.moves_s) else np.zeros((machines, machines))
    columns = (
        np.log((total_s + TINY_S) / (total_s.min(initial=np.inf) + TINY_S)),
        np.log1p(typical_s.sum(axis=1) / others / costs.unit_s),
        np.log1p(typical_s.sum(axis=0) / others / costs.unit_s),
        1 - costs.able.mean(axis=0),
        np.minimum(1.0, costs.memory_bytes / (costs.kept_bytes.sum() or 1.0)),
    )
    return np.stack(columns, axis=1)


def _describe_pairs(costs: _FeatureCosts) -> Floats:
    """Return the features of each task on each machine, (n, m, PAIR_FEATURES); 0 where it cannot run, but for the figure
    that says so."""
    tasks, machines = costs.able.shape
    others, least_s = max(1, machines - 1), costs.least_s[:, None]
    sent_s, got_s = np.zeros((tasks, machines)), np.zeros((tasks, machines))
    np.add.at(sent_s, costs.flat.source, costs.moves_s.sum(axis=2) / others)
    np.add.at(got_s, costs.readers, costs.moves_s.sum(axis=1)[costs.edge_tensors] / others)
    columns = (
        np.log((costs.compute_s + TINY_S) / (least_s + TINY_S)),
        np.log1p(costs.compute_s / costs.unit_s),
        np.log1p(np.maximum(0.0, costs.compute_s - least_s) / costs.unit_s),
        np.zeros((tasks, machines)),
        np.log1p(sent_s / costs.unit_s),
        np.log1p(got_s / costs.unit_s),
    )
    found = np.where(costs.able[..., None], np.stack(columns, axis=2), 0.0)
    found[..., 3] = ~costs.able
    return found


def _edge_tensors(reader_starts: Integers) -> Integers:
    """Return the tensor of each edge."""
    return np.repeat(np.arange(len(reader_starts) - 1), np.diff(reader_starts))


def _neighbours(graph: TaskGraph) -> tuple[Integers, Integers]:
    """Return the tasks before each task and those behind it that the network looks at, (n, NEIGHBOURS) each."""
    flat = flatten_graph(graph)
    edge_tensors = _edge_tensors(flat.reader_starts)
    sources, readers, nbytes = flat.source[edge_tensors], flat.readers, flat.nbytes[edge_tensors]
    return (
        _heaviest(sources, readers, nbytes, len(graph.tasks)),
        _heaviest(readers, sources, nbytes, len(graph.tasks)),
    )


def _heaviest(ends: Integers, tasks: Integers, nbytes: Floats, count: int) -> Integers:
    """Return, for each of `count` tasks, the ends of those edges of the task over which most bytes move."""
    pairs, edge = np.unique(np.stack([tasks, ends], axis=1), axis=0, return_inverse=True)
    moved = np.bincount(edge.ravel(), nbytes, len(pairs))
    order = np.lexsort((pairs[:, 1], -moved, pairs[:, 0]))
    task, end = pairs[order].T
    place = np.arange(len(task)) - np.searchsorted(task, task)
    kept = place < NEIGHBOURS
    found = np.repeat(np.arange(count)[:, None], NEIGHBOURS, axis=1)
    found[task[kept], place[kept]] = end[kept]
    return found
