"""Writing: workloads and what was found for them, as JSON says it. Rules only."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from edgepart.planner.placing.problem.read import MOST, SCHEMA
from edgepart.planner.placing.problem.schedule import PlacementFound, PlacementSchedule
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


def answer_document(
    workload: Workload, found: PlacementFound, strategy: str, objective: str, search_s: float
) -> dict[str, Any]:
    """Where each node is, when it starts, and what is sent when; of throughput only where it is."""
    names = [machine.name for machine in workload.machines]
    document: dict[str, Any] = {
        **summary(found, search_s),
        "strategy": strategy,
        "objective": objective,
        "placement": {
            task.name: names[machine] for task, machine in zip(workload.tasks, found.placement, strict=True)
        },
    }
    if found.replicas:
        document["replicas"] = {
            task.name: [names[machine] for machine in turns]
            for task, turns in zip(workload.tasks, found.replicas, strict=True)
            if len(turns) > 1
        }
    if objective == "latency" and found.schedule is not None:
        starts = zip(workload.tasks, found.schedule.start_s, strict=True)
        document["start_s"] = {task.name: start_s for task, start_s in starts}
        document["transfers"] = _transfers(workload, found.schedule)
    return document


def summary(found: PlacementFound, search_s: float) -> dict[str, Any]:
    """How good it is."""
    return {
        "value_s": found.value_s,
        "bound_s": found.bound_s,
        "gap": found.gap,
        "search_s": search_s,
        "why": found.why,
    }


def _transfers(workload: Workload, schedule: PlacementSchedule) -> list[dict[str, Any]]:
    """In the order in which they begin; a tensor is named by who makes it and who reads it there."""
    names = [machine.name for machine in workload.machines]
    return [
        {
            "source": workload.tasks[tensor.source].name,
            "targets": [
                workload.tasks[reader].name
                for reader in tensor.readers
                if schedule.placement[reader] == sent.target
            ],
            "from": names[sent.source],
            "to": names[sent.target],
            "bytes": tensor.nbytes,
            "start_s": sent.start_s,
            "end_s": sent.end_s,
        }
        for sent in sorted(schedule.transfers, key=lambda one: (one.start_s, one.tensor, one.target))
        for tensor in (workload.tensors[sent.tensor],)
    ]
