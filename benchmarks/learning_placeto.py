"""Placeto in simulation: its two rewards, what a trained policy does on graphs that it never saw, and how it compares
with a recurrent placer and with placers that learn nothing.

    python -m benchmarks.learning_placeto [--minutes 25] [--seeds 1] [--graphs 40] [--json FILE] [--drawing FILE.svg]

Graphs are drawn (planner/learning/training), on equal machines with much memory, as in the paper. Makespans are in units
of what one machine takes; in brackets is the middle 95 % of 2,000 resamples of the graphs. Trainings are counted in
updates, so that the same figures come out again: --minutes scales their numbers by what they take on a slow core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, inf, log
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.climbing import interval
from benchmarks.machine import sentence
from edgepart.cli.output import note, say
from edgepart.planner.learning.training.draw import draw_workloads
from edgepart.planner.learning.training.placeto import PlacetoTraining
from edgepart.planner.learning.training.placeto_update import PlacetoSettings
from edgepart.planner.learning.training.recurrent import RecurrentSettings, RecurrentTraining
from edgepart.planner.placing.engine.coarse_workload import coarsen
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.judge import prepare
from edgepart.planner.placing.guided.placeto_state import Episode, PlacetoGraph, start_alone
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Workload

FAMILY, MACHINES, TASKS, GROUPS = "inception", 2, 60, 16
QUICK = ("heft", "m-etf", "metis", "expert", "single")
TRAINED_ON = 32
"""The graphs of the family that a policy is trained on, as many as the paper's families have."""

SETTINGS = PlacetoSettings(groups=GROUPS, workers=8, entropy=(0.05, 0.0), rate=(1e-2, 1e-3))
"""Placeto's, but for the size of graphs, the step and the entropy, which are for short trainings."""

FULL_MINUTES = 25.0
FAMILY_UPDATES, GRAPH_UPDATES, REWARD_UPDATES = 400, 60, 60
"""The updates of a training on a family, on one graph, and for the comparison of rewards, in `FULL_MINUTES`."""

REWARD_GRAPHS, POINTS, GRAPHS = 8, 4, 40

DRAWN = ("Placeto, zero-shot", "Placeto, optimised", "RNN, optimised", "random")
COLOURS = ("#3b82f6", "#10b981", "#ec4899", "#888888")

DRAWING = Path(__file__).parents[1] / "docs" / "learning-placeto.svg"
CDF = "the distributions: [drawn](learning-placeto.svg)"

DECK = """| model, GPUs | expert | Scotch | Placeto | RNN | placements sampled, Placeto / RNN |
| --- | ---: | ---: | ---: | ---: | ---: |
| Inception-V3, 2 | 1.28 s | 1.54 s | 1.18 s | 1.17 s | 1.6 k / 7.8 k |
| Inception-V3, 4 | 1.15 s | 1.74 s | 1.13 s | 1.19 s | 5.8 k / 35.8 k |
| NMT, 2 | no memory | no memory | 2.32 s | 2.35 s | 20.4 k / 73 k |
| NMT, 4 | no memory | no memory | 2.63 s | 3.15 s | 94 k / 51.7 k |
| NASNet, 2 | 0.86 s | 1.28 s | 0.86 s | 0.89 s | 3.5 k / 16.3 k |
| NASNet, 4 | 0.84 s | 1.22 s | 0.74 s | 0.76 s | 29 k / 37 k |"""
"""What the paper's authors report, as a lecture of March 2020 prints it."""


@dataclass
class Results:
    """What was found; graphs in the same order everywhere."""

    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    """For each reward the mean makespan of drawn placements, [training][point]."""
    makespans: dict[str, list[float]] = field(default_factory=dict)
    """For each way to place, the makespan on each unseen graph."""
    sampled: dict[str, list[float]] = field(default_factory=dict)
    """For each trained way, the placements that it had judged until its best came, on each graph."""
    updates: dict[str, int] = field(default_factory=dict)
    """The updates of each kind of training."""


def draw_equal(families: Sequence[str], seed: int) -> list[Workload]:
    """Return graphs on one cluster of equal machines with much memory, contracted to groups."""
    found = []
    for graph in draw_workloads(families, Random(seed), TASKS, MACHINES):
        tasks = tuple(replace(task, compute_s=task.compute_s[:1] * MACHINES) for task in graph.tasks)
        machines = tuple(replace(machine, memory_bytes=inf) for machine in graph.machines)
        alike = replace(graph, tasks=tasks, machines=machines)
        found.append(coarsen(alike, contract(alike, GROUPS)))
    return found


def compare_rewards(graphs: Sequence[Workload], updates: int, seeds: int) -> dict[str, list[list[float]]]:
    """Return a learning curve for each reward, graph and seed: the mean makespan of what is drawn, at `POINTS` times."""
    found: dict[str, list[list[float]]] = {}
    for name, terminal in (("at each step", False), ("at the end", True)):
        settings = replace(SETTINGS, terminal=terminal)
        for graph in graphs:
            for seed in range(seeds):
                learning = PlacetoTraining([graph], settings, seed)
                means = [
                    float(learning.step(step / updates)[0].runtimes[-1].mean()) for step in range(updates)
                ]
                parts = np.array_split(means, POINTS)
                found.setdefault(name, []).append([float(part.mean()) for part in parts])
        note(f"reward {name}: {np.mean(found[name], axis=0).round(3)}")
    return found


def place_unseen(
    trained_on: Sequence[Workload], unseen: Sequence[Workload], updates: tuple[int, int], seed: int
) -> Results:
    """Return what each way to place makes of graphs that no policy saw, but the one trained on each of them."""
    found = Results()
    family, single = updates
    begun_s = time.perf_counter()
    general = PlacetoTraining(trained_on, SETTINGS, seed)
    for step in range(family):
        general.step(step / family)
    note(f"trained on the family in {time.perf_counter() - begun_s:.0f} s")
    random = Random(seed)
    for number, graph in enumerate(unseen):
        own = PlacetoTraining([graph], SETTINGS, seed)
        actor = own.actors[0]
        add = _adder(found.makespans)
        add("Placeto, zero-shot", actor.answer(general.network).best_runtime)
        add("Placeto, untrained", actor.answer(own.network).best_runtime)
        add("random", Episode(actor.graph, _random(actor.graph, random)).runtime)
        value, sampled = _best_of_placeto(own, single)
        add("Placeto, optimised", value)
        _adder(found.sampled)("Placeto, optimised", sampled)
        value, sampled = _best_of_recurrent(actor.graph, single, seed)
        add("RNN, optimised", value)
        _adder(found.sampled)("RNN, optimised", sampled)
        for name in QUICK:
            add(name, find(graph, name, Asked(time.perf_counter)).value_s / actor.graph.alone_s)
        note(f"{number + 1} of {len(unseen)} graphs, {time.perf_counter() - begun_s:.0f} s")
    return found


def _adder(rows: dict[str, list[float]]) -> Callable[[str, float], None]:
    return lambda name, value: rows.setdefault(name, []).append(value)


def _random(graph: PlacetoGraph, random: Random) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([random.randrange(graph.machines) for _ in graph.order])


def _best_of_placeto(learning: PlacetoTraining, updates: int) -> tuple[float, float]:
    """Return the best runtime that was visited, and the placements that were judged until then."""
    best, at = learning.actors[0].answer(learning.network).best_runtime, 0
    for step in range(updates):
        played, _ = learning.step(step / updates)
        if played.best_runtime < best:
            best, at = played.best_runtime, (step + 1) * played.actions.numel()
    return min(best, learning.actors[0].answer(learning.network).best_runtime), float(at)


def _best_of_recurrent(graph: PlacetoGraph, updates: int, seed: int) -> tuple[float, float]:
    """The same for the recurrent placer, with as many updates."""
    settings = RecurrentSettings()
    learning, at = RecurrentTraining(graph, settings, seed), 0
    for step in range(updates):
        before = learning.best_runtime
        learning.step(step / updates)
        if learning.best_runtime < before:
            at = (step + 1) * settings.samples
    return min(learning.best_runtime, Episode(graph, start_alone(graph)).runtime), float(at)


def measure(minutes: float, seeds: int, graphs: int) -> Results:
    """Return all figures of a run of roughly so many minutes for each seed on a slow core."""
    prepare()
    scale = minutes / FULL_MINUTES
    family, single, reward = (
        max(POINTS, round(scale * updates)) for updates in (FAMILY_UPDATES, GRAPH_UPDATES, REWARD_UPDATES)
    )
    drawn = draw_equal([FAMILY] * (TRAINED_ON + graphs), seed=0)
    found = Results(updates={"family": family, "graph": single, "reward": reward})
    found.curves = compare_rewards(drawn[:REWARD_GRAPHS], reward, seeds)
    for seed in range(seeds):
        part = place_unseen(drawn[:TRAINED_ON], drawn[TRAINED_ON:], (family, single), seed)
        for rows, more in ((found.makespans, part.makespans), (found.sampled, part.sampled)):
            for name, values in more.items():
                rows.setdefault(name, []).extend(values)
    return found


def rewards_table(found: Results) -> str:
    """Return the learning curves: geometric means over trainings."""
    updates = found.updates["reward"]
    heads = [f"to {round(updates * (part + 1) / POINTS)}" for part in range(POINTS)]
    lines = [f"| reward | trainings | {' | '.join(heads)} updates |", "| --- | ---: |" + " ---: |" * POINTS]
    for name, curves in found.curves.items():
        cells = [f"{exp(mean(log(curve[part]) for curve in curves)):.3f}" for part in range(POINTS)]
        lines.append(f"| {name} | {len(curves)} | {' | '.join(cells)} |")
    last = [[log(curve[-1]) for curve in found.curves[name]] for name in ("at each step", "at the end")]
    middle, low, high = interval([exp(a - b) for a, b in zip(*last, strict=True)])
    said = f"with the reward at each step it is {middle:.3f} ({low:.3f} to {high:.3f}) of what it is with the other"
    lines += ["", f"In the last part, {said}."]
    return "\n".join(lines)


def places_table(found: Results) -> str:
    """Return how long the makespans are, by what placed the graphs."""
    lines = [
        "| placed by | graphs | makespan | least | median | most | judged until the best came |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, values in sorted(found.makespans.items(), key=lambda one: interval(one[1])[0]):
        middle, low, high = interval(values)
        sampled = f"{median(found.sampled[name]):,.0f}" if name in found.sampled else ""
        lines.append(
            f"| {name} | {len(values)} | {middle:.3f} ({low:.3f} to {high:.3f}) | {min(values):.3f} | "
            f"{median(values):.3f} | {max(values):.3f} | {sampled} |"
        )
    return "\n".join(lines)


def sentences(found: Results) -> str:
    """Return what the figures say, beside the paper's."""

    def ratio(one: str, other: str) -> str:
        pairs = zip(found.makespans[one], found.makespans[other], strict=True)
        middle, low, high = interval([a / b for a, b in pairs])
        return f"{middle:.3f} ({low:.3f} to {high:.3f})"

    return (
        f"Zero-shot takes {ratio('Placeto, zero-shot', 'random')} of random, and "
        f"{ratio('Placeto, zero-shot', 'Placeto, optimised')} of the policy trained on the graph itself; Placeto, "
        f"trained on a graph, takes {ratio('Placeto, optimised', 'RNN, optimised')} of the recurrent placer, and "
        f"{ratio('Placeto, optimised', 'heft')} of heft."
    )


def drawing(makespans: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """Return the share of graphs whose makespan is at most so long, for each way to place, as an SVG."""
    width, height, left = 640, 320, 40
    most = max(max(makespans[name]) for name in names)
    least = min(min(makespans[name]) for name in names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 60}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{width}" height="{height + 60}" fill="#fff"/>',
        f'<path d="M{left} 10V{height}H{width - 10}" fill="none" stroke="#888"/>',
    ]

    def across(value: float) -> float:
        return left + (value - least) / ((most - least) or 1) * (width - left - 20)

    for number, name in enumerate(names):
        values, colour = sorted(makespans[name]), COLOURS[number]
        path = f"M{across(values[0]):.1f} {height}"
        for count, value in enumerate(values, 1):
            path += f"H{across(value):.1f}V{height - (height - 20) * count / len(values):.1f}"
        parts.append(f'<path d="{path}H{width - 20}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 10 + 150 * number}" y="{height + 50}" fill="{colour}">{name}</text>')
    for value in np.linspace(least, most, 5):
        parts.append(
            f'<text x="{across(value):.1f}" y="{height + 20}" text-anchor="middle">{value:.2f}</text>'
        )
    parts += [f'<text x="4" y="24">100%</text><text x="4" y="{height}">0%</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def text(found: Results, seeds: int) -> str:
    """Return the tables as Markdown."""
    updates = found.updates
    return "\n\n".join(
        [
            f"{TASKS} operators of the family {FAMILY}, contracted to {GROUPS} groups, on {MACHINES} equal machines; "
            f"{seeds} seed{'s' if seeds > 1 else ''}. The policy for the family has {updates['family']} updates on "
            f"{TRAINED_ON} graphs, one for a graph has {updates['graph']}, of "
            f"{SETTINGS.workers} episodes each. The recurrent placer has as many, of "
            f"{RecurrentSettings().samples} placements each. In brackets is the middle 95 % of resamples.",
            "Rewards: the makespan of drawn placements, in parts of the training; geometric means over graphs.",
            rewards_table(found),
            f"Graphs that no policy was trained on, but each of the optimised ones on its own ({CDF}), in units of what "
            "one machine takes. The last column has medians:",
            places_table(found),
            sentences(found),
            "The paper's figures, as printed in a lecture of March 2020, in seconds for a step on real GPUs; its "
            "distributions over graphs are pictures without figures:",
            DECK,
        ]
    )


def report(minutes: float, seeds: int) -> str:
    """Return the tables as Markdown, of a run of roughly so many minutes for each seed. Draws `DRAWING` anew."""
    found = measure(minutes, seeds, GRAPHS)
    DRAWING.write_text(drawing(found.makespans, DRAWN))
    return text(found, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_placeto", description=__doc__)
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES, help="scales how long is trained")
    parser.add_argument("--seeds", type=int, default=1, help="how often everything is done")
    parser.add_argument("--graphs", type=int, default=GRAPHS, help="how many unseen graphs are placed")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    parser.add_argument(
        "--drawing", type=Path, default=DRAWING, help="the distributions are drawn there, as SVG"
    )
    options = parser.parse_args()
    found = measure(options.minutes, options.seeds, options.graphs)
    say(text(found, options.seeds))
    say(f"On {sentence()}.")
    options.drawing.write_text(drawing(found.makespans, DRAWN))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
