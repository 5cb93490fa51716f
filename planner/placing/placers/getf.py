"""GETF (Su, Ren, Vardi and Wierman, Communication-Aware Scheduling of Precedence-Constrained Tasks on Related Machines,
2020, arXiv 2004.14639): earliest start first, each task within the group of machines of similar speed that a linear
relaxation found for it. Rules only.

The paper's rule. Of m machines those slower than 1/m of the fastest are left out. The others are in groups, within each of
which speeds differ by less than the factor log m / log log m. The mixed-integer program of the problem without transfers is
relaxed: a task may be divided over groups. Let the fewest fastest groups that together have half of a task be its good
ones; the task goes to the good group whose machines have the largest speed together. Then, again and again, the task that
can start first, on the machines of its group. If there is one group, that is ETF, and so m-etf.

The paper's machines are related: each has one speed. Here a machine's speed is how fast it runs the tasks
that it can run, compared with the best machine for each of them. The relaxation ignores transfers, as in the
paper; times, memory and the machines that cannot run a task are the task's own. A group without the memory
for a task passes it on to the other groups, the fastest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.ortools import model_builder
from edgepart.planner.placing.engine.speeds import speeds
from edgepart.planner.placing.placers.list_schedulers import place_earliest_first
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register

PIECE = 1500
"""The tasks of one linear program. Bigger graphs are relaxed piece by piece along their order."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """A group of machines of similar speed."""

    machines: tuple[int, ...]
    capacity: float
    """The sum of the machines' speeds; the speed of the fastest machine of all is at most 1."""


@register("getf")
def getf(workload: Workload, asked: Asked) -> PlacementFound:
    """Place each task where it starts first in its group, whatever the objective. Raises NotInstalled without
    OR-tools if there are several groups."""
    groups = speed_groups(workload)
    count = len(workload.tasks)
    assigned = [0] * count
    solved = count
    if len(groups) > 1:
        assigned, solved = _assign(workload, groups, asked)
    others = [[group.machines for group in reversed(groups)] for _ in groups]
    slow = tuple(
        machine
        for machine in range(len(workload.machines))
        if not any(machine in group.machines for group in groups)
    )
    tiers = [[groups[number].machines, *others[number], slow] for number in range(len(groups))]
    sides = place_earliest_first(workload, lambda task: tiers[assigned[task]])
    return settle(
        workload,
        sides.machine,
        asked,
        _why(groups, solved, count, asked),
        orders=[[-start for start in sides.start_s]],
    )


def _why(groups: Sequence[Speeds], solved: int, count: int, asked: Asked) -> str:
    if len(groups) == 1:
        why = "the machines are of like speed, one group: earliest start first"
    else:
        why = f"earliest start first within {len(groups)} groups of like machines, dealt out by a linear relaxation"
        if count > PIECE:
            why += f" of {PIECE} tasks at a time"
        if solved < count:
            why += f"; there was no time for it for {count - solved} tasks, which went to the group of the largest capacity"
    if asked.objective == "throughput":
        why += "; it looks at one sample, so its largest load is only what came of it"
    return why


def speed_groups(workload: Workload) -> list[Speeds]:
    """Return groups of the m machines, the slowest first. Machines of a group are within a factor of ln m /
    ln ln m (at least 2) of each other; machines slower than 1/m of the fastest are in no group. If all speeds
    are 0, all machines are in one group."""
    fast = speeds(workload)
    count, fastest = len(fast), max(fast)
    if not fastest:
        return [Speeds(tuple(range(count)), 0.0)]
    factor = max(2.0, log(count) / log(log(count))) if count > 2 else 2.0
    found: dict[int, list[int]] = {}
    for machine, speed in enumerate(fast):
        if speed > 0 and speed * count >= fastest:
            found.setdefault(int(log(fastest / speed) / log(factor) + 1e-9), []).append(machine)
    return [
        Speeds(tuple(found[step]), sum(fast[machine] for machine in found[step]))
        for step in sorted(found, reverse=True)
    ]


def _assign(workload: Workload, groups: Sequence[Speeds], asked: Asked) -> tuple[list[int], int]:
    """Return the index of each task's group, and the number of tasks for which the relaxation was solved in
    half of the budget."""
    until_s = asked.clock() + asked.budget_s / 2
    largest = max(range(len(groups)), key=lambda number: groups[number].capacity)
    found = [largest] * len(workload.tasks)
    solved = 0
    for first in range(0, len(workload.order), PIECE):
        piece = workload.order[first : first + PIECE]
        left_s = until_s - asked.clock()
        shares = solve_relaxation(workload, groups, piece, left_s) if left_s > 0 else None
        if shares is None:
            continue
        solved += len(piece)
        for task, share in shares.items():
            found[task] = _round_to_group(share, groups)
    return found, solved


def _round_to_group(share: Sequence[float], groups: Sequence[Speeds]) -> int:
    """The group of the largest capacity among the fewest of the fastest groups that together have half of the task."""
    slowest = max((number for number in range(len(groups)) if sum(share[number:]) >= 0.5 - 1e-9), default=0)
    return max(range(slowest, len(groups)), key=lambda number: (groups[number].capacity, number))


def solve_relaxation(
    workload: Workload, groups: Sequence[Speeds], piece: Sequence[int], limit_s: float
) -> dict[int, list[float]] | None:
    """Return each group's share of each task of the piece, in the linear program that minimises the end of
    the piece with divisible tasks and free transfers. None if it was not solved in about `limit_s` seconds. A
    task that no group can run is left out."""
    builder = model_builder()
    model = builder.Model()
    took_s = {
        task: [min(workload.tasks[task].compute_s[machine] for machine in group.machines) for group in groups]
        for task in piece
    }
    took_s = {task: row for task, row in took_s.items() if min(row) < inf}
    scale = sum(min(row) for row in took_s.values()) or 1.0
    end = model.new_num_var(0.0, inf, "")
    done = {task: model.new_num_var(0.0, inf, "") for task in took_s}
    share = {
        task: [model.new_num_var(0.0, 1.0 if seconds < inf else 0.0, "") for seconds in row]
        for task, row in took_s.items()
    }
    busy: list[list[object]] = [[] for _ in groups]
    for task, row in took_s.items():
        parts = [
            (seconds / scale) * variable
            for seconds, variable in zip(row, share[task], strict=True)
            if seconds < inf
        ]
        for number, seconds in enumerate(row):
            if seconds < inf:
                busy[number].append((seconds / scale) * share[task][number])
        length = builder.LinearExpr.sum(parts)
        model.add_linear_constraint(builder.LinearExpr.sum(share[task]), 1.0, 1.0)
        model.add_linear_constraint(done[task] - length, 0.0, inf)
        model.add_linear_constraint(end - done[task], 0.0, inf)
        for source in workload.before[task]:
            if source in done:
                model.add_linear_constraint(done[task] - done[source] - length, 0.0, inf)
    for group, work in zip(groups, busy, strict=True):
        if work:
            model.add_linear_constraint(len(group.machines) * end - builder.LinearExpr.sum(work), 0.0, inf)
    model.minimize(end)
    solver = builder.Solver("GLOP")
    solver.set_time_limit_in_seconds(limit_s)
    if solver.solve(model) != builder.SolveStatus.OPTIMAL:
        return None
    return {task: [float(solver.value(variable)) for variable in row] for task, row in share.items()}
