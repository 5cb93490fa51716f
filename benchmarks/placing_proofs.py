"""Tests how fast moirai proves that a placement is the best.

    python -m benchmarks.placing_proofs [--budget 60] [--markdown] [--json FILE]

Places the modules of Inception-v1 on two and three unequal devices, as models are placed, and random graphs of 30 tasks
on two to four unequal devices, half of them with scarce memory. The checker tests every schedule against the rules. Exits
with 1 if a result is not proved, or breaks a rule.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

from benchmarks.machine import sentence, show_table
from benchmarks.models import light
from edgepart.cli.output import note, say, table
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.placing.exact.dominators import pieces
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.checker import violations
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Machine, Task, TaskTensor, Workload
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.model_workload import build_fused_workload

MODULE = 5
"""Tasks from which a piece of the model counts as a module, rather than as a chain."""
TASKS = 30
BUDGET_S = 60.0
PROVED = 1e-5
"""Relative gap that counts as proved: times are rounded to ten million ticks per schedule, so a finished
search is off by some."""


def modules(devices: int) -> Iterator[Workload]:
    among = tuple(Device(f"d{n}", "k", 2e9 * (1 + n), 5e8 * (1 + n), 4e9) for n in range(devices))
    cluster = Cluster(among, {}, Link(1.17e8, 0.0002))
    study = Study(Problem(load_graph(light("inception_v1")), cluster, "d0"))
    for number, piece in enumerate(pieces(study.memo.once(build_fused_workload).workload)):
        if len(piece.tasks) >= MODULE:
            yield replace(piece.workload, name=f"inception_v1, piece {number}, {devices} devices")


def drawn(count: int, machines: int, seed: int, *, scarce: bool = False) -> Workload:
    """Return a random graph of `count` tasks on unequal machines, with unrounded numbers."""
    random = Random(seed)
    speeds = [random.uniform(1, 4) for _ in range(machines)]
    tasks, tensors = [], []
    for number in range(count):
        size = random.uniform(1, 10)
        row = tuple(size / speed * random.uniform(0.8, 1.2) for speed in speeds)
        tasks.append(Task(f"t{number}", "Op", row, random.uniform(1, 10)))
    for source in range(count - 1):
        near = range(source + 1, min(count, source + 9))
        readers = [reader for reader in near if random.random() < 0.25] or [random.choice(near)]
        tensors.append(TaskTensor(source, tuple(readers), random.uniform(20, 400)))
    room = 1.2 * sum(task.memory_bytes for task in tasks) / machines if scarce else inf
    return Workload(
        f"random {seed}, {machines} devices{', scarce memory' if scarce else ''}",
        tuple(Machine(f"m{n}", f"k{n}", room) for n in range(machines)),
        tuple(tasks),
        tuple(tensors),
        tuple(tuple(inf if a == b else 100.0 for b in range(machines)) for a in range(machines)),
        tuple(tuple(0.0 if a == b else 0.05 for b in range(machines)) for a in range(machines)),
    )


def graphs() -> Iterator[Workload]:
    for devices in (2, 3):
        yield from modules(devices)
    for machines in (2, 3, 4):
        for scarce in (False, True):
            yield drawn(TASKS, machines, machines, scarce=scarce)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placing_proofs", description=__doc__)
    parser.add_argument("--json", type=Path, help="every number is kept there")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of search for each graph")
    parser.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    options = parser.parse_args()
    cells, rows, wrong = [], [], 0
    for graph in graphs():
        heft_s = find(graph, "heft", Asked(time.monotonic)).value_s
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        found = find(graph, "moirai", Asked(time.monotonic, budget_s=options.budget))
        took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s
        gap = 1.0 if found.gap is None else found.gap
        broken = violations(graph, found)
        wrong += gap > PROVED or bool(broken)
        cells.append(
            {
                "graph": graph.name,
                "tasks": len(graph.tasks),
                "value_s": found.value_s,
                "bound_s": found.bound_s,
                "heft_s": heft_s,
                "search_s": took_s,
                "search_cpu_s": cpu_s,
                "violations": [str(one) for one in broken],
            }
        )
        note(f"{graph.name}: {took_s:.2f} s, {cpu_s:.2f} CPU s, gap {gap:.1e}")
        less = f"{1 - found.value_s / heft_s:.1%}"
        rows.append((graph.name, str(len(graph.tasks)), less, f"{gap:.1e}", f"{took_s:.2f}", f"{cpu_s:.2f}"))
    say(f"On {sentence()}.")
    columns = ("graph", "tasks", "less than heft's", "gap", "s", "CPU s")
    show_table(table(columns, rows, columns[1:]), options.markdown)
    say(
        f"{len(cells) - wrong} of {len(cells)} proved, no rule broken"
        if not wrong
        else f"{wrong} not proved or broken"
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(cells, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
