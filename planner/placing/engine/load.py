"""Load: how long each machine is busy with one sample of a stream. Rules only.

The machines of a task that has replicas take turns: sample k is computed by machine number k modulo n of the
task's n machines. A tensor goes from the machine whose turn it is to the readers' machines whose turn it is,
and a load is the average over the number of samples after which all turns repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import lcm

from edgepart.planner.placing.problem.workload import Placement, Workload

Turns = Sequence[tuple[int, ...]]
"""The machines that take turns at each task."""


def loads(workload: Workload, placement: Placement) -> list[float]:
    """Return each machine's seconds per sample: the longest of computing, sending and receiving, or their sum
    without `overlap`; and then the seconds per sample for which each medium is crossed."""
    return turn_loads(workload, [(machine,) for machine in placement])


def turn_loads(workload: Workload, turns: Turns) -> list[float]:
    """Return the seconds per sample of each machine and of each medium, as `loads` does, on average over the samples after
    which all turns repeat."""
    count = len(workload.machines)
    compute, send, receive = [0.0] * count, [0.0] * count, [0.0] * count
    cross = [0.0] * len(workload.media)
    for task, machines in zip(workload.tasks, turns, strict=True):
        for machine in machines:
            compute[machine] += task.compute_s[machine] / len(machines)
    for tensor in workload.tensors:
        ways, samples = _ways(turns[tensor.source], frozenset(turns[reader] for reader in tensor.readers))
        for here, there in ways:
            took_s = workload.transfer_s(tensor, here, there) / samples
            send[here] += took_s
            receive[there] += took_s
            for medium in workload.crossed[here][there]:
                cross[medium] += took_s
    whole = max if workload.overlap else lambda *parts: sum(parts)
    return [*(whole(*parts) for parts in zip(compute, send, receive, strict=True)), *cross]


@lru_cache(maxsize=1 << 14)
def _ways(
    source: tuple[int, ...], readers: frozenset[tuple[int, ...]]
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the pairs of machines between which a tensor goes, over the samples after which all turns
    repeat, and the number of these samples."""
    samples = lcm(len(source), *map(len, readers))
    ways = []
    for sample in range(samples):
        here = source[sample % len(source)]
        ways += [(here, there) for there in sorted({turn[sample % len(turn)] for turn in readers} - {here})]
    return tuple(ways), samples


def max_load(workload: Workload, placement: Placement) -> float:
    """The load of the busiest machine or medium. One over it is the throughput."""
    return max(loads(workload, placement))
