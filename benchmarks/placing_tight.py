"""Placements where memory is tight: Moirai against one search of the whole graph by its CP-SAT model.

The graphs have branches, and each of four machines has memory for a part of the tasks only. The one search has
neither pieces nor windows nor climbing: it begins with the best answer of the quickest placers, and has more time.
What it finds and moirai does not is what moirai's decomposition or its climbing misses. `default` among the budgets is
what `edgepart plan` gives it without `--budget`: it ends by itself, after a minute at most.

    python -m benchmarks.placing_tight --seeds 0,1 --shares 0.4,0.28 --budgets 10,55,default --plain 200 --markdown
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from benchmarks.machine import describe, sentence, show_table
from edgepart.cli.output import note, say, table
from edgepart.cli.planning.placement import MOST_SEARCH_S
from edgepart.planner.figures import format_seconds
from edgepart.planner.placing.exact.latency_model import solve
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.schedule import Asked, PlacementSchedule
from edgepart.planner.placing.problem.workload import Machine, Task, TaskTensor, Workload

TASKS = 140
SPEEDS = (1.0, 1.0, 0.7, 0.5)


def tight_workload(seed: int, share: float, tasks: int = TASKS) -> Workload:
    """A graph of two to five branches of one to six tasks each, one fan after the other, on four machines with memory for
    the part `share` of all tasks; inf if `share` is 0."""
    random = Random(seed)
    parents = _fans(random, tasks)
    cost_s = [random.uniform(0.2, 2.0) * 1e-3 for _ in parents]
    nbytes = [random.uniform(0.1, 3.0) * 1e6 for _ in parents]
    room = share * sum(nbytes) or float("inf")
    made = [random.uniform(0.02, 0.4) * 1e6 for _ in parents]
    readers = [tuple(n for n, before in enumerate(parents) if task in before) for task in range(len(parents))]
    count = len(SPEEDS)
    apart = [[float("inf") if a == b else 2.5e8 for b in range(count)] for a in range(count)]
    return Workload(
        f"tight {seed}",
        tuple(Machine(f"m{n}", f"k{speed}", room) for n, speed in enumerate(SPEEDS)),
        tuple(
            Task(f"t{n}", "Op", tuple(one / speed for speed in SPEEDS), nbytes[n])
            for n, one in enumerate(cost_s)
        ),
        tuple(TaskTensor(n, there, made[n]) for n, there in enumerate(readers) if there),
        tuple(map(tuple, apart)),
        tuple(tuple(0.0 if a == b else 1e-4 for b in range(count)) for a in range(count)),
    )


def _fans(random: Random, tasks: int) -> list[tuple[int, ...]]:
    """The tasks that each task reads from."""
    parents: list[tuple[int, ...]] = [()]
    while len(parents) < tasks:
        fork, ends = len(parents) - 1, []
        for _ in range(random.randint(2, 5)):
            at = fork
            for _ in range(random.randint(1, 6)):
                parents.append((at,))
                at = len(parents) - 1
            ends.append(at)
        parents.append(tuple(ends))
    return parents


def solve_plainly(workload: Workload, start: PlacementSchedule, budget_s: float) -> float:
    """The makespan, in seconds, of one search of the whole graph from `start`."""
    until = time.monotonic() + budget_s
    found = solve(workload, clock=time.monotonic, until=until, start=start).schedule
    return min(start.makespan_s, found.makespan_s) if found else start.makespan_s


@dataclass(frozen=True)
class Answer:
    """What one search finds for one graph."""

    seed: int
    share: float
    """The part of all tasks for which each machine has memory; 0 if there is no limit."""
    tasks: int
    who: str
    makespan_s: float
    times: float
    """The makespan as a multiple of the one search's."""
    search_s: float
    why: str = ""


def compare(seed: int, share: float, budgets: Sequence[float | None], plain_s: float) -> Iterator[Answer]:
    """Yields what the quickest placers, one search of `plain_s` seconds, and moirai with each budget find for one graph.
    None is the budget of `edgepart plan` without `--budget`."""
    workload = tight_workload(seed, share)
    began = time.monotonic()
    start = min(
        (find(workload, name, Asked(time.monotonic)) for name in ("heft", "m-etf")), key=lambda f: f.value_s
    )
    quick_s = time.monotonic() - began
    assert start.schedule is not None
    plain = solve_plainly(workload, start.schedule, plain_s) if plain_s else start.value_s

    def answer(who: str, makespan_s: float, search_s: float, why: str = "") -> Answer:
        return Answer(seed, share, len(workload.tasks), who, makespan_s, makespan_s / plain, search_s, why)

    yield answer("the better of heft and m-etf", start.value_s, quick_s)
    yield answer(f"one search, {plain_s:g} s", plain, plain_s)
    for budget_s in budgets:
        began, most_s = time.monotonic(), MOST_SEARCH_S if budget_s is None else budget_s
        asked = Asked(time.monotonic, budget_s=most_s, patient=budget_s is not None)
        found = check(workload, find(workload, "moirai", asked), "latency")
        given = "by default" if budget_s is None else f"{budget_s:g} s"
        yield answer(f"moirai, {given}", found.value_s, time.monotonic() - began, found.why)


def show(answers: Sequence[Answer], markdown: bool) -> None:
    columns = ("seed", "memory of each", "tasks", "search", "makespan", "over the one search", "took")
    rows = [
        (
            str(one.seed),
            f"{one.share:.0%}" if one.share else "no limit",
            str(one.tasks),
            one.who,
            format_seconds(one.makespan_s, 4),
            f"{one.times:.3f}",
            format_seconds(one.search_s, 2),
        )
        for one in answers
    ]
    say(f"On {sentence()}.")
    say("")
    show_table(table(columns, rows, right=(*columns[:3], *columns[4:])), markdown)


def _budget(text: str) -> float | None:
    return None if text == "default" else float(text)


def main() -> None:
    """Print a row for each answer."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--seeds", default="0,1")
    options.add_argument("--shares", default="0.4,0.28")
    options.add_argument("--budgets", default="10,55,default")
    options.add_argument("--plain", type=float, default=200.0)
    options.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    budgets = [_budget(text) for text in given.budgets.split(",") if text]
    answers = []
    for seed in map(int, given.seeds.split(",")):
        for share in map(float, given.shares.split(",")):
            for one in compare(seed, share, budgets, given.plain):
                answers.append(one)
                note(
                    f"{seed} {share:.2f} {one.who}: {one.makespan_s * 1e3:.2f} ms, {one.times:.3f}; {one.why}"
                )
    show(answers, given.markdown)
    if given.json:
        document = {"machine": describe(), "answers": [asdict(one) for one in answers]}
        given.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
