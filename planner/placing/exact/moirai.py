"""Moirai (Zhang et al.): the exact placement, as far as the budget goes; never worse than the list
schedulers. Rules only.

The search starts from the best answer of the other placers. A small workload is searched task by task
(latency_model.py), and piece by piece if tasks dominate the graph (pieces.py), both with proofs. A bigger
workload is contracted until it can be searched, without joining tasks that are on different machines in the
best placement, and expanded again, over and over, until the budget is spent. Every answer is judged on the
original graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from random import Random

from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_figure, format_seconds
from edgepart.planner.placing.engine.coarse_workload import coarsen, expand, expand_schedule
from edgepart.planner.placing.engine.compact_schedule import retime
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.evaluate import find_shortest
from edgepart.planner.placing.engine.judge import Judged
from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.engine.local_search import ATTEMPTS, climb
from edgepart.planner.placing.engine.ortools import cp_model
from edgepart.planner.placing.exact.bounds import latency_bound, load_bound
from edgepart.planner.placing.exact.chain_bound import chain_bound
from edgepart.planner.placing.exact.dominators import pieces
from edgepart.planner.placing.exact.latency_model import FEW, solve
from edgepart.planner.placing.exact.pieces import fits, passage
from edgepart.planner.placing.exact.repeats import find_repeats, improve_repeats
from edgepart.planner.placing.exact.throughput_model import assign
from edgepart.planner.placing.placers.best_start import find_best_start
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound, PlacementSchedule
from edgepart.planner.placing.problem.workload import Placement, Workload
from edgepart.planner.placing.registry import placer, register

STARTS = ("heft", "m-etf", "expert", "m-sct", "metis", "pipeline", "getf")
"""The placers that moirai starts from the best of. The first is always asked, the others while there is time
(best_start.py)."""

ALWAYS = 1

MODEL = 15_000
"""The largest workload that CP-SAT is given, by `model_size`."""

CLIMB_S = 2.0
"""The most seconds of local search before the exact search: with a better start less is left to be searched."""

GROUPS = (400, 150, 1500, 60)
"""The numbers of groups to which a big graph is contracted, in turn."""

WINDOW = 40
"""The number of tasks of a big graph that are placed anew together."""

PINNED = 500
"""The number of groups to which the tasks outside a window are contracted."""

WINDOW_S = 5.0
"""The most seconds for one window."""

PATIENCE_S = 10.0
"""A search that is not patient ends when everything was tried once, and nothing better came for so many seconds."""

BOUND = 0.3
"""The part of the remaining time that a bound along the longest path may take, where there are many tasks."""

LAYERS = 0.8
"""The part of the remaining time for pieces that repeat, if there are any."""

SAME = 1e-9
"""The relative difference up to which a bound counts as equal to the value: the rest is the rounding of floats."""


@register("moirai")
def moirai(workload: Workload, asked: Asked) -> PlacementFound:
    """Search for the best placement within the budget. Raises NotInstalled without OR-tools; Infeasible if nothing fits."""
    cp_model()
    search = _MoiraiSearch(workload, asked)
    search.begin()
    if asked.objective == "throughput":
        search.search_throughput()
    elif model_size(workload) <= MODEL:
        search.search_exactly()
    else:
        search.search_broadly()
    return search.answer()


def model_size(workload: Workload) -> int:
    """The approximate number of intervals that CP-SAT would have to place."""
    machines = len(workload.machines)
    return len(workload.tasks) * machines + len(workload.tensors) * machines * (machines - 1)


@dataclass(frozen=True)
class _Best:
    placement: tuple[int, ...]
    value_s: float
    schedule: PlacementSchedule | None


class _MoiraiSearch:
    def __init__(self, workload: Workload, asked: Asked) -> None:
        self._workload = workload
        self._asked = asked
        self._begun_s = asked.clock()
        self._until_s = self._begun_s + asked.budget_s
        self._best: _Best | None = None
        self._better: list[tuple[float, float]] = []
        """When each better placement was found, and its value."""
        self._bound_s = 0.0
        self._step_s = 0.0
        """The most seconds that a step took which ends at no deadline, as contracting and expanding do. Searching ends so
        long before the budget does, because such a step follows it."""
        self._random = Random(0)
        self._ended = False
        """Whether everything was searched, so that the value is the best to within the rounding of times."""
        self._why: list[str] = []

    @property
    def _left_s(self) -> float:
        return max(0.0, self._until_s - self._step_s - self._asked.clock())

    @contextmanager
    def _whole_step(self) -> Iterator[None]:
        begun_s = self._asked.clock()
        yield
        self._step_s = max(self._step_s, self._asked.clock() - begun_s)

    @property
    def _proved(self) -> bool:
        if self._ended:
            return True
        return self._best is not None and self._bound_s >= self._best.value_s * (1 - SAME)

    @property
    def _start(self) -> _Best:
        assert self._best is not None, "something fitted, or Infeasible was raised"
        return self._best

    def _goes_on(self, rounds: int) -> bool:
        """Whether one more round is worth its time, after so many."""
        if self._proved or self._left_s <= 0:
            return False
        idle_s = self._asked.clock() - self._better[-1][0]
        return rounds == 0 or self._asked.patient or idle_s <= PATIENCE_S

    def begin(self) -> None:
        """Start from the placement that was given, or from the best of the other placers."""
        given = self._asked.start
        if given is not None and self._offer(given.placement, given.schedule):
            self._why.append(f"from {format_seconds(self._start.value_s, 6)}")
        else:
            best = find_best_start(self._workload, self._asked, STARTS, ALWAYS)
            self._offer(best.found.placement, best.found.schedule)
            self._why.append(f"from {best.name}'s {format_seconds(self._start.value_s, 6)}")
            if best.left_out:
                self._why.append(f"there was no time to ask {', '.join(best.left_out)}")
        latency = self._asked.objective == "latency"
        if self._left_s > 0:
            self._bound_s = (latency_bound if latency else load_bound)(self._workload)
        if latency and len(self._workload.tasks) > FEW and self._left_s > 0:
            until = self._asked.clock() + BOUND * self._left_s
            self._prove(chain_bound(self._workload, clock=self._asked.clock, until=until))

    def _offer(self, placement: Sequence[int], schedule: PlacementSchedule | None) -> bool:
        """Keep the placement if it fits and is better than the best so far; return whether it was kept."""
        if not fits(self._workload, placement):
            return False
        if self._asked.objective == "throughput":
            better = _Best(tuple(placement), max_load(self._workload, placement), None)
        else:
            made = dispatch(self._workload, placement)
            if schedule is not None:
                order = [-start_s for start_s in schedule.start_s]
                made = min(made, dispatch(self._workload, placement, order), key=lambda one: one.makespan_s)
            if schedule is not None and schedule.makespan_s <= made.makespan_s:
                made = schedule
            better = _Best(tuple(placement), made.makespan_s, made)
        if self._best is not None and better.value_s >= self._best.value_s:
            return False
        self._best = better
        self._better.append((self._asked.clock(), better.value_s))
        self._asked.tell(better.value_s)
        return True

    def _prove(self, bound_s: float) -> None:
        self._bound_s = max(self._bound_s, min(bound_s, self._start.value_s))

    def search_exactly(self) -> None:
        """Search piece by piece, then the whole if nothing is proved yet; of many tasks, windows as long as
        time is left."""
        if self._proved:
            return
        self._climb(min(self._left_s / 10, CLIMB_S))
        if len(pieces(self._workload)) > 1:
            self._piecewise()
            if not self._proved:
                self._climb(self._left_s / 4)
        if self._proved:
            return
        large = len(self._workload.tasks) > FEW
        self._whole(self._left_s / 2 if large else self._left_s)
        if large:
            self._climb(self._left_s / 3)
        rounds = 0
        while large and self._goes_on(rounds):
            self._window()
            rounds += 1

    def _piecewise(self) -> None:
        """Search piece by piece. Memory is counted within each piece only: the bound holds, but the result may not fit."""
        total = sum(task.memory_bytes for task in self._workload.tasks)
        couples = any(total > machine.memory_bytes for machine in self._workload.machines)
        passed = passage(
            self._workload,
            clock=self._asked.clock,
            until=self._asked.clock() + self._left_s * (0.3 if couples else 0.7),
            most_tasks=len(self._workload.tasks),
        )
        self._prove(passed.bound_s)
        self._why.append(f"in {passed.pieces} pieces between tasks that everything passes through")
        if passed.schedule and fits(self._workload, passed.schedule.placement):
            self._offer(passed.schedule.placement, passed.schedule)
            self._ended = passed.ended
        elif passed.schedule:
            self._why.append("memory couples the pieces, so that the whole was searched as well")

    def _window(self) -> None:
        """Place tasks that run at about the same time anew, with all others where they are; if these are
        many, they are contracted to groups."""
        start = self._start
        if start.schedule is None or self._left_s <= 0:
            return
        tasks = sorted(range(len(start.placement)), key=start.schedule.start_s.__getitem__)
        first = self._random.randrange(max(1, len(tasks) - WINDOW))
        free = frozenset(tasks[first : first + WINDOW])
        with self._whole_step():
            groups = contract(self._workload, PINNED, start.placement, start.schedule.start_s, apart=free)
            coarse = _pin(coarsen(self._workload, groups), groups, start.placement, free)
        placement = [start.placement[group[0]] for group in groups]
        if len(groups) > 2 * PINNED or not fits(coarse, placement):
            return
        opening = start.schedule
        if len(groups) < len(tasks):
            order = [-start.schedule.start_s[group[0]] for group in groups]
            made = dispatch(coarse, placement), dispatch(coarse, placement, order)
            opening = min(made, key=lambda one: one.makespan_s)
        else:
            groups = tuple((task,) for task in range(len(tasks)))
            coarse = _pin(self._workload, groups, start.placement, free)
        until = self._asked.clock() + min(WINDOW_S, self._left_s)
        seed = self._random.randrange(1000)
        solved = solve(coarse, clock=self._asked.clock, until=until, start=opening, seed=seed)
        if solved.schedule:
            self._expand(groups, solved.schedule.placement, solved.schedule)

    def _whole(self, budget_s: float) -> None:
        start = self._start.schedule
        if budget_s <= 0 or start is None:
            return
        clock = self._asked.clock
        solved = solve(self._workload, clock=clock, until=clock() + budget_s, start=start)
        self._prove(solved.bound_s)
        if solved.schedule:
            self._offer(solved.schedule.placement, solved.schedule)
            self._ended = solved.ended

    def _climb(self, budget_s: float) -> None:
        until = self._asked.clock() + budget_s
        start = self._start
        better = climb(
            self._workload,
            start.placement,
            objective=self._asked.objective,
            clock=self._asked.clock,
            until=until,
            schedule=start.schedule,
            seed=self._random.randrange(1000),
            attempts=ATTEMPTS,
        ).best
        self._offer(better.placement, better.schedule)

    def _layers(self) -> None:
        """Search one piece of each kind, if pieces repeat."""
        start, parts = self._start.schedule, find_repeats(self._workload)
        if start is None or not parts:
            return
        layered = improve_repeats(
            self._workload,
            start,
            parts,
            clock=self._asked.clock,
            until=self._asked.clock() + LAYERS * self._left_s,
            solvable=lambda piece: model_size(piece) <= MODEL,
        )
        self._prove(layered.bound_s)
        if layered.schedule and self._offer(layered.schedule.placement, layered.schedule):
            self._why.append(f"in {layered.pieces} pieces of {layered.kinds} kinds, one of each searched")

    def search_broadly(self) -> None:
        """Search pieces that repeat; then contract the graph, search it and expand the result, over and over."""
        if self._left_s > 0:
            self._layers()
        turn = fewest = 0
        while self._goes_on(turn):
            most = GROUPS[turn % len(GROUPS)]
            start = self._start
            placement = start.placement if turn else None
            when = start.schedule.start_s if turn and start.schedule else None
            with self._whole_step():
                groups = contract(self._workload, most, placement, when)
                coarse = coarsen(self._workload, groups)
            fewest = len(groups) if not fewest else min(fewest, len(groups))
            slice_s = min(self._left_s, max(self._asked.budget_s / 8, 1.0))
            self._refine(coarse, groups, slice_s, turn)
            self._window()
            turn += 1
        self._why.append(f"contracted {turn} times, to {fewest} groups and more, and expanded again")

    def _refine(
        self, coarse: Workload, groups: tuple[tuple[int, ...], ...], slice_s: float, turn: int
    ) -> None:
        placement = self._project(coarse, groups)
        if placement is None:
            return
        climb_s = slice_s / 2 if model_size(coarse) <= MODEL else slice_s
        better = self._climb_groups(coarse, placement, climb_s, turn)
        self._expand(groups, better.placement, better.schedule)
        if better.schedule and model_size(coarse) <= MODEL and self._left_s > 0:
            until = self._asked.clock() + min(slice_s / 2, self._left_s)
            solved = solve(coarse, clock=self._asked.clock, until=until, start=better.schedule, seed=turn)
            if solved.schedule:
                self._expand(groups, solved.schedule.placement, solved.schedule)

    def _climb_groups(self, coarse: Workload, placement: Placement, budget_s: float, turn: int) -> Judged:
        clock, objective = self._asked.clock, self._asked.objective
        until = clock() + budget_s
        return climb(coarse, placement, objective=objective, clock=clock, until=until, seed=turn).best

    def _project(self, coarse: Workload, groups: tuple[tuple[int, ...], ...]) -> Placement | None:
        """Return the best placement as one of the groups, each where most of its work is; if that does not
        fit, HEFT's placement, or None."""
        placement = self._start.placement
        found = tuple(
            max(
                {placement[task] for task in group},
                key=lambda m: sum(min(self._workload.tasks[t].compute_s) for t in group if placement[t] == m),
            )
            for group in groups
        )
        if fits(coarse, found):
            return found
        try:
            return placer("heft")(coarse, replace(self._asked, budget_s=1.0)).placement
        except Infeasible:
            return None

    def _expand(
        self, groups: tuple[tuple[int, ...], ...], placement: Placement, schedule: PlacementSchedule | None
    ) -> None:
        fine = expand(groups, placement)
        if not fits(self._workload, fine):
            return
        with self._whole_step():
            timed = None
            if schedule is not None:
                timed = retime(self._workload, expand_schedule(self._workload, groups, schedule))
            self._offer(fine, timed)

    def search_throughput(self) -> None:
        """Search by climbing and then with the model; if the workload is too big for the model, on contracted graphs."""
        clock = self._asked.clock
        if self._proved:
            return
        if model_size(self._workload) <= MODEL:
            self._climb(self._left_s * 0.2)
            start = self._start.placement
            solved = assign(self._workload, clock=clock, until=clock() + self._left_s, start=start)
            self._prove(solved.bound_s)
            if solved.placement:
                self._offer(solved.placement, None)
                self._ended = solved.ended
            return
        turn = 0
        while self._goes_on(turn):
            start = self._start.placement
            with self._whole_step():
                groups = contract(self._workload, GROUPS[turn % len(GROUPS)], start if turn else None)
                coarse = coarsen(self._workload, groups)
            slice_s = min(self._left_s, max(self._asked.budget_s / 8, 1.0))
            placement = self._project(coarse, groups)
            if placement is not None:
                better = self._climb_groups(coarse, placement, slice_s, turn)
                self._offer(expand(groups, better.placement), None)
                if model_size(coarse) <= MODEL and self._left_s > 0:
                    until = clock() + min(slice_s, self._left_s)
                    solved = assign(coarse, clock=clock, until=until, start=better.placement)
                    if solved.placement:
                        self._offer(expand(groups, solved.placement), None)
            turn += 1
        self._why.append(f"contracted {turn} times, and expanded again")

    def answer(self) -> PlacementFound:
        """Return the best placement, with its bound and how it was found."""
        best = self._start
        if best.schedule is not None and len(self._workload.tasks) <= 10_000 and self._left_s > 0:
            again = find_shortest(self._workload, best.placement)
            if again.makespan_s < best.value_s:
                best = _Best(best.placement, again.makespan_s, again)
        bound_s: float | None = min(self._bound_s, best.value_s)
        if self._bound_s >= best.value_s * (1 - SAME):
            bound_s = best.value_s
            self._why.append("proved to be the best")
        elif not self._bound_s:
            bound_s = None
            self._why.append("there was no time to prove how much better others may be")
        else:
            gap = f"{format_figure(100 * (1 - self._bound_s / best.value_s), 2)} %"
            said = "searched to the end, with times rounded: " if self._ended else ""
            self._why.append(f"{said}nothing can be more than {gap} better")
            if not self._ended:
                self._why.append(self._late_gain(best.value_s))
        why = "; ".join(self._why)
        return PlacementFound(best.placement, best.value_s, best.schedule, bound_s, why=why)

    def _late_gain(self, value_s: float) -> str:
        """Say what the later half of the time gave: more time is not likely to give more than that."""
        took_s = self._asked.clock() - self._begun_s
        early = [value for at_s, value in self._better if at_s <= self._begun_s + took_s / 2]
        gain = 100 * (1 - value_s / early[-1]) if early and early[-1] else 0.0
        given = f"{format_figure(gain, 2)} %" if gain > 0 else "nothing"
        return f"the later half of {format_seconds(took_s)} gave {given}"


def _pin(
    workload: Workload, groups: Sequence[Sequence[int]], placement: Placement, free: frozenset[int]
) -> Workload:
    """Return the workload with all groups fixed to their machines, except free ones. A group is free if its
    first task is."""
    tasks = []
    for task, group in zip(workload.tasks, groups, strict=True):
        here = placement[group[0]]
        row = tuple(s if m == here else inf for m, s in enumerate(task.compute_s))
        tasks.append(task if group[0] in free else replace(task, compute_s=row))
    return replace(workload, tasks=tuple(tasks)).like(workload)
