"""Load: how busy each machine is with one sample of a stream of them. Rules only."""

from __future__ import annotations

from edgepart.planner.placing.workload import Placement, Workload


def loads(workload: Workload, placement: Placement) -> list[float]:
    """By machine, seconds per sample: the longest of computing, sending and receiving; their sum without `overlap`."""
    count = len(workload.machines)
    compute, send, receive = [0.0] * count, [0.0] * count, [0.0] * count
    for task, machine in zip(workload.tasks, placement, strict=True):
        compute[machine] += task.compute_s[machine]
    for tensor in workload.tensors:
        here = placement[tensor.source]
        for there in {placement[reader] for reader in tensor.readers} - {here}:
            took_s = workload.transfer_s(tensor, here, there)
            send[here] += took_s
            receive[there] += took_s
    whole = max if workload.overlap else lambda *parts: sum(parts)
    return [whole(*parts) for parts in zip(compute, send, receive, strict=True)]


def max_load(workload: Workload, placement: Placement) -> float:
    """Of the busiest machine: one over it is the throughput."""
    return max(loads(workload, placement))
