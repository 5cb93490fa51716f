"""Speeds: one number for how fast a machine is, where placers want one. Rules only."""

from __future__ import annotations

from math import inf

from edgepart.planner.placing.problem.workload import Workload


def speeds(workload: Workload) -> list[float]:
    """By machine, what the tasks that it can run would take on the best machine for each, over what they take on it; 1
    where that is no time, 0 where it can run none."""
    best, own = [0.0] * len(workload.machines), [0.0] * len(workload.machines)
    able = [False] * len(workload.machines)
    for task in workload.tasks:
        least_s = min(task.compute_s)
        for machine, seconds in enumerate(task.compute_s):
            if seconds < inf:
                able[machine] = True
                best[machine] += least_s
                own[machine] += seconds
    return [
        (least_s / took_s if took_s else 1.0) if can else 0.0
        for can, least_s, took_s in zip(able, best, own, strict=True)
    ]


def order_by_speed(workload: Workload) -> list[int]:
    """Machines; those first that can run the most tasks. What only one can run, as what the gateway has and wants, goes
    there anyway, and says nothing about the rest."""
    fast = speeds(workload)
    rows = [task.compute_s for task in workload.tasks]
    shared = [row for row in rows if sum(seconds < inf for seconds in row) > 1]
    able = [sum(row[machine] < inf for row in shared) for machine in range(len(workload.machines))]
    return sorted(range(len(fast)), key=lambda machine: (-able[machine], -fast[machine], machine))
