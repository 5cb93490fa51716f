"""HEFT (Topcuoglu, Hariri and Wu, 2002): tasks by upward rank, each on the machine where it finishes first.
Rules only.

Our additions, not in the paper: transfers wait for their machines' sides; a machine without the memory for a
task (and those that must be with it) is skipped.
"""

from __future__ import annotations

from edgepart.planner.placing.engine.dispatch import upward_ranks
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.fit_memory import Room
from edgepart.planner.placing.engine.ports import Sides
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register


@register("heft")
def heft(workload: Workload, asked: Asked) -> PlacementFound:
    """Place each task where it finishes first, whatever the objective."""
    sides = place_by_rank(workload)
    why = "tasks by upward rank, each on the machine that is done with it first"
    if asked.objective == "throughput":
        why += "; it looks at one sample, so its largest load is only what came of it"
    return settle(
        workload,
        sides.machine,
        asked,
        why,
        orders=[upward_ranks(workload), [-start for start in sides.start_s]],
    )


def place_by_rank(workload: Workload, *, contention: bool = True) -> Sides:
    """Place all tasks. Without `contention`, transfers do not wait for each other, as in the paper."""
    ranks = upward_ranks(workload)
    position = {task: number for number, task in enumerate(workload.order)}
    sides, room = Sides(workload, contention=contention), Room(workload)
    # A task that costs nothing may have the same rank as its reader: the order of the graph then decides.
    for task in sorted(workload.order, key=lambda task: (-ranks[task], position[task])):
        machines = room.machines(task) or [room.force(task)]
        machine = min(machines, key=lambda one: sides.finish_s(task, one))
        room.take(task, machine)
        sides.place(task, machine, gaps=True)
    return sides
