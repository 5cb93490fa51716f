"""What schedules on arrays cost, whether they are those of dispatch.py, and what climbing gains with them.

    python -m benchmarks.climbing [--schedules 10000] [--graphs 42] [--markdown] [--json FILE]

The graphs are drawn (planner/learning/training), of each family the same number. Climbing starts from the best of the quick
placers; a figure of 0.95 means that it takes 5 % less than that. In brackets is the middle 95 % of 2,000 resamples of the
graphs. Exits with 1 if a schedule differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from math import exp, log
from pathlib import Path
from random import Random
from statistics import mean, median

import numpy as np

from benchmarks.machine import sentence, show_table
from edgepart.cli.output import note, say, table
from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_figure
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import FAMILIES
from edgepart.planner.placing.engine import judge
from edgepart.planner.placing.engine.batched_dispatch import batched_makespans
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.flat_workload import flatten
from edgepart.planner.placing.engine.local_search import BATCH, climb
from edgepart.planner.placing.placers.best_start import find_best_start
from edgepart.planner.placing.placers.climb import STARTS
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload

SIZES = (140, 400, 1400)
LARGE = (5000, 50_000)
BUDGETS_S = (0.1, 1.0)
RESAMPLES = 2000


def drawn(size: int, count: int) -> Iterator[Workload]:
    """Yield graphs of about `size` tasks, of each family the same number, on two to six machines."""
    for family in FAMILIES:
        for seed in range(count // len(FAMILIES)):
            random = Random(f"{family} {size} {seed}")
            yield draw_workload(family, random, size, random.randint(2, 6))


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios, and its 2.5th and 97.5th percentile when graphs are resampled."""
    random = Random(0)
    logs = [log(ratio) for ratio in ratios]
    again = sorted(mean(random.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    return exp(mean(logs)), exp(again[RESAMPLES // 40]), exp(again[-RESAMPLES // 40])


def count_equal(wanted: int) -> tuple[int, int]:
    """Return how many of so many schedules were compared and how many compiled ones are those of dispatch.py."""
    equal = compared = 0
    for number in range(wanted // 10):
        random = Random(number)
        family = random.choice(list(FAMILIES))
        graph = draw_workload(family, random, random.choice([20, 60, 140]), random.randint(1, 8))
        made = judge.dispatcher_of(graph)
        for _ in range(10):
            placement = [random.randrange(len(graph.machines)) for _ in graph.tasks]
            ranks = random.choice([None, [-random.random() for _ in placement]])
            compared += 1
            equal += made(placement, ranks) == dispatch(graph, placement, ranks)
    return compared, equal


def took_ms(once: Callable[[], object], least_s: float = 0.3) -> float:
    """Return the median milliseconds of some runs."""
    took: list[float] = []
    begun_s = time.perf_counter()
    while len(took) < 3 or time.perf_counter() - begun_s < least_s:
        start_s = time.perf_counter()
        once()
        took.append(1e3 * (time.perf_counter() - start_s))
    return median(took)


def cost_row(size: int) -> dict[str, float]:
    """Return what one schedule of a random placement costs, in milliseconds."""
    graph = draw_workload("attention", Random(size), size, 8 if size > 10_000 else 4)
    random, flat = Random(0), flatten(graph)
    rows = np.array([[random.randrange(len(graph.machines)) for _ in graph.tasks] for _ in range(BATCH)])
    where, code = rows[0], judge.compiled_code()
    ranks = code.rank_upward(flat, where)
    batched_ms = took_ms(lambda: batched_makespans(flat, rows, flat.order))
    return {
        "tasks": len(graph.tasks),
        "machines": len(graph.machines),
        "dispatch_ms": took_ms(lambda: dispatch(graph, where.tolist(), ranks.tolist())),
        "compiled_ms": took_ms(lambda: code.schedule(flat, where, ranks)),
        "batched_ms": batched_ms / BATCH,
    }


def best_quick(graph: Workload) -> PlacementFound | None:
    """Return the best answer of the quick placers, if the graph fits."""
    try:
        return find_best_start(graph, Asked(time.perf_counter), STARTS, len(STARTS)).found
    except Infeasible:
        return None


def climbed(graph: Workload, start: PlacementFound, seconds: float) -> float:
    """Return the makespan after so many seconds of climbing."""
    until = time.perf_counter() + seconds
    found = climb(
        graph,
        start.placement,
        objective="latency",
        clock=time.perf_counter,
        until=until,
        schedule=start.schedule,
    )
    return found.best.value_s


def gains(graphs: list[tuple[Workload, PlacementFound]], budget_s: float) -> list[float]:
    """Return for each graph what climbing leaves of the best quick placer's makespan."""
    return [climbed(graph, start, budget_s) / start.value_s for graph, start in graphs]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.climbing", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many schedules are compared")
    parser.add_argument("--graphs", type=int, default=42, help="how many graphs of each size are climbed on")
    parser.add_argument("--markdown", action="store_true", help="print the tables as documents have them")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    options = parser.parse_args()
    estimated: dict[tuple[int, float], list[float]] = {}
    starts = {}
    for size in SIZES:
        found = [(graph, best_quick(graph)) for graph in drawn(size, options.graphs)]
        starts[size] = [(graph, start) for graph, start in found if start is not None]
        for budget_s in BUDGETS_S:
            estimated[size, budget_s] = gains(starts[size], budget_s)
            note(f"{size} tasks, estimated, {budget_s} s: {interval(estimated[size, budget_s])[0]:.3f}")
    begun_s = time.perf_counter()
    if not judge.prepare():
        say("numba is not installed: pip install 'edgepart[climb]'")
        return 1
    prepared_s = time.perf_counter() - begun_s
    compiled = {key: gains(starts[key[0]], key[1]) for key in estimated}
    compared, equal = count_equal(options.schedules)
    costs = [cost_row(size) for size in (*SIZES, *LARGE)]
    say(
        f"Of {compared:,} schedules, {equal:,} compiled ones are those of dispatch.py. Loading what is compiled, or "
        f"compiling it the first time, took {prepared_s:.1f} s."
    )
    columns = ("tasks", "machines", "dispatch, ms", "compiled, ms", f"each of {BATCH} at once, ms")
    keys = ("dispatch_ms", "compiled_ms", "batched_ms")
    rows = [
        (f"{row['tasks']:,}", str(row["machines"]), *(format_figure(row[key], 3) for key in keys))
        for row in costs
    ]
    show_table(table(columns, rows, columns), options.markdown)
    names = ("tasks", "graphs", "seconds", "estimated", "compiled")
    lines = []
    for (size, budget_s), ratios in estimated.items():
        cells = [interval(ratios), interval(compiled[size, budget_s])]
        shown = (f"{middle:.3f} ({low:.3f} to {high:.3f})" for middle, low, high in cells)
        lines.append((f"{size:,}", str(len(ratios)), f"{budget_s:g}", *shown))
    show_table(table(names, lines, names), options.markdown)
    say(f"On {sentence()}.")
    if options.json is not None:
        kept = [
            {"tasks": size, "budget_s": budget_s, "estimated": ratios, "compiled": compiled[size, budget_s]}
            for (size, budget_s), ratios in estimated.items()
        ]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"costs": costs, "gains": kept, "equal": equal}, indent=1) + "\n")
    return int(equal != compared)


if __name__ == "__main__":
    sys.exit(main())
