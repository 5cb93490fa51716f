"""Metis: the least cut with balanced load, as people ask of METIS or Scotch; blind to the order of things. Rules only."""

from __future__ import annotations

from edgepart.planner.placing.engine.evaluate import settled
from edgepart.planner.placing.placers.min_cut import partition
from edgepart.planner.placing.problem.schedule import Asked, Found
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register


@register("metis")
def metis(workload: Workload, asked: Asked) -> Found:
    """By the cut and the balance, whatever was asked for."""
    why = "little between machines that are about as busy as each other, by Kernighan and Lin's bisection over and over"
    if asked.objective == "latency":
        why += "; it does not see what waits for what"
    return settled(workload, partition(workload), asked, why)
