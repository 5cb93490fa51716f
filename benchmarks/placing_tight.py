"""Placements where memory is tight: Moirai against one search of the whole graph by its CP-SAT model.

The graphs have branches, and each of four machines has memory for a part of the tasks only. The one search has
neither pieces nor windows nor climbing: it begins with the best answer of the quickest placers, and has more time.
What it finds and moirai does not is what moirai's decomposition or its climbing misses.

    python -m benchmarks.placing_tight --seeds 0,1 --shares 0.4,0.28 --budgets 10,55 --plain 200
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

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
    found = solve(workload, budget_s=budget_s, start=start).schedule
    return min(start.makespan_s, found.makespan_s) if found else start.makespan_s


def compare(seed: int, share: float, budgets: list[float], plain_s: float) -> Iterator[dict[str, Any]]:
    """The makespans of one graph, each as a multiple of the plain model's."""
    workload = tight_workload(seed, share)
    start = min(
        (find(workload, name, Asked(time.monotonic)) for name in ("heft", "m-etf")), key=lambda f: f.value_s
    )
    assert start.schedule is not None
    plain = solve_plainly(workload, start.schedule, plain_s) if plain_s else start.value_s
    row = {"seed": seed, "share": share, "tasks": len(workload.tasks)}
    yield row | {"who": "quick", "seconds": start.value_s, "times": start.value_s / plain}
    yield row | {"who": f"plain {plain_s:g} s", "seconds": plain, "times": 1.0}
    for budget_s in budgets:
        found = check(workload, find(workload, "moirai", Asked(time.monotonic, budget_s=budget_s)), "latency")
        yield row | {
            "who": f"moirai {budget_s:g} s",
            "seconds": found.value_s,
            "times": found.value_s / plain,
            "why": found.why,
        }


def main() -> None:
    """Print a row for each answer."""
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", default="0,1")
    options.add_argument("--shares", default="0.4,0.28")
    options.add_argument("--budgets", default="10,55")
    options.add_argument("--plain", type=float, default=200.0)
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    rows = []
    for seed in map(int, asked.seeds.split(",")):
        for share in map(float, asked.shares.split(",")):
            for row in compare(seed, share, [float(s) for s in asked.budgets.split(",") if s], asked.plain):
                rows.append(row)
                print(
                    f"{row['seed']:>4} {row['share']:.2f} {row['who']:>12} {row['seconds'] * 1e3:8.2f} ms "
                    f"{row['times']:.3f}  {row.get('why', '')}",
                    flush=True,
                )
    if asked.json:
        asked.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
