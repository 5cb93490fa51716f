"""m-ETF (Baechi, SoCC 2020): the task that can start first, where it can, memory permitting. Rules only."""

from __future__ import annotations

from edgepart.planner.placing.engine.evaluate import settled
from edgepart.planner.placing.placers.earliest import earliest_first
from edgepart.planner.placing.problem.schedule import Asked, Found
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register


@register("m-etf")
def metf(workload: Workload, asked: Asked) -> Found:
    """By the earliest start of each task, whatever was asked for."""
    sides = earliest_first(workload)
    why = "again and again the task that can start first on the machine where it can, among those with memory for it"
    if asked.objective == "throughput":
        why += "; it looks at one sample, so its largest load is only what came of it"
    return settled(workload, sides.machine, asked, why, orders=[[-start for start in sides.start_s]])
