"""What the network of `learned` gives on graphs and clusters that it was not trained on, beside the quick placers.

    python -m benchmarks.learned [--graphs 40] [--network FILE.onnx]... [--known-s 10] [--markdown] [--json FILE]

Makespans are geometric means over drawn graphs, in units of the best quick placer's; in brackets is the middle 95 %
of 2,000 resamples of the graphs. The untrained network is plain list scheduling. Where climbing is compared, both
have the same time in all: what the quick placers take together, or the network with its samples, is taken off. Exits
with 1 without numba.

With --known-s, searching goes on for so many seconds on each graph from the best that was found of it. "Best known" is what
that finds, and no placement is below the lower bound: how much less than HEFT's a makespan can be lies between the two.

Of several networks, the first is compared with everything, and the others, of other seeds, with the quick placers. How
long a graph takes to be placed again is measured as if it were seen for the first time, and with what was computed of it
before a machine left.
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
from benchmarks.learned_known import find_best_known
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


def compare(
    workload: Workload, network: NeuralNetwork, others: Sequence[NeuralNetwork] = (), known_s: float = 0.0
) -> dict[str, float]:
    """Return the makespan of each, in seconds; the best that is known if `known_s` seconds are given for it. Raises
    Infeasible if a quick placer finds no placement."""
    asked = Asked(time.perf_counter)
    quick, spent_s = {}, 0.0
    for name in STARTS:
        quick[name], took_s = timed(find, workload, name, asked)
        spent_s += took_s
    best = min(quick.values(), key=lambda one: one.value_s)
    learned, network_s = timed(sampled, workload, network, SAMPLES)
    whole_s = CLIMB_S + max(spent_s, network_s)
    every = [*quick.values(), learned]
    found = {
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
    for other in others:
        drawn_by, took_s = timed(sampled, workload, other, SAMPLES)
        every.append(drawn_by)
        found[f"{seed_of(other)}: greedy"] = sampled(workload, other, 1).value_s
        found[f"{seed_of(other)}: best of 64"] = drawn_by.value_s
        found[f"{seed_of(other)}: climbed"] = climbed(workload, drawn_by, whole_s - took_s)
    if known_s:
        known = find_best_known(workload, every, known_s)
        found |= {"best known": min(known.value_s, *found.values()), "lower bound": known.bound_s}
    return found


def seed_of(network: NeuralNetwork) -> str:
    """Return what the rows of a network are called."""
    return f"seed {network.card.seed}"


def cell_row(
    cell: Cell,
    network: NeuralNetwork,
    graphs: int,
    others: Sequence[NeuralNetwork] = (),
    known_s: float = 0.0,
) -> dict[str, Any]:
    """Return the figures of one cell: means of ratios with their intervals."""
    found = []
    for workload in drawn(cell, graphs):
        try:
            found.append(compare(workload, network, others, known_s))
        except Infeasible as error:
            note(f"left out: {error}")

    def over(one: str, other: str) -> tuple[float, float, float]:
        return interval([each[one] / each[other] for each in found])

    row: dict[str, Any] = {"what": cell.what, "graphs": len(found)}
    for name in found[0]:
        if name != "best quick" and not name.startswith("seed "):
            row[name] = over(name, "best quick")
    row["greedy / m-etf"] = over("greedy", "m-etf")
    row["greedy / heft"] = over("greedy", "heft")
    if known_s:
        row["best known / heft"] = over("best known", "heft")
        row["lower bound / heft"] = over("lower bound", "heft")
    row["climbed / climbed"] = over("best of 64, climbed", "best quick, climbed")
    for seed in map(seed_of, others):
        row[f"{seed}: greedy / m-etf"] = over(f"{seed}: greedy", "m-etf")
        row[f"{seed}: greedy / heft"] = over(f"{seed}: greedy", "heft")
        row[f"{seed}: best of 64"] = over(f"{seed}: best of 64", "best quick")
        row[f"{seed}: climbed / climbed"] = over(f"{seed}: climbed", "best quick, climbed")
    return row


def asked_of(network: NeuralNetwork, budget_s: float) -> Asked:
    """Return what a placer that this network guides is asked."""
    return Asked(time.perf_counter, budget_s=budget_s, networks=lambda placer: network)


def large_rows(network: NeuralNetwork) -> list[dict[str, Any]]:
    """Return what placers make of large graphs on eight machines, and the seconds that they take."""
    rows = []
    for tasks in (1000, 5000, 50_000):
        for family in ("attention", HELD_OUT):
            workload = draw_workload(family, Random(f"large {family}"), tasks, 8)
            asked = asked_of(network, 5.0)
            row: dict[str, Any] = {"family": family, "tasks": len(workload.tasks)}
            for name in ("m-etf", "heft", "learned"):
                found, took_s = timed(find, workload, name, asked)
                row[name], row[f"{name} s"] = found.value_s, took_s
            rows.append(row)
            note(f"{family}, {tasks} tasks: {row}")
    return rows


def replanning(network: NeuralNetwork, times: int = 40, tasks: int = 400) -> dict[str, list[float]]:
    """Return the seconds until a graph is placed after one of six machines is gone: "first" if nothing is known of it, and
    "again" with what was computed of it for six."""
    took: dict[str, list[float]] = {"first": [], "again": []}
    asked = asked_of(network, 0.0)
    for number in range(times):
        family = list(FAMILIES)[number % len(FAMILIES)]
        whole = draw_workload(family, Random(f"replanning {number}"), tasks, 6)
        try:
            find(whole, "learned", asked)
            first_s, again_s = (timed(place_on_fewer, whole, known, asked)[1] for known in (False, True))
        except Infeasible as error:
            note(f"left out: {error}")
            continue
        took["first"].append(first_s)
        took["again"].append(again_s)
    return took


def place_on_fewer(whole: Workload, known: bool, asked: Asked) -> PlacementFound:
    """Place the graph without its last machine, with what is known of the graph."""
    fewer = without_last(whole)
    return find(fewer.like(whole) if known else fewer, "learned", asked)


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
        "--network",
        type=Path,
        action="append",
        default=[],
        help="in place of the one that comes with the package; the second and later ones are other seeds",
    )
    parser.add_argument(
        "--known-s", type=float, default=0.0, help="seconds for the best known of each graph; 0 leaves it out"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as documents have them")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    options = parser.parse_args()
    given: list[dict[str, Path]] = [{"learned": path} for path in options.network] or [{}]
    network, *others = [networks_of(one)("learned") for one in given]
    if len({one.card.seed for one in (network, *others)}) <= len(others):
        parser.error("two of the networks are of the same seed")
    not_compiled = replanning(network)
    if not judge.prepare():
        say("numba is not installed: pip install 'edgepart[climb]'")
        return 1
    cells = []
    for cell in CELLS:
        cells.append(cell_row(cell, network, options.graphs, others, options.known_s))
        note(f"{cell.what}: {cells[-1]}")
    large, compiled = large_rows(network), replanning(network)
    found = {
        "cells": cells,
        "large": large,
        "replanning_s": {"compiled": compiled, "not compiled": not_compiled},
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    report(found, (network, *others), markdown=options.markdown)
    return 0


def report(found: Mapping[str, Any], networks: Sequence[NeuralNetwork], *, markdown: bool) -> None:
    """Print the tables."""
    cards = [network.card for network in networks]
    which = "; ".join(f"seed {one.seed}, trained on {one.trained_on} by `{one.command}`" for one in cards)
    say(f"On {sentence()}. The network{'s' if len(cards) > 1 else ''}: {which}.\n")
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
    columns = ("400 nodes placed after one of six machines is gone", "half within", "95 of 100 within")
    rows = []
    for how, took in found["replanning_s"].items():
        for when, known in (("first", "nothing known of the graph"), ("again", "its graph placed before")):
            cuts = quantiles(took[when], n=20)
            rows.append((f"{how}, {known}", *(format_seconds(cuts[place], 2) for place in (9, 18))))
    show_table(table(columns, rows, columns[1:]), markdown)


def _ratio(values: Sequence[float]) -> str:
    mean, low, high = values
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    raise SystemExit(main())
