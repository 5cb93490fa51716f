"""Speeds: one number for how fast each machine is, for placers that need it. Rules only."""

from __future__ import annotations

from math import inf

from edgepart.planner.placing.problem.workload import Workload


def speeds(workload: Workload) -> list[float]:
    """Return each machine's speed: the seconds of the tasks that it can run, each on its best machine, over
    their seconds on this machine. The speed is 1 if the tasks take no time, and 0 if the machine can run
    none."""
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
    """Return the machines, those first that can run the most tasks, then the fastest. Tasks that only one
    machine can run, as the gateway's inputs and outputs, do not count: they go there anyway, and say nothing
    about the others."""
    fast = speeds(workload)
    rows = [task.compute_s for task in workload.tasks]
    shared = [row for row in rows if sum(seconds < inf for seconds in row) > 1]
    able = [sum(row[machine] < inf for row in shared) for machine in range(len(workload.machines))]
    return sorted(range(len(fast)), key=lambda machine: (-able[machine], -fast[machine], machine))
