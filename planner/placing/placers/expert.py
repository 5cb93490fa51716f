"""Expert: place tasks as people do by hand: in order, the first ones on one machine, the next on another. Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from edgepart.planner.placing.engine.dispatch import mean_costs
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.fit_memory import Room
from edgepart.planner.placing.engine.speeds import order_by_speed
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register


@register("expert")
def expert(workload: Workload, asked: Asked) -> PlacementFound:
    """For latency, fill one machine after the other, the fastest first, as far as its memory allows. For
    throughput, give each machine a share of the work in proportion to its speed, as far as its memory
    allows."""
    if asked.objective == "throughput":
        why = "tasks in order, dealt to the machines by their speed, as memory allows"
    else:
        why = "tasks in order, the fastest machine first, each filled before the next is begun"
    return settle(workload, place_by_hand(workload, asked), asked, why)


def place_by_hand(workload: Workload, asked: Asked) -> list[int]:
    """Return a placement. If filling the machines in order gets stuck, some machine has more than it can hold."""
    room, order, shares = Room(workload), order_by_speed(workload), _Shares(workload)
    evenly = asked.objective == "throughput"
    placement, done_s, at = [-1] * len(workload.tasks), 0.0, 0
    share_s = shares.next_s(order) if evenly else inf
    for task in workload.order:
        # Go on to the next machine when this one is full or has its share, and never back.
        while at < len(order) - 1 and (done_s >= share_s or room.full(task, order[at])):
            at, done_s = at + 1, 0.0
            share_s = shares.next_s(order[at:]) if evenly else inf
        here = order[at]
        if room.may(task, here):
            done_s += workload.tasks[task].compute_s[here]
        else:
            here = _elsewhere(workload, room, task)
        room.take(task, here)
        shares.place(task)
        placement[task] = here
    return placement


def _elsewhere(workload: Workload, room: Room, task: int) -> int:
    """The fastest machine that has room for the task; if all are full, the one that `Room.force` takes."""
    machines = room.machines(task) or [room.force(task)]
    return min(machines, key=lambda machine: workload.tasks[task].compute_s[machine])


class _Shares:
    """Divides the remaining work so that all remaining machines get the same seconds of it."""

    def __init__(self, workload: Workload) -> None:
        self._mean_s, _ = mean_costs(workload)
        self._whole_s = self._left_s = sum(self._mean_s)
        self._took_s = [
            sum(task.compute_s[machine] for task in workload.tasks if task.compute_s[machine] < inf)
            for machine in range(len(workload.machines))
        ]

    def place(self, task: int) -> None:
        self._left_s -= self._mean_s[task]

    def next_s(self, machines: Sequence[int]) -> float:
        """Seconds of work for the first of the remaining `machines`; 0 if one of them needs no time for anything."""
        took_s = [self._took_s[machine] for machine in machines]
        if not all(took_s) or not self._whole_s:
            return 0.0
        return self._left_s / self._whole_s / sum(1 / seconds for seconds in took_s)
