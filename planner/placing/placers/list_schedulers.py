"""List schedulers: m-ETF and m-SCT (Baechi, SoCC 2020), and the engine that they share with GETF. Pure rules.

The engine picks, again and again, the pair of a ready task and a machine that can start first. On equal machines this
is ETF (Hwang et al., 1989) with memory limits. On unequal machines a start counts as later by the time that the machine
loses on the task against the best machine that may have it; otherwise any idle machine, however slow, would get the
next task. m-SCT also keeps a machine free for the favourite child of its last task (favourite_child.py). The paper's
guarantee holds for equal machines and transfers shorter than tasks; on unequal machines nothing is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace

from edgepart.planner.placing.engine.dispatch import upward_ranks
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.fit_memory import Room
from edgepart.planner.placing.engine.ports import Sides
from edgepart.planner.placing.placers.favourite_child import PIECE, favourites
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register

MOST_LOOKS = 24
"""The most tasks of one machine whose start is worked out again in a step, because transfers that were booked
since made it later. If more tasks wait, the choice is among these and what was known of the others."""

Tiers = Callable[[int], Sequence[Sequence[int]]]
"""Returns the machines that may have a task, in tiers: a later tier is used only if no earlier one has the memory."""


def place_earliest_first(
    workload: Workload, tiers: Tiers | None = None, favourites: Sequence[int] | None = None
) -> Sides:
    """Place all tasks. `favourites` has for each task a child (-1 for none) for which the task's machine is
    kept free: if that child could start nowhere earlier, other tasks start there only once their inputs could
    be anywhere (m-SCT)."""
    everywhere = [range(len(workload.machines))]
    return _Earliest(workload, tiers or (lambda _: everywhere), favourites).run()


class _Earliest:
    def __init__(self, workload: Workload, tiers: Tiers, favourites: Sequence[int] | None) -> None:
        self.workload, self.tiers, self.favourites = workload, tiers, favourites
        self.sides, self.room = Sides(workload), Room(workload)
        self.ranks = upward_ranks(workload)
        machines = range(len(workload.machines))
        self.waiting: list[list[tuple[float, float, int]]] = [[] for _ in machines]
        """The tasks whose inputs are not at each machine yet, as (lower bound on start plus lateness, -rank, task)."""
        self.startable: list[list[tuple[float, float, int]]] = [[] for _ in machines]
        """The tasks whose inputs are there when each machine is free, as (lateness, -rank, task)."""
        self.missing = [len(before) for before in workload.before]
        self.open: dict[int, int] = {}
        """The number of machines at which each task that could be placed next still waits."""
        self.tier: dict[int, int] = {}
        self.urgent_s: dict[int, float] = {}
        """The time at which the inputs of each task in `open` could be anywhere. Only with favourites."""
        self.kept_for = [-1] * len(machines)
        """The favourite child of the last task of each machine."""

    def run(self) -> Sides:
        for task, missing in enumerate(self.missing):
            if not missing:
                self._offer(task, 0)
        for _ in self.workload.tasks:
            self._place(*self._next())
        return self.sides

    def _lateness_s(self, task: int, machine: int) -> float:
        compute_s = self.workload.tasks[task].compute_s
        tier = self.tiers(task)[min(self.tier[task], len(self.tiers(task)) - 1)]
        return max(0.0, compute_s[machine] - min((compute_s[one] for one in tier), default=0.0))

    def _offer(self, task: int, tier: int) -> None:
        """Offer the task to the machines with room of the first tier, from `tier` on, that has any; if there
        is none, to a machine without room."""
        tiers = self.tiers(task)
        while tier < len(tiers):
            machines = [machine for machine in self.room.machines(task) if machine in tiers[tier]]
            if machines:
                break
            tier += 1
        else:
            # A group stays on its machine even if no tier of this task has that machine.
            machines = self.room.machines(task) or [self.room.force(task)]
        self.tier[task], self.open[task] = tier, len(machines)
        if self.favourites is not None and task not in self.urgent_s:
            self.urgent_s[task] = self._urgent_s(task)
        for machine in machines:
            key = self.sides.ready_s(task, machine) + self._lateness_s(task, machine)
            heappush(self.waiting[machine], (key, -self.ranks[task], task))

    def _urgent_s(self, task: int) -> float:
        workload, latest_s = self.workload, 0.0
        for number in workload.read[task]:
            tensor = workload.tensors[number]
            here = self.sides.machine[tensor.source]
            way_s = max(workload.transfer_s(tensor, here, there) for there in range(len(workload.machines)))
            latest_s = max(latest_s, self.sides.end_s[tensor.source] + way_s)
        return latest_s

    def _next(self) -> tuple[int, int]:
        """The task that can start first, and its machine."""
        while True:
            found = [
                (*best, machine)
                for machine in range(len(self.waiting))
                if (best := self._best(machine)) is not None
            ]
            if found:
                _, _, task, machine = min(found)
                return task, machine

    def _best(self, machine: int) -> tuple[float, float, int] | None:
        """Return the task that the machine would run next, as (start plus lateness, -rank, task)."""
        free_s = self.sides.computing[machine].end
        waiting, startable = self.waiting[machine], self.startable[machine]
        looks = 0
        while looks < MOST_LOOKS:
            first = self._first(startable, machine)
            later = self._first(waiting, machine)
            if later is not None and (first is None or later < (free_s + first[0], *first[1:])):
                ready_s = self.sides.ready_s(later[2], machine)
                lateness_s = self._lateness_s(later[2], machine)
                looks += 1
                if ready_s <= free_s:
                    heappop(waiting)
                    heappush(startable, (lateness_s, later[1], later[2]))
                elif ready_s + lateness_s > later[0]:
                    heapreplace(waiting, (ready_s + lateness_s, later[1], later[2]))
                else:
                    return self._or_favourite(later, ready_s, machine)
            elif first is not None:
                ready_s = self.sides.ready_s(first[2], machine)
                if ready_s <= free_s:
                    return self._or_favourite((free_s + first[0], first[1], first[2]), free_s, machine)
                heappop(startable)
                heappush(waiting, (ready_s + first[0], first[1], first[2]))
                looks += 1
            else:
                return None
        first = self._first(startable, machine)
        known = (free_s + first[0], first[1], first[2]) if first is not None else None
        return min(filter(None, (self._first(waiting, machine), known)), default=None)

    def _first(self, heap: list[tuple[float, float, int]], machine: int) -> tuple[float, float, int] | None:
        """Return the first entry of the heap whose task can still be placed here; remove the entries before it."""
        while heap:
            task = heap[0][2]
            if task in self.open:
                if self.room.may(task, machine):
                    return heap[0]
                self.open[task] -= 1
                heappop(heap)
                if not self.open[task]:
                    self._offer(task, self.tier[task])
            else:
                heappop(heap)
        return None

    def _or_favourite(
        self, best: tuple[float, float, int], start_s: float, machine: int
    ) -> tuple[float, float, int]:
        """Return what the machine runs next: `best`, unless the machine is kept for a favourite child that
        could start nowhere earlier. Then it is that child if it can start before `best` is urgent, or else
        `best` once it is urgent."""
        child = self.kept_for[machine]
        if child not in self.open or child == best[2] or not self.room.may(child, machine):
            return best
        urgent_s = max(start_s, self.urgent_s[best[2]])
        child_s = self._start_s(child, machine)
        if urgent_s <= start_s or any(
            self._start_s(child, other) < child_s for other in self.room.machines(child) if other != machine
        ):
            return best
        if child_s <= urgent_s:
            return child_s + self._lateness_s(child, machine), -self.ranks[child], child
        return best[0] + urgent_s - start_s, best[1], best[2]

    def _start_s(self, task: int, machine: int) -> float:
        return max(self.sides.computing[machine].end, self.sides.ready_s(task, machine))

    def _place(self, task: int, machine: int) -> None:
        self.room.take(task, machine)
        self.sides.place(task, machine)
        for known in (self.open, self.urgent_s):
            known.pop(task, None)
        if self.favourites is not None:
            self.kept_for[machine] = self.favourites[task]
        for reader in self.workload.after[task]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._offer(reader, 0)


@register("m-sct")
def msct(workload: Workload, asked: Asked) -> PlacementFound:
    """Place the task that can start first, again and again, and keep machines free for favourite children,
    whatever the objective. Raises NotInstalled without OR-tools."""
    spared = favourites(workload, asked)
    sides = place_earliest_first(workload, favourites=spared.child)
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
    return settle(workload, sides.machine, asked, why, orders=[[-start for start in sides.start_s]])


@register("m-etf")
def metf(workload: Workload, asked: Asked) -> PlacementFound:
    """Place the task that can start first, again and again, whatever the objective."""
    sides = place_earliest_first(workload)
    why = "again and again the task that can start first on the machine where it can, among those with memory for it"
    if asked.objective == "throughput":
        why += "; it looks at one sample, so its largest load is only what came of it"
    return settle(workload, sides.machine, asked, why, orders=[[-start for start in sides.start_s]])
