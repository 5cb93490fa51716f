"""What the network of `learned` gives on graphs and clusters that it was not trained on, beside the quick placers.

    python -m benchmarks.learned [--graphs 40] [--network FILE.onnx] [--markdown] [--json FILE]

Makespans are geometric means over drawn graphs, in units of the best quick placer's; in brackets is the middle 95 %
of 2,000 resamples of the graphs. The untrained network is plain list scheduling. Where climbing is compared, both
have the same time in all: what the quick placers take together, or the network with its samples, is taken off. Exits
with 1 without numba.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any

import numpy as np

from benchmarks.climbing import climbed, interval
from benchmarks.machine import sentence, show_table
from edgepart.agent.engines.networks import networks_of
from edgepart.cli.output import note, say, table
from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_figure, format_seconds
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import FAMILIES, HELD_OUT
from edgepart.planner.placing.engine import judge
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.guided.decode import PLAIN, Decoded, SampleDecoder, gumbel
from edgepart.planner.placing.guided.features import describe
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.placers.climb import STARTS
from edgepart.planner.placing.placers.learned import SAMPLES
from edgepart.planner.placing.problem.networks import NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload

TRAINED = tuple(family for family in FAMILIES if family != HELD_OUT)
CLIMB_S = 0.1


@dataclass(frozen=True)
class Cell:
    """Graphs that are compared together."""

    what: str
    families: Sequence[str]
    tasks: int
    machines: tuple[int, int]


CELLS = (
    Cell("trained families", TRAINED, 140, (2, 6)),
    Cell("trained families, larger clusters", TRAINED, 140, (9, 16)),
    Cell("trained families, larger graphs", TRAINED, 400, (2, 6)),
    Cell("unseen family", (HELD_OUT,), 140, (2, 6)),
    Cell("unseen family, larger clusters", (HELD_OUT,), 140, (9, 16)),
    Cell("unseen family, larger graphs", (HELD_OUT,), 400, (2, 6)),
)


def drawn(cell: Cell, count: int) -> Iterator[Workload]:
    """Yield graphs of the cell, of each family about the same number."""
    for number in range(count):
        family = cell.families[number % len(cell.families)]
        random = Random(f"learned {family} {cell.tasks} {cell.machines} {number}")
        yield draw_workload(family, random, cell.tasks, random.randint(*cell.machines))


def timed(place: Callable[..., PlacementFound], *given: Any) -> tuple[PlacementFound, float]:
    """Return what was found, and the seconds that it took."""
    begun_s = time.perf_counter()
    return place(*given), time.perf_counter() - begun_s


def sampled(workload: Workload, network: NeuralNetwork | None, samples: int) -> PlacementFound:
    """Return the best of so many samples: of the network, or of the untrained one."""
    features = describe(workload)
    decoder = SampleDecoder(workload, features)
    tasks, machines = features.flat.compute_s.shape
    scores: Sequence[Any] = np.zeros((tasks, machines)), np.tile(PLAIN, (tasks, 1))
    if network is not None:
        scores = network.run(features.inputs)
    found: Decoded = decoder.decode(scores[0], scores[1], gumbel(samples, tasks, machines, seed=0))
    best = int(found.makespan_s.argmin())
    orders = [(-found.start_s[best]).tolist()]
    return settle(workload, found.placements[best].tolist(), Asked(time.perf_counter), "", orders=orders)


def compare(workload: Workload, network: NeuralNetwork) -> dict[str, float]:
    """Return the makespan of each, in seconds. Raises Infeasible if a quick placer finds no placement."""
    asked = Asked(time.perf_counter)
    quick, spent_s = {}, 0.0
    for name in STARTS:
        quick[name], took_s = timed(find, workload, name, asked)
        spent_s += took_s
    best = min(quick.values(), key=lambda one: one.value_s)
    learned, network_s = timed(sampled, workload, network, SAMPLES)
    whole_s = CLIMB_S + max(spent_s, network_s)
    return {
        "best quick": best.value_s,
        "heft": quick["heft"].value_s,
        "m-etf": quick["m-etf"].value_s,
        "getf": find(workload, "getf", asked).value_s,
        "untrained": sampled(workload, None, 1).value_s,
        "untrained, best of 64": sampled(workload, None, SAMPLES).value_s,
        "greedy": sampled(workload, network, 1).value_s,
        "best of 64": learned.value_s,
        "best quick, climbed": climbed(workload, best, whole_s - spent_s),
        "best of 64, climbed": climbed(workload, learned, whole_s - network_s),
    }


def cell_row(cell: Cell, network: NeuralNetwork, graphs: int) -> dict[str, Any]:
    """Return the figures of one cell: means of ratios with their intervals."""
    found = []
    for workload in drawn(cell, graphs):
        try:
            found.append(compare(workload, network))
        except Infeasible as error:
            note(f"left out: {error}")
    names = [name for name in found[0] if name != "best quick"]
    row: dict[str, Any] = {"what": cell.what, "graphs": len(found)}
    for name in names:
        row[name] = interval([one[name] / one["best quick"] for one in found])
    row["greedy / m-etf"] = interval([one["greedy"] / one["m-etf"] for one in found])
    row["greedy / heft"] = interval([one["greedy"] / one["heft"] for one in found])
    pairs = [one["best of 64, climbed"] / one["best quick, climbed"] for one in found]
    row["climbed / climbed"] = interval(pairs)
    return row


def large_rows(network_file: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return what placers make of large graphs on eight machines, and the seconds that they take."""
    rows = []
    for tasks in (1000, 5000, 50_000):
        for family in ("attention", HELD_OUT):
            workload = draw_workload(family, Random(f"large {family}"), tasks, 8)
            asked = Asked(time.perf_counter, budget_s=5.0, networks=networks_of(network_file))
            row: dict[str, Any] = {"family": family, "tasks": len(workload.tasks)}
            for name in ("m-etf", "heft", "learned"):
                found, took_s = timed(find, workload, name, asked)
                row[name], row[f"{name} s"] = found.value_s, took_s
            rows.append(row)
            note(f"{family}, {tasks} tasks: {row}")
    return rows


def replanning(network_file: Mapping[str, Path], times: int = 40) -> list[float]:
    """Return the seconds until a graph of 400 tasks is placed again, after one of six machines is gone."""
    took = []
    for number in range(times):
        family = list(FAMILIES)[number % len(FAMILIES)]
        whole = draw_workload(family, Random(f"replanning {number}"), 400, 6)
        fewer = without_last(whole)
        asked = Asked(time.perf_counter, budget_s=0.0, networks=networks_of(network_file))
        try:
            took.append(timed(find, fewer, "learned", asked)[1])
        except Infeasible as error:
            note(f"left out: {error}")
    return took


def without_last(workload: Workload) -> Workload:
    """Return the workload without its last machine."""
    return replace(
        workload,
        machines=workload.machines[:-1],
        tasks=tuple(replace(task, compute_s=task.compute_s[:-1]) for task in workload.tasks),
        bytes_per_s=tuple(row[:-1] for row in workload.bytes_per_s[:-1]),
        latency_s=tuple(row[:-1] for row in workload.latency_s[:-1]),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned", description=__doc__)
    parser.add_argument("--graphs", type=int, default=40, help="how many graphs each cell has")
    parser.add_argument(
        "--network", type=Path, help="another network than the one that comes with the package"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as documents have them")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    options = parser.parse_args()
    given = {"learned": options.network} if options.network else {}
    as_written = replanning(given, 15)
    if not judge.prepare():
        say("numba is not installed: pip install 'edgepart[climb]'")
        return 1
    network = networks_of(given)("learned")
    cells = []
    for cell in CELLS:
        cells.append(cell_row(cell, network, options.graphs))
        note(f"{cell.what}: {cells[-1]}")
    large, again = large_rows(given), replanning(given)
    found = {"cells": cells, "large": large, "replanning_s": again, "replanning_as_written_s": as_written}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    report(found, network, markdown=options.markdown)
    return 0


def report(found: Mapping[str, Any], network: NeuralNetwork, *, markdown: bool) -> None:
    """Print the tables."""
    card = network.card
    say(
        f"On {sentence()}. The network: seed {card.seed}, trained on {card.trained_on} by `{card.command}`.\n"
    )
    names = [name for name in found["cells"][0] if name not in ("what", "graphs")]
    columns = ("makespan over the best quick placer's", *(row["what"] for row in found["cells"]))
    rows = [("graphs", *(str(row["graphs"]) for row in found["cells"]))]
    rows += [(name, *(_ratio(row[name]) for row in found["cells"])) for name in names]
    show_table(table(columns, rows, columns[1:]), markdown)
    print()
    columns = (
        "family",
        "nodes",
        "m-etf",
        "heft",
        "learned, 5 s",
        "learned / m-etf",
        "m-etf took",
        "heft took",
        "learned took",
    )
    rows = [
        (
            row["family"],
            f"{row['tasks']:,}",
            *(format_seconds(row[name], 3) for name in ("m-etf", "heft", "learned")),
            format_figure(row["learned"] / row["m-etf"], 3),
            *(format_seconds(row[f"{name} s"], 2) for name in ("m-etf", "heft", "learned")),
        )
        for row in found["large"]
    ]
    show_table(table(columns, rows, columns[1:]), markdown)
    print()
    for what, key in (("compiled", "replanning_s"), ("as written", "replanning_as_written_s")):
        cuts = quantiles(found[key], n=20)
        say(
            f"Placing 400 nodes again after one of six machines is gone, {what}: half within "
            f"{format_seconds(cuts[9], 2)}, 95 of 100 within {format_seconds(cuts[18], 2)}."
        )


def _ratio(values: Sequence[float]) -> str:
    mean, low, high = values
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    raise SystemExit(main())
