"""m-SCT (Baechi, SoCC 2020): m-ETF that keeps a machine for the favourite child of what it did last. Rules only.

The guarantee of the paper is for equal machines and transfers shorter than tasks; on unequal ones nothing is promised.
What was carried over, and how: favourite_child.py (averages) and earliest.py (lateness).
"""

from __future__ import annotations

from edgepart.planner.placing.engine.evaluate import settled
from edgepart.planner.placing.placers.earliest import earliest_first
from edgepart.planner.placing.placers.favourite_child import PIECE, favourites
from edgepart.planner.placing.problem.schedule import Asked, Found
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register


@register("m-sct")
def msct(workload: Workload, asked: Asked) -> Found:
    """By the earliest start of each task, favourite children first where they were; whatever was asked for. UsageError
    without OR-tools."""
    spared = favourites(workload, asked)
    sides = earliest_first(workload, favourites=spared.child)
    count = len(workload.tasks)
    why = (
        f"earliest start first, machines kept for favourite children: {sum(one >= 0 for one in spared.child)} of {count}"
        " tasks have one, by the linear relaxation"
    )
    if count > PIECE:
        why += f" of {PIECE} tasks at a time"
    if spared.relaxed < count:
        why += (
            f" for {spared.relaxed} tasks, and by the longest path for those that there was no time left for"
        )
    if asked.objective == "throughput":
        why += "; it looks at one sample, so its largest load is only what came of it"
    return settled(workload, sides.machine, asked, why, orders=[[-start for start in sides.start_s]])
