"""Moirai's model on CP-SAT: who computes and moves what, and when (Moirai, section 3.4). Rules only.

For each task and machine an interval that is there where the task is, for each tensor and pair of machines one that is
there where it has to travel; those that occupy the same machine's computing, sending or receiving side do not overlap.
That is the paper's (4)-(8) without its big numbers: precedence (4a)-(4b), one machine each (4c), memory (5), non-overlap
(6), communication (7), congestion (8). Ours beyond it: a tensor travels once to a machine, groups that stay together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
"""The most terms of the sums over what lies between two tasks."""

FEW = 100
"""Tasks, for which proofs are within reach: beyond, what only proofs gain from is left out, and time is counted coarsely,
so that each step that is found is worth it."""

PROVER = "no_lp"
"""CP-SAT's worker that proves where tasks are few: learning from conflicts alone mostly proves graphs of 30 tasks several
times sooner than with relaxations, which say little of what does not overlap. The other looks for better schedules."""

FINEST = 2.0**50
"""So many parts memory is counted in."""


@dataclass(frozen=True)
class Solved:
    """What a search came to."""

    schedule: PlacementSchedule | None
    """The best found; None where there is none, or none was found."""
    bound_s: float
    """No schedule is shorter; inf where there is none at all."""
    ended: bool
    """Whether all was searched: what was found is best (to within a tick for each task), or there is nothing."""


def solve(workload: Workload, *, budget_s: float, start: PlacementSchedule, seed: int = 0) -> Solved:
    """The shortest schedule of at most `start`'s length, looked for from there for about so long."""
    if not start.makespan_s:
        return Solved(start, 0.0, True)
    parts = ENOUGH if len(workload.tasks) <= FEW else COARSE
    model = _LatencyModel(workload, ticks(workload, start.makespan_s, parts))
    model.hint(start)
    return model.search(budget_s, seed)


class _LatencyModel:
    def __init__(self, workload: Workload, took: Ticks) -> None:
        self._cp = cp_model()
        self._model: Any = self._cp.CpModel()
        self._workload = workload
        self._took = took
        self._heads, self._tails = _Reach(workload, took).both()
        self._makespan = self._model.new_int_var(self._shortest(), took.horizon, "makespan")
        self._at: list[dict[int, Any]] = [{} for _ in workload.tasks]
        """By task and machine, whether it is there."""
        self._start: list[Any] = []
        self._end: list[Any] = []
        self._sides: dict[tuple[str, int], list[Any]] = defaultdict(list)
        """By what of which machine, the intervals that occupy it."""
        self._received: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """By tensor and machine, whether it travels there, from when, until when."""
        self._moved: dict[tuple[int, int, int], Any] = {}
        """By tensor, sender and receiver, whether it does."""
        self._used: dict[int, Any] = {}
        """By machine where that matters, whether anything is there."""
        self._make()

    def _shortest(self) -> int:
        """What a sample cannot be shorter than."""
        return max(
            min((head[m] + self._took.compute[task][m] + self._tails[task][m] for m in head), default=0)
            for task, head in enumerate(self._heads)
        )

    def _make(self) -> None:
        for group in self._workload.groups:
            self._place(group)
        for task in range(len(self._workload.tasks)):
            self._compute(task)
        for number in range(len(self._workload.tensors)):
            self._move(number)
        for intervals in self._sides.values():
            if len(intervals) > 1:
                self._model.add_no_overlap(intervals)
        remember(self._model, self._workload, self._at)
        self._burden()
        self._between()
        self._tell_apart()
        self._model.minimize(self._makespan)

    def _place(self, group: Sequence[int]) -> None:
        """Tasks that stay together share their literals."""
        able = [m for m in range(len(self._workload.machines)) if all(self._fits(t, m) for t in group)]
        if len(able) == 1:
            literals = {able[0]: self._model.new_constant(1)}
        else:
            literals = {m: self._model.new_bool_var(f"at{group[0]},{m}") for m in able}
            self._model.add_exactly_one(literals.values())
        for task in group:
            self._at[task] = literals

    def _fits(self, task: int, machine: int) -> bool:
        """Whether a schedule within the horizon could have it there."""
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
        if len(readers) == 1:  # The same once more, in a line: what relaxations of the model get hold of.
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
        """Whether the tensor travels on this way."""
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
        self._moved[number, here, there] = literal
        return literal

    def _burden(self) -> None:
        """A machine computes no longer than the sample takes: follows from the rest, and says it in a line."""
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
        """Between a task and one that comes after it each machine computes what lies on the ways from one to the other, one
        after the other: follows from the rest, too, and is what relaxations of the model lack most."""
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
        """Pairs of a task and one after it with several between them; -1 for the start and the end of the sample. Those
        with the start or the end first, then those with few between."""
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
        """Machines that could take each other's names, in classes."""
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
        """Begin the search there."""
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
    """Memory: (5). Rounded down to small parts of a byte, as bounds want it; who reads an answer checks it."""
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
    """By task, those that come after it, as bits."""
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
    """What must have passed before a task and must pass behind it, by machine it could be on; in ticks."""

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
    """Machines between which nothing in the workload makes a difference, in classes of two and more."""
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
        for table in (workload.bytes_per_s, workload.latency_s)
        for a in machines
        for b in machines
    )


def rename_machines(
    schedule: PlacementSchedule, workload: Workload, classes: list[list[int]]
) -> PlacementSchedule:
    """The same but for the names of machines that are alike: the earlier name to who is used by an earlier group."""
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
