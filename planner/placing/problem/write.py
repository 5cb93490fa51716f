"""Placements as JSON documents. Pure rules."""

from __future__ import annotations

from typing import Any

from edgepart.planner.placing.problem.schedule import PlacementFound, PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload


def answer_document(
    workload: Workload, found: PlacementFound, strategy: str, objective: str, search_s: float
) -> dict[str, Any]:
    """The document of an answer: the device of each node and, for latency, the start of each node and all transfers."""
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
    """The value of the placement, its bound and gap, the search time and the reason."""
    return {
        "value_s": found.value_s,
        "bound_s": found.bound_s,
        "gap": found.gap,
        "search_s": search_s,
        "why": found.why,
    }


def _transfers(workload: Workload, schedule: PlacementSchedule) -> list[dict[str, Any]]:
    """The transfers in the order in which they begin. A tensor is named by its writer and by its readers at the target."""
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
