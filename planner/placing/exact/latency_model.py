"""Moirai's model on CP-SAT: where and when tasks are computed and tensors are moved (Moirai, section 3.4).
Rules only.

Each task has an interval on each machine, which is present if the task is there; each tensor has an interval
for each pair of machines, which is present if the tensor has to travel between them. Intervals that occupy
the computing, sending or receiving side of the same machine, or the same medium, do not overlap. These are the
paper's (4)-(8) without its big-M constants: precedence (4a)-(4b), one machine each (4c), memory (5), non-overlap (6),
communication (7), congestion (8). Our additions: a tensor travels only once to a machine, groups stay together, and
links share media.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import floor, inf, log2
from typing import Any

from edgepart.planner.placing.engine.compact_schedule import retime
from edgepart.planner.placing.engine.ortools import cp_model
from edgepart.planner.placing.exact.ticks import COARSE, ENOUGH, Ticks, ticks
from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload

WORKERS = 2
"""The number of CP-SAT's workers."""

MOST_TERMS = 20_000
"""The most terms of all sums over the tasks between two tasks."""

FEW = 100
"""The most tasks for which a proof is within reach. With more tasks, what only helps proofs is left out, and
time is counted coarsely, so that each improvement that is found is worth the search."""

PROVER = "no_lp"
"""The CP-SAT worker that proves bounds where tasks are few. Learning from conflicts alone mostly proves
graphs of 30 tasks several times sooner than linear relaxations do, which say little about intervals that must
not overlap. The other worker looks for better schedules."""

LOOK = 100
"""After how many groups, tasks or tensors, while a model is made, the clock is looked at."""

FINEST = 2.0**50
"""The most parts in which all bytes together are counted."""


@dataclass(frozen=True)
class Solved:
    """The result of a search."""

    schedule: PlacementSchedule | None
    """The best schedule that was found; None if there is none, or none was found."""
    bound_s: float
    """A lower bound: no schedule is shorter. inf if there is no schedule at all."""
    ended: bool
    """Whether the search is complete: the schedule is the best one (to within a tick for each task), or there is none."""


def solve(
    workload: Workload,
    *,
    clock: Callable[[], float],
    until: float,
    start: PlacementSchedule,
    seed: int = 0,
) -> Solved:
    """Search from `start`, until the clock says `until`, for the shortest schedule that is no longer than `start`. The time
    in which the model is made counts: where it takes all of it, nothing is found."""
    if not start.makespan_s:
        return Solved(start, 0.0, True)
    parts = ENOUGH if len(workload.tasks) <= FEW else COARSE
    model = _LatencyModel(workload, ticks(workload, start.makespan_s, parts))
    for made, _ in enumerate(model.make(), 1):
        if made % LOOK == 0 and clock() >= until:
            return Solved(None, 0.0, False)
    model.hint(start)
    return model.search(until - clock(), seed)


class _LatencyModel:
    def __init__(self, workload: Workload, took: Ticks) -> None:
        self._cp = cp_model()
        self._model: Any = self._cp.CpModel()
        self._workload = workload
        self._took = took
        self._heads, self._tails = _Reach(workload, took).both()
        self._makespan = self._model.new_int_var(self._shortest(), took.horizon, "makespan")
        self._at: list[dict[int, Any]] = [{} for _ in workload.tasks]
        """Whether each task is on each machine, by task and machine."""
        self._start: list[Any] = []
        self._end: list[Any] = []
        self._sides: dict[tuple[str, int], list[Any]] = defaultdict(list)
        """The intervals that occupy each side of each machine, and each medium: "computes", "sends" or "receives" and the
        machine, or "crosses" and the medium."""
        self._received: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """Whether each tensor travels to each machine, and the start and end of its transfer, by tensor and machine."""
        self._moved: dict[tuple[int, int, int], Any] = {}
        """Whether each tensor travels from a sender to a receiver, by tensor, sender and receiver."""
        self._used: dict[int, Any] = {}
        """Whether any task is on a machine, for the machines where `_burden` needs to know."""

    def _shortest(self) -> int:
        """A lower bound on the makespan, in ticks."""
        return max(
            min((head[m] + self._took.compute[task][m] + self._tails[task][m] for m in head), default=0)
            for task, head in enumerate(self._heads)
        )

    def make(self) -> Iterator[None]:
        """Make the model, and yield after each group, task and tensor of the workload."""
        for group in self._workload.groups:
            self._place(group)
            yield
        for task in range(len(self._workload.tasks)):
            self._compute(task)
            yield
        for number in range(len(self._workload.tensors)):
            self._move(number)
            yield
        for intervals in self._sides.values():
            if len(intervals) > 1:
                self._model.add_no_overlap(intervals)
        remember(self._model, self._workload, self._at)
        self._burden()
        self._between()
        self._tell_apart()
        self._model.minimize(self._makespan)

    def _place(self, group: Sequence[int]) -> None:
        """Make the literals of a group: tasks that stay together share them."""
        able = [m for m in range(len(self._workload.machines)) if all(self._fits(t, m) for t in group)]
        if len(able) == 1:
            literals = {able[0]: self._model.new_constant(1)}
        else:
            literals = {m: self._model.new_bool_var(f"at{group[0]},{m}") for m in able}
            self._model.add_exactly_one(literals.values())
        for task in group:
            self._at[task] = literals

    def _fits(self, task: int, machine: int) -> bool:
        """Whether a schedule within the horizon could have the task on the machine."""
        if machine not in self._took.compute[task]:
            return False
        around = self._heads[task][machine] + self._tails[task][machine]
        return around + self._took.compute[task][machine] <= self._took.horizon

    def _compute(self, task: int) -> None:
        model, took, at = self._model, self._took.compute[task], self._at[task]
        first = min((self._heads[task][m] for m in at), default=0)
        last = self._took.horizon - min((took[m] + self._tails[task][m] for m in at), default=0)
        start = model.new_int_var(min(first, max(last, 0)), max(last, 0), f"start{task}")
        end = model.new_int_var(0, self._took.horizon, f"end{task}")
        model.add(end == start + sum(took[m] * literal for m, literal in at.items()))
        for m, literal in at.items():
            span = model.new_optional_interval_var(start, took[m], end, literal, f"on{task},{m}")
            self._sides["computes", m].append(span)
            if self._heads[task][m] > first:
                model.add(start >= self._heads[task][m]).only_enforce_if(literal)
        model.add(end + sum(self._tails[task][m] * literal for m, literal in at.items()) <= self._makespan)
        self._start.append(start)
        self._end.append(end)

    def _move(self, number: int) -> None:
        tensor = self._workload.tensors[number]
        source, readers = tensor.source, tensor.readers
        for reader in readers:
            self._model.add(self._start[reader] >= self._end[source])
        for there in sorted({m for reader in readers for m in self._at[reader]}):
            self._receive(number, there)
        if len(readers) == 1:  # The same as a linear constraint, which relaxations can use.
            lits = [
                (self._took.move[number][a, b], self._moved[number, a, b])
                for a in self._at[source]
                for b in self._at[readers[0]]
                if a != b
            ]
            way = sum(took * literal for took, literal in lits)
            self._model.add(self._start[readers[0]] >= self._end[source] + way)

    def _receive(self, number: int, there: int) -> None:
        model, tensor = self._model, self._workload.tensors[number]
        senders = {m: literal for m, literal in self._at[tensor.source].items() if m != there}
        if not senders:
            return
        here = self._at[tensor.source].get(there)
        present = model.new_bool_var(f"moves{number},{there}")
        begin = model.new_int_var(0, self._took.horizon, f"begin{number},{there}")
        end = model.new_int_var(0, self._took.horizon, f"done{number},{there}")
        readers = [reader for reader in tensor.readers if there in self._at[reader]]
        model.add_bool_or([self._at[reader][there] for reader in readers]).only_enforce_if(present)
        if here is not None:
            model.add_implication(present, here.negated())
        for reader in readers:
            literal = self._at[reader][there]
            model.add_bool_or([literal.negated(), present, *([] if here is None else [here])])
            model.add(self._start[reader] >= end).only_enforce_if([present, literal])
        model.add(begin >= self._end[tensor.source]).only_enforce_if(present)
        ways = [self._way(number, a, there, (begin, end, present), literal) for a, literal in senders.items()]
        model.add(sum(ways) == present)
        self._received[number, there] = (present, begin, end)

    def _way(self, number: int, here: int, there: int, span: tuple[Any, Any, Any], source: Any) -> Any:
        """Make the interval of the tensor's transfer from `here` to `there`; return whether it is present."""
        begin, end, present = span
        literal = self._model.new_bool_var(f"from{number},{here},{there}")
        self._model.add_implication(literal, source)
        self._model.add_bool_or([source.negated(), present.negated(), literal])
        took = self._took.move[number][here, there]
        interval = self._model.new_optional_interval_var(
            begin, took, end, literal, f"way{number},{here},{there}"
        )
        self._sides["sends", here].append(interval)
        self._sides["receives", there].append(interval)
        for medium in self._workload.crossed[here][there]:
            self._sides["crosses", medium].append(interval)
        self._moved[number, here, there] = literal
        return literal

    def _burden(self) -> None:
        """Bound the computing time of each machine by the makespan. This follows from the rest, but is linear."""
        for m in range(len(self._workload.machines)):
            here = [
                (self._took.compute[t][m], at[m], self._heads[t][m], self._tails[t][m])
                for t, at in enumerate(self._at)
                if m in at
            ]
            if here:
                before, behind = min(h for _, _, h, _ in here), min(t for _, _, _, t in here)
                load = sum(took * literal for took, literal, _, _ in here)
                if not before and not behind:
                    self._model.add(load <= self._makespan)
                else:
                    used = self._used[m] = self._model.new_bool_var(f"used{m}")
                    for _, literal, _, _ in here:
                        self._model.add_implication(literal, used)
                    self._model.add(load + (before + behind) * used <= self._makespan)

    def _between(self) -> None:
        """Bound the time between a task and a later one by what each machine computes, one after another, of
        the tasks on the paths between them. This follows from the rest, too, and is what relaxations of the
        model lack most."""
        machines = range(len(self._workload.machines))
        after = _descendants(self._workload)
        before: list[int] = [0] * len(after)
        for task, behind in enumerate(after):
            for other in _members(behind):
                before[other] |= 1 << task
        terms = 0
        for first, last in self._spans(before, after):
            inside = _members(
                (after[first] if first >= 0 else before[last]) & (before[last] if last >= 0 else after[first])
            )
            terms += len(inside) * len(machines)
            if terms > MOST_TERMS:
                return
            since = self._end[first] if first >= 0 else 0
            until = self._start[last] if last >= 0 else self._makespan
            for m in machines:
                load = [self._took.compute[t][m] * self._at[t][m] for t in inside if m in self._at[t]]
                if load:
                    self._model.add(since + sum(load) <= until)

    def _spans(self, before: list[int], after: list[int]) -> Iterator[tuple[int, int]]:
        """Yield pairs of a task and a later one with several tasks between them; -1 stands for the start and
        for the end of the sample. Pairs with the start or the end come first, then those with few tasks
        between them."""
        tasks = range(len(after))
        yield from ((-1, t) for t in tasks if before[t].bit_count() > 1)
        yield from ((t, -1) for t in tasks if after[t].bit_count() > 1)
        if len(tasks) > FEW:
            return
        pairs = [(t, u) for t in tasks for u in _members(after[t])]
        sizes = {(t, u): (after[t] & before[u]).bit_count() for t, u in pairs}
        yield from sorted((pair for pair in pairs if sizes[pair] > 1), key=lambda pair: sizes[pair])

    @cached_property
    def _alike(self) -> list[list[int]]:
        """Classes of machines that are interchangeable."""
        return find_equal_machines(self._workload)

    def _tell_apart(self) -> None:
        """Let groups use one of several equal machines only after the machine before it, so that equal placements are
        searched once."""
        leaders = [group[0] for group in self._workload.groups]
        for machines in self._alike:
            for one, other in pairwise(machines):
                before: list[Any] = []
                for leader in leaders:
                    if other in self._at[leader]:
                        self._model.add_bool_or([self._at[leader][other].negated(), *before])
                    if one in self._at[leader]:
                        before.append(self._at[leader][one])

    def hint(self, start: PlacementSchedule) -> None:
        """Let the search begin at the schedule `start`."""
        start = rename_machines(start, self._workload, self._alike)
        add, down = self._model.add_hint, self._took.round_down
        makespan = 0
        for task, machine in enumerate(start.placement):
            begin = down(start.start_s[task])
            end = begin + self._took.compute[task][machine]
            makespan = max(makespan, end + self._tails[task][machine])
            add(self._start[task], begin)
            add(self._end[task], end)
        add(self._makespan, max(makespan, self._shortest()))
        for machine, used in self._used.items():
            add(used, int(machine in start.placement))
        for group in self._workload.groups:
            if len(self._at[group[0]]) > 1:
                for m, literal in self._at[group[0]].items():
                    add(literal, int(m == start.placement[group[0]]))
        moved = {(t.tensor, t.target): t for t in start.transfers}
        for (number, there), (present, begun, done) in self._received.items():
            transfer = moved.get((number, there))
            add(present, int(transfer is not None))
            begin = down(transfer.start_s) if transfer else 0
            add(begun, begin)
            add(done, begin + self._took.move[number][transfer.source, there] if transfer else 0)
        for (number, here, there), literal in self._moved.items():
            transfer = moved.get((number, there))
            add(literal, int(transfer is not None and transfer.source == here))

    def search(self, budget_s: float, seed: int) -> Solved:
        """Search for the shortest schedule within the budget."""
        solver = self._cp.CpSolver()
        solver.parameters.catch_sigint_signal = False  # It would end this search, and not the program.
        solver.parameters.max_time_in_seconds = max(budget_s, 0.01)
        solver.parameters.num_workers = WORKERS
        solver.parameters.random_seed = seed
        if len(self._workload.tasks) <= FEW:
            solver.parameters.subsolvers.append(PROVER)
        else:
            solver.parameters.cp_model_probing_level = 0
            solver.parameters.symmetry_level = 0
        status = solver.solve(self._model)
        ended = status in (self._cp.OPTIMAL, self._cp.INFEASIBLE)
        if status == self._cp.INFEASIBLE:
            return Solved(None, inf, ended)
        bound_s = self._took.bound_s(solver.best_objective_bound)
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return Solved(None, bound_s, ended)
        return Solved(retime(self._workload, self._read(solver)), bound_s, ended)

    def _read(self, solver: Any) -> PlacementSchedule:
        seconds = self._took.seconds
        placement = tuple(next(m for m, x in at.items() if solver.boolean_value(x)) for at in self._at)
        transfers = tuple(
            PlacedTransfer(
                number, here, there, *(seconds(solver.value(x)) for x in self._received[number, there][1:])
            )
            for (number, here, there), literal in self._moved.items()
            if solver.boolean_value(literal)
        )
        starts = tuple(seconds(solver.value(start)) for start in self._start)
        return PlacementSchedule(placement, starts, transfers, seconds(solver.value(self._makespan)))


def remember(model: Any, workload: Workload, at: Sequence[Mapping[int, Any]]) -> None:
    """Add the constraints on memory, (5). Bytes are rounded down to small parts of a byte, so that bounds
    stay valid; the caller has to check an answer."""
    for m, machine in enumerate(workload.machines):
        kept = [
            (task.memory_bytes, at[t][m])
            for t, task in enumerate(workload.tasks)
            if m in at[t] and task.memory_bytes
        ]
        total = sum(size for size, _ in kept)
        if total > machine.memory_bytes:
            parts = 2.0 ** floor(log2(FINEST / total)) if total < FINEST else 1.0
            used = sum(floor(size * parts) * literal for size, literal in kept)
            model.add(used <= floor(machine.memory_bytes * parts))


def _descendants(workload: Workload) -> list[int]:
    """Return the tasks that come after each task, as bits."""
    found = [0] * len(workload.tasks)
    for task in reversed(workload.order):
        for reader in workload.after[task]:
            found[task] |= 1 << reader | found[reader]
    return found


def _members(bits: int) -> list[int]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


class _Reach:
    """The ticks that must at least pass before and after a task, for each machine that it could be on."""

    def __init__(self, workload: Workload, took: Ticks) -> None:
        self._workload = workload
        self._took = took

    def both(self) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
        workload, took = self._workload, self._took
        heads: list[dict[int, int]] = [dict.fromkeys(able, 0) for able in took.compute]
        tails: list[dict[int, int]] = [dict.fromkeys(able, 0) for able in took.compute]
        for task in workload.order:
            for number in workload.read[task]:
                source = workload.tensors[number].source
                after = {a: heads[source][a] + took.compute[source][a] for a in heads[source]}
                for m in heads[task]:
                    heads[task][m] = max(heads[task][m], self._least(number, after, m, came=True))
        for task in reversed(workload.order):
            for number in workload.written[task]:
                for reader in workload.tensors[number].readers:
                    behind = {b: tails[reader][b] + took.compute[reader][b] for b in tails[reader]}
                    for m in tails[task]:
                        tails[task][m] = max(tails[task][m], self._least(number, behind, m, came=False))
        return heads, tails

    def _least(self, number: int, passed: Mapping[int, int], here: int, *, came: bool) -> int:
        move = self._took.move[number]
        return min(
            (
                ticks + (0 if m == here else move[m, here] if came else move[here, m])
                for m, ticks in passed.items()
            ),
            default=0,
        )


def find_equal_machines(workload: Workload) -> list[list[int]]:
    """Return classes, of two or more, of machines that nothing in the workload distinguishes."""
    classes: list[list[int]] = []
    plain = not any(tensor.transfer_s for tensor in workload.tensors)
    for m in range(len(workload.machines)):
        known = next((known for known in classes if plain and _same(workload, known[0], m)), None)
        if known is None:
            classes.append([m])
        else:
            known.append(m)
    return [known for known in classes if len(known) > 1]


def _same(workload: Workload, one: int, other: int) -> bool:
    if workload.machines[one].memory_bytes != workload.machines[other].memory_bytes:
        return False
    if any(task.compute_s[one] != task.compute_s[other] for task in workload.tasks):
        return False
    swap = {one: other, other: one}
    machines = range(len(workload.machines))
    return all(
        table[a][b] == table[swap.get(a, a)][swap.get(b, b)]
        for table in (workload.bytes_per_s, workload.latency_s, workload.crossed)
        for a in machines
        for b in machines
    )


def rename_machines(
    schedule: PlacementSchedule, workload: Workload, classes: list[list[int]]
) -> PlacementSchedule:
    """Return the schedule with equal machines renamed: the machine that an earlier group uses gets the earlier name."""
    first = list(dict.fromkeys(schedule.placement[group[0]] for group in workload.groups))
    names = {m: m for m in range(len(workload.machines))}
    for machines in classes:
        used = [m for m in first if m in machines]
        names |= dict(zip(used + [m for m in machines if m not in used], machines, strict=True))
    return PlacementSchedule(
        tuple(names[m] for m in schedule.placement),
        schedule.start_s,
        tuple(
            PlacedTransfer(t.tensor, names[t.source], names[t.target], t.start_s, t.end_s)
            for t in schedule.transfers
        ),
        schedule.makespan_s,
    )
