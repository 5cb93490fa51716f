"""Search times of strategies, by model and number of devices. Each search starts from a study without cached results.

    python -m benchmarks.search_time [--devices 4 8] [--unequal] [--strategies optcnn tofu auto] [--nodes 20000] [--json F]

"search" is all of a strategy up to its layouts; "simulate" is lowering and simulating its result. Times are CPU seconds of
one process, because wall time would include other programs; the least of some runs counts. Python collects garbage as
rarely as in the processes that plan (agent/host/garbage_collection.py). OptCNN's table 3 reports 0.4 s for
Inception-v3 on 4 devices. Prints a table; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from benchmarks.inception import inception_v3
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import light
from benchmarks.scale import transformer
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.cli.output import note, say, table
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.figures import format_seconds
from edgepart.planner.layerwise.byte_costs import ByteCosts
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.search.study import Study
from edgepart.planner.strategies import tofu
from edgepart.planner.strategies.optcnn import solve
from edgepart.planner.strategies.registry import get

LIGHT = ("inception_v1", "inception_v2", "resnet50", "vgg19")
LINK = Link(bytes_per_s=1.17e8, latency_s=2e-4)
RUNS = 3


@dataclass(frozen=True)
class Measured:
    """The figures of one search."""

    model: str
    operators: int
    devices: int
    strategy: str
    search_s: float
    simulate_s: float
    predicted_s: float
    detail: str


SPEEDS = (1.0, 0.5, 2.0, 1.5)
"""Speeds of unequal devices, in turn, relative to a small board."""


def cluster(count: int, unequal: bool = False) -> Cluster:
    """Return devices about as fast as a small board: all alike, or of several kinds."""
    speeds = (SPEEDS[n % len(SPEEDS)] if unequal else 1.0 for n in range(count))
    devices = (Device(f"d{n}", "board", 1.2e10 * s, 3.2e9 * s, 8e9) for n, s in enumerate(speeds))
    return Cluster(tuple(devices), {}, LINK)


def models(nodes: int) -> Iterator[tuple[str, Graph]]:
    """Yield names and graphs."""
    for name in LIGHT:
        yield name, load_graph(light(name))
    yield "inception_v3", load_graph(inception_v3().SerializeToString())
    if nodes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "transformer.onnx"
            onnx.save(transformer(nodes), path)
            yield f"transformer_{nodes}", load_graph(path)


def measure(name: str, graph: Graph, among: Cluster, strategy: str, runs: int) -> Measured:
    """Return the least of some runs, each from a study of its own."""
    search = ALONE.get(strategy) or _any(strategy)
    found = [search(Study(Problem(graph, among, "d0"))) for _ in range(runs)]
    search_s, simulate_s, predicted_s, detail = min(found)
    return Measured(
        name, len(graph.operators), len(among.devices), strategy, search_s, simulate_s, predicted_s, detail
    )


Times = tuple[float, float, float, str]
"""Search seconds, simulation seconds, predicted latency, and a description."""


def _optcnn(study: Study) -> Times:
    start = time.process_time()
    strategy, problem, found = solve(study)
    searched = time.process_time()
    predicted = study.scorer.forecast(strategy).latency_s
    kinds = len({node.kind for node in problem.nodes})
    largest = max(map(len, problem.choices))
    proof = "exact" if found.exact else found.why
    detail = f"{len(problem.nodes)} nodes, {kinds} kinds, {len(problem.edges)} edges, {largest} configurations; {proof}"
    return searched - start, time.process_time() - searched, predicted, detail


def _tofu(study: Study) -> Times:
    """Search with the paper's version of Tofu, with all of its limits."""
    start = time.process_time()
    team, words = tofu.choose_paper_team(study.memo)
    found = tofu.Recursion(ByteCosts(study.memo), team).run()
    strategy = tofu.make_strategy(study, found, words)
    searched = time.process_time()
    predicted = study.scorer.forecast(strategy).latency_s
    levels = ", ".join(f"{one.cost / 1e6:.3g}" for one in found.solutions)
    proof = "each exact" if all(one.exact for one in found.solutions) else "not all exact"
    detail = f"{len(found.solutions[0].choice)} nodes; MB moved after each step: {levels}; {proof}"
    return searched - start, time.process_time() - searched, predicted, detail


ALONE: dict[str, Callable[[Study], Times]] = {"optcnn": _optcnn, "tofu": _tofu}
"""Strategies that search without the simulator. Only these are tried on the transformer."""


def _any(name: str) -> Callable[[Study], Times]:
    """Return a search with another strategy, whose simulations are part of the search."""

    def search(study: Study) -> Times:
        start = time.process_time()
        tried = list(get(name)(study))
        best = study.scorer.pick_best(tried)
        return (
            time.process_time() - start,
            0.0,
            study.scorer.forecast(best).latency_s,
            f"{len(tried)} candidates",
        )

    return search


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search_time", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8], help="how many, one after another")
    parser.add_argument("--unequal", action="store_true", help="of four speeds")
    parser.add_argument("--strategies", nargs="+", default=["optcnn", "tofu", "auto"])
    parser.add_argument("--only", nargs="+", help="these models")
    parser.add_argument(
        "--nodes", type=int, default=20_000, help="of a transformer, for optcnn and tofu; 0 for none"
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args(arguments)
    collect_rarely()
    made: list[Measured] = []
    for name, graph in models(options.nodes):
        if options.only and name not in options.only:
            continue
        big = name.startswith("transformer")
        for count in options.devices:
            for strategy in [name for name in options.strategies if not big or name in ALONE]:
                among = cluster(count, options.unequal)
                made.append(measure(name, graph, among, strategy, 1 if big else options.runs))
                note(f"{name}, {count} devices, {strategy}: {made[-1].search_s:.3f} s")
    say(f"On {sentence()}, one core.")
    rows = [
        (
            one.model,
            str(one.operators),
            str(one.devices),
            one.strategy,
            format_seconds(one.search_s),
            format_seconds(one.simulate_s),
            format_seconds(one.predicted_s),
            one.detail,
        )
        for one in made
    ]
    columns = ("model", "operators", "devices", "strategy", "search", "simulate", "predicted latency", "what")
    show_table(
        table(columns, rows, right=("operators", "devices", "search", "simulate", "predicted latency")),
        options.markdown,
    )
    if options.json:
        document = {"machine": describe(), "searches": [asdict(one) for one in made]}
        options.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
