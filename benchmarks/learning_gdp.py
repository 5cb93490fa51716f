"""What GDP finds on drawn graphs: alone, in a batch, without having seen them and fine-tuned, and what its parts are worth.

    python -m benchmarks.learning_gdp [--minutes 25] [--seeds 1] [--graphs 8] [--json FILE]

Prints Markdown. `--minutes` is what each seed takes on a free core, and decides how many steps each network is
trained for. A figure of 1.10 means ten percent longer than what it is compared with. In brackets is the middle 95 % of
2,000 resamples of the graphs. The graphs are those of families like the source's models: recurrent ones over the steps of a
sequence, without and with attention (RNNLM, GNMT), attention (Transformer-XL), inception, and repeated cells
(AmoebaNet), on four machines that differ. There is none like WaveNet. All have one segment, so that nothing here
tells what the cache of segments is worth. Nothing that is evaluated was trained on, save by the method that it is
evaluated for; `cells` is in no training of the zero-shot network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from math import exp, log
from pathlib import Path
from random import Random
from statistics import mean

import torch

from benchmarks.climbing import interval
from benchmarks.learning_gdp_published import published_batch, published_ratio
from benchmarks.machine import as_markdown, sentence
from edgepart.cli.output import note, say, table
from edgepart.planner.errors import Infeasible
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.gdp import GdpSettings, GdpTraining, decide, new_network
from edgepart.planner.learning.training.gdp_network import GdpNetwork, GdpSizes
from edgepart.planner.learning.training.hdp import HdpTraining, new_hierarchical
from edgepart.planner.learning.training.hdp_network import HdpSizes
from edgepart.planner.learning.training.rewards import BestDrawn
from edgepart.planner.placing.engine import judge
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Workload

KINDS: Mapping[str, tuple[str, bool | None]] = {
    "recurrent": ("sequence", False),
    "recurrent, attends": ("sequence", True),
    "attention": ("attention", None),
    "inception": ("inception", None),
    "cells": ("cells", None),
}
"""The family of each kind of graph, and whether those of it are wanted that attend to other steps."""

UNTRAINED = "cells"
"""The kind that no zero-shot network was trained on."""

EACH = 8
"""The evaluated graphs of each kind, if nothing is said."""

TASKS, MOST_TASKS, MACHINES = 90, 128, 4

PLACERS = ("single", "expert", "metis", "heft", "m-etf")
"""Those that GDP is compared with; the source's are experts and METIS."""

FULL_MINUTES, FULL_STEPS = 25, 60
"""The steps that each graph is trained for, and the minutes that all of it takes on one free core, for `EACH` graphs of
each kind."""

BATCH = 8
"""The graphs of a step of GDP-batch."""

FEW = 10
"""The graphs from which a mean has an interval."""

TUNING = 3
"""Fine-tuning takes one step in so many that training takes."""

ONE_SIDED = 0.95
"""The share of the tasks on one machine from which a placement counts as collapsed."""

Values = list[float | None]
"""The value of each graph, in seconds; None where nothing fits."""


@dataclass(frozen=True)
class Measured:
    """What each method found on each graph."""

    kinds: list[str]
    """The kind of each graph."""
    steps: int
    """The steps that each network was trained for each graph."""
    seeds: int
    values: dict[str, Values]
    """By the method's name."""
    collapsed: dict[str, float]
    """The share of graphs whose likeliest placement is on one machine, nearly or all; for methods of GDP."""
    minutes: float
    """What it took of one core."""
    compiled: bool
    """Whether schedules were compiled."""


@dataclass
class _Found:
    """What the methods of one seed find."""

    values: dict[str, Values] = field(default_factory=lambda: defaultdict(list))
    shares: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The share of each graph's tasks on the fullest machine of its likeliest placement."""


def drawn(kind: str, which: str) -> Iterator[Workload]:
    """Yield graphs of a kind; others for another `which`."""
    family, attends = KINDS[kind]
    for seed in count():
        graph = draw_workload(family, Random(f"{which} {kind} {seed}"), TASKS, MACHINES)
        wanted = attends is None or attends == any(task.op == "Softmax" for task in graph.tasks)
        if wanted and len(graph.tasks) <= MOST_TASKS:
            yield graph


def evaluated(each: int) -> dict[str, list[Workload]]:
    """Return so many graphs of each kind to evaluate."""
    return {kind: list(islice(drawn(kind, "evaluated"), each)) for kind in KINDS}


def trained_on(each: int) -> list[Workload]:
    """Return about as many graphs to train on, of other seeds and without the kind that is not trained on."""
    kinds = [kind for kind in KINDS if kind != UNTRAINED]
    each = each * len(KINDS) // len(kinds)
    return [graph for kind in kinds for graph in islice(drawn(kind, "trained on"), each)]


def asked() -> Asked:
    return Asked(time.perf_counter)


def settled(graph: Workload, best: BestDrawn) -> float | None:
    """Return the value of what was found, judged as all placers are."""
    return settle(graph, best.placement, asked(), "").value_s if best.placement else None


def placed(graph: Workload, name: str) -> float | None:
    try:
        return find(graph, name, asked()).value_s
    except Infeasible:
        return None


def decided(graph: Workload, network: GdpNetwork) -> tuple[float | None, float]:
    """Return the value of the likeliest placement, made to fit, and the share of the tasks on its fullest machine."""
    placement = decide(network, graph)
    share = max(placement.count(machine) for machine in set(placement)) / len(placement)
    return settle(graph, placement, asked(), "").value_s, share


def drawn_best(graph: Workload, network: GdpNetwork, seed: int, samples: int = 64) -> float | None:
    """Return the value of the best of placements that the network draws, without learning from them."""
    looking = GdpTraining([graph], network, seed, GdpSettings(samples=samples, epochs=0))
    looking.run(float, 1)
    return settled(graph, looking.best[0])


def steps_of(steps: int) -> Callable[[int], float]:
    return lambda step: step / steps


def in_batch(graphs: Sequence[Workload], sizes: GdpSizes, seed: int, steps: int) -> GdpTraining:
    """Train one network on all graphs, each of which comes up `steps` times."""
    training = GdpTraining(graphs, new_network(sizes, seed), seed)
    training.run(steps_of(steps * len(graphs) // BATCH), BATCH)
    return training


def train_alone(graphs: Sequence[Workload], steps: int, seed: int, found: _Found) -> None:
    """Train a network of GDP and one of HDP for each graph by itself."""
    for graph in graphs:
        one = GdpTraining([graph], new_network(GdpSizes(MACHINES), seed), seed)
        one.run(steps_of(steps), 1)
        found.values["GDP-one"].append(settled(graph, one.best[0]))
        found.shares["GDP-one"].append(decided(graph, one.network)[1])
        grouped = HdpTraining(graph, new_hierarchical(HdpSizes(MACHINES), seed), seed)
        grouped.run(steps_of(steps))
        found.values["HDP"].append(settled(graph, grouped.best))


def train_together(graphs: Sequence[Workload], steps: int, seed: int, found: _Found) -> None:
    """Train one network for all graphs, also without parts of it."""
    whole = GdpSizes(MACHINES)
    for name, sizes in (
        ("GDP-batch", whole),
        ("GDP-batch without superposition", replace(whole, superposition=False)),
        ("GDP-batch without attention", replace(whole, attention=False)),
    ):
        batch = in_batch(graphs, sizes, seed, steps)
        found.values[name] = [settled(graph, best) for graph, best in zip(graphs, batch.best, strict=True)]
        found.shares[name] = [decided(graph, batch.network)[1] for graph in graphs]


def train_before(graphs: Sequence[Workload], steps: int, seed: int, found: _Found) -> None:
    """Train one network for other graphs, ask it for these, and fine-tune it for each of them."""
    others = trained_on(len(graphs) // len(KINDS))
    network = in_batch(others, GdpSizes(MACHINES), seed, steps).network
    kept = {name: one.clone() for name, one in network.state_dict().items()}
    for graph in graphs:
        network.load_state_dict(kept)
        value_s, share = decided(graph, network)
        found.values["zero-shot, likeliest"].append(value_s)
        found.shares["zero-shot, likeliest"].append(share)
        found.values["zero-shot, best of 64"].append(drawn_best(graph, network, seed))
        tuning = GdpTraining([graph], network, seed)
        tuning.run(steps_of(max(1, steps // TUNING)), 1)
        found.values["fine-tuned"].append(settled(graph, tuning.best[0]))


def measure(minutes: float, seeds: int, each: int) -> Measured:
    """Train for about so many minutes of one free core for each seed, and ask the placers."""
    begun_s = time.process_time()
    torch.set_num_threads(1)
    compiled = judge.prepare()
    pairs = [(kind, graph) for kind, ones in evaluated(each).items() for graph in ones]
    graphs = [graph for _, graph in pairs]
    values = {name: [placed(graph, name) for graph in graphs] for name in PLACERS}
    steps = max(TUNING, round(FULL_STEPS * minutes / FULL_MINUTES * EACH / each))
    every = [_Found() for _ in range(seeds)]
    for seed, found in enumerate(every):
        for train in (train_alone, train_together, train_before):
            train(graphs, steps, seed, found)
            note(f"seed {seed}: {train.__name__} is done")
    for name in every[0].values:
        values[name] = over_seeds([found.values[name] for found in every])
    collapsed = {
        name: mean(share >= ONE_SIDED for found in every for share in found.shares[name])
        for name in every[0].shares
    }
    took_minutes = (time.process_time() - begun_s) / 60
    return Measured([kind for kind, _ in pairs], steps, seeds, values, collapsed, took_minutes, compiled)


def over_seeds(found: Sequence[Values]) -> Values:
    """Return the geometric mean of each graph's values over the seeds."""
    return [
        exp(mean(log(one) for one in ones if one is not None)) if None not in ones else None
        for ones in zip(*found, strict=True)
    ]


def ratios(ones: Values, others: Values) -> list[float]:
    """Return one value over the other, for graphs that have both."""
    return [
        one / other for one, other in zip(ones, others, strict=True) if one is not None and other is not None
    ]


def cell(found: Sequence[float]) -> str:
    """Return the geometric mean, with its interval where there are enough graphs for one."""
    if not found:
        return "none fits"
    middle, low, high = interval(list(found))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})" if len(found) >= FEW else f"{middle:.3f}"


def compare_alone(values: Mapping[str, Values], kinds: Sequence[str]) -> Iterator[str]:
    """Yield the table of GDP-one against other methods, by kind of graph, with the source's figures."""
    names = (*PLACERS, "HDP")
    columns = ("graphs", "n", *names, "source: expert", "source: metis", "source: HDP")
    rows = []
    for kind in (*KINDS, None):
        which = [number for number, one in enumerate(kinds) if kind in (one, None)]

        def of(name: str, which: list[int] = which) -> Values:
            return [values[name][number] for number in which]

        published = (published_ratio(method, kind) for method in ("expert", "metis", "hdp"))
        rows.append(
            (
                kind or "all",
                str(len(which)),
                *(cell(ratios(of(name), of("GDP-one"))) for name in names),
                *("no memory" if one is None else f"{one:.3f}" for one in published),
            )
        )
    yield from as_markdown(table(columns, rows, columns[1:]))


def compare_arms(
    values: Mapping[str, Values], collapsed: Mapping[str, float], kinds: Sequence[str]
) -> Iterator[str]:
    """Yield the table of the ways to train, against GDP-one and the best of the placers."""
    every = zip(*(values[name] for name in PLACERS), strict=True)
    best: Values = [min((one for one in ones if one is not None), default=None) for ones in every]
    seen = [kind != UNTRAINED for kind in kinds]
    columns = ("method", "over GDP-one", "over the best placer", f"the same, {UNTRAINED}", "collapsed")
    rows = []
    for name in values:
        if name in PLACERS:
            continue
        rest = [None if was else value for was, value in zip(seen, values[name], strict=True)]
        share = f"{collapsed[name]:.0%}" if name in collapsed else ""
        over = (cell(ratios(values[name], values["GDP-one"])), cell(ratios(values[name], best)))
        rows.append((name, *over, cell(ratios(rest, best)), share))
    yield from as_markdown(table(columns, rows, columns[1:]))


def differences(values: Mapping[str, Values]) -> Iterator[str]:
    """Yield a sentence for each figure of the source that ours is on the other side of."""
    pairs = [
        ("expert", ratios(values["expert"], values["GDP-one"]), published_ratio("expert")),
        ("metis", ratios(values["metis"], values["GDP-one"]), published_ratio("metis")),
        ("HDP", ratios(values["HDP"], values["GDP-one"]), published_ratio("hdp")),
        ("GDP-batch", ratios(values["GDP-batch"], values["GDP-one"]), published_batch()),
    ]
    for name, found, theirs in pairs:
        middle, low, high = interval(found)
        if theirs is None or low <= theirs <= high:
            continue
        side = "more" if middle > theirs else "less"
        yield f"- {name} takes {middle:.3f} times as long as GDP-one here, and {theirs:.3f} times in the source: {side}."


def tables(found: Measured) -> Iterator[str]:
    """Yield the lines of the tables and of what there is to say of them."""
    steps, samples = found.steps, GdpSettings().samples
    yield (
        f"{len(found.kinds)} graphs of up to {MOST_TASKS} tasks on {MACHINES} machines; {found.seeds} "
        f"{'seed' if found.seeds == 1 else 'seeds'}; {steps} steps of {samples} placements for each graph and network "
        f"({steps * samples:,} placements), {max(1, steps // TUNING)} steps of fine-tuning."
    )
    yield from ("", "Times over GDP-one's, geometric means; the source's are ratios of its seconds.", "")
    yield from compare_alone(found.values, found.kinds)
    yield from (
        "",
        f"Ways to train. Collapsed are graphs whose likeliest placement has {ONE_SIDED:.0%} or more of the tasks on one "
        f"machine. The source's GDP-batch takes {published_batch():.3f} times as long as its GDP-one; it has no figures, "
        "only a picture, of zero-shot and fine-tuned placements, and none of parts left out.",
        "",
    )
    yield from compare_arms(found.values, found.collapsed, found.kinds)
    yield ""
    yield from differences(found.values)
    for name, values in found.values.items():
        if missing := values.count(None):
            yield f"- {name} finds nothing that fits on {missing} of the graphs."
    yield ""
    yield f"It took {found.minutes:.1f} minutes of one core; schedules were {'' if found.compiled else 'not '}compiled."


def report(minutes: float, seeds: int) -> str:
    """Measure for about so many minutes of one free core for each seed, and return the tables as Markdown."""
    return "\n".join(tables(measure(minutes, seeds, EACH)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_gdp", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=FULL_MINUTES, help="of one free core for each seed, roughly"
    )
    parser.add_argument("--seeds", type=int, default=1, help="how often every network is trained")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    parser.add_argument("--graphs", type=int, default=EACH, help="how many graphs of each kind are evaluated")
    options = parser.parse_args()
    found = measure(options.minutes, options.seeds, options.graphs)
    say("\n".join(tables(found)))
    say(f"On {sentence()}.")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
