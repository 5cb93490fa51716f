"""Workloads as files, for tests of what reads them."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from edgepart.planner.placing.problem.fields import MOST
from edgepart.planner.placing.problem.read import SCHEMA
from edgepart.planner.placing.problem.workload import Machine, Task, TaskTensor, Workload


def workload_document(workload: Workload) -> dict[str, Any]:
    """What read_workload reads as an equal one: where latencies are the same in both directions, as a file says them;
    else each tensor says what it takes."""
    names = [machine.name for machine in workload.machines]
    pairs = [(a, b) for a in range(len(names)) for b in range(a)]
    links = [
        {
            "a": names[b],
            "b": names[a],
            "bytes_per_s": min(MOST, workload.bytes_per_s[b][a]),
            "up_bytes_per_s": min(MOST, workload.bytes_per_s[a][b]),
            "latency_s": workload.latency_s[b][a],
        }
        for a, b in pairs
    ]
    return {
        "schema": SCHEMA,
        "name": workload.name,
        "overlap": workload.overlap,
        "disconnected": True,
        "devices": [_device(machine) for machine in workload.machines],
        "links": links,
        "media": [
            {"name": one.name, "links": [[names[a], names[b]] for a, b in sorted(one.pairs) if a < b]}
            for one in workload.media
        ],
        "nodes": [_node(task, names) for task in workload.tasks],
        "edges": [
            edge
            for number, tensor in enumerate(workload.tensors)
            for edge in _edges(workload, number, tensor)
        ],
    }


def _device(machine: Machine) -> dict[str, Any]:
    kept = {} if machine.memory_bytes == inf else {"memory_bytes": machine.memory_bytes}
    return (
        {"name": machine.name, "kind": machine.kind, **kept}
        if machine.kind
        else {"name": machine.name, **kept}
    )


def _node(task: Task, names: list[str]) -> dict[str, Any]:
    compute_s = {name: s for name, s in zip(names, task.compute_s, strict=True) if isfinite(s)}
    together = {"colocate": task.colocate} if task.colocate else {}
    return {
        "id": task.name,
        "op": task.op,
        "compute_s": compute_s,
        "memory_bytes": task.memory_bytes,
        **together,
    }


def _edges(workload: Workload, number: int, tensor: TaskTensor) -> list[dict[str, Any]]:
    names = [machine.name for machine in workload.machines]
    latency_s, machines = workload.latency_s, range(len(names))
    uneven = [(a, b) for a in machines for b in range(a) if latency_s[a][b] != latency_s[b][a]]
    given = {
        f"{names[a]}->{names[b]}": workload.transfer_s(tensor, a, b) for a, b in (*uneven, *tensor.transfer_s)
    }
    return [
        {
            "source": workload.tasks[tensor.source].name,
            "target": workload.tasks[reader].name,
            "bytes": tensor.nbytes,
            "tensor": str(number),
            **({"transfer_s": given} if given else {}),
        }
        for reader in tensor.readers
    ]
