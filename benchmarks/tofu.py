"""Tofu's search on the networks of its table of search times, against the partitions that it is compared with.

    python -m benchmarks.tofu [--models wresnet rnn] [--devices 8] [--markdown] [--json F]

The paper searches the best partition for 8 workers of WResNet-152 and RNN-10, graphs of training with their backward
operators; ours are of inference (benchmarks/tofu_graphs.py). As in the paper, weights are cut like all tensors: what a
device needs of them and another one holds counts as moved. The partitions:

- `tofu`: cut in two, and each half again, least bytes at each step.
- `one step`: all cuts into 8 of each layer at once, by the same dynamic programming; the paper's "DP with coarsening".
- `equal chop`: each layer is cut into 8 along one axis only, or sums are; least bytes.
- `all row`: the result of each layer is cut into 8 along its first axis; only how it is computed is chosen, by least bytes.

What moves is counted in the lowered partition. Search times are CPU seconds of one process. The paper compares training
throughput on 8 GPUs; that is not repeated here. Prints a table; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import describe, sentence, show_table
from benchmarks.tofu_graphs import rnn, wide_resnet
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.cli.output import note, say, table
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layerwise.byte_costs import ByteCosts
from edgepart.planner.layerwise.elimination import minimise
from edgepart.planner.layerwise.halving import Team, list_cuts
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.draft import Share
from edgepart.planner.lowering.lower import lower
from edgepart.planner.lowering.segment import weights_of
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Region
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.tofu import Recursion, choose_paper_team

if TYPE_CHECKING:
    from rich.table import Table

MODELS: Mapping[str, Callable[[Path], Path]] = {"wresnet": wide_resnet, "rnn": rnn}
PAPER = {
    ("wresnet", "tofu"): "8.3 s",
    ("wresnet", "one step"): "8 h",
    ("rnn", "tofu"): "66.6 s",
    ("rnn", "one step"): "> 24 h",
}
"""Search times of the paper's table: "Using recursion" and "DP with coarsening", for 8 workers."""
MEMORY_BYTES = 1e12
"""The memory of each device, which holds everything, so that no partition is left out."""

Choices = Mapping[int, Choice]
"""The choice of each layer, by its number."""


@dataclass(frozen=True)
class PartitionFigures:
    """One partition of one model, and what it moves."""

    model: str
    operators: int
    partition: str
    search_s: float
    proven: bool
    """Whether each minimum is known to be one."""
    tensor_bytes: int
    """What devices send each other of inputs, results of layers and addends."""
    weight_bytes: int
    """What devices need of weights beyond one copy of each."""

    @property
    def moved_bytes(self) -> int:
        return self.tensor_bytes + self.weight_bytes


def search_tofu(costs: ByteCosts, team: Team) -> tuple[Choices, bool]:
    found = Recursion(costs, team).run()
    return found.choices, all(one.exact for one in found.solutions)


def search_in_one_step(costs: ByteCosts, team: Team) -> tuple[Choices, bool]:
    return _least(costs, team, lambda layer: _all_cuts(layer, team))


def search_equal_chop(costs: ByteCosts, team: Team) -> tuple[Choices, bool]:
    return _least(costs, team, lambda layer: _one_axis(layer, team, tuple(axis.name for axis in layer.axes)))


def search_all_row(costs: ByteCosts, team: Team) -> tuple[Choices, bool]:
    def first_axis(layer: Layer) -> Iterator[Choice]:
        return _one_axis(layer, team, tuple(axis.name for axis in layer.axes if axis.index == 0))

    return _least(costs, team, first_axis)


SEARCHES: Mapping[str, Callable[[ByteCosts, Team], tuple[Choices, bool]]] = {
    "tofu": search_tofu,
    "one step": search_in_one_step,
    "equal chop": search_equal_chop,
    "all row": search_all_row,
}


def _all_cuts(layer: Layer, team: Team) -> Iterator[Choice]:
    """Yields every way that the recursion could end with."""
    found: dict[Choice | None, None] = {None: None}
    for level in range(len(team.levels)):
        found = {
            choice: None
            for before in found
            for choice in list_cuts(layer, before, team, level, lambda axis: True)
        }
    return (choice for choice in found if choice is not None)


def _one_axis(layer: Layer, team: Team, axes: Sequence[str]) -> Iterator[Choice]:
    """Yields the ways to cut a layer, or its sums, along one of these axes; without them it is whole on each device."""
    whole, shares = Whole(tuple(name for name, _ in team.shares)), team.shares
    cut: list[Divide | Whole] = [
        Divide((name,), shares)
        for name in axes
        if layer.splits(name) and layer.extent(name) >= len(shares) * _quantum(layer, name)
    ]
    yield from cut or [whole]
    for name in {axis.name for _, axis in layer.reduced if layer.reduces(axis.name)}:
        yield from (Reduce(name, shares, then) for then in cut or [whole])


def _quantum(layer: Layer, name: str) -> int:
    axis = layer.axis(name)
    return 1 if axis is None else axis.quantum


def _least(costs: ByteCosts, team: Team, ways: Callable[[Layer], Iterator[Choice]]) -> tuple[Choices, bool]:
    """The choice of each layer among `ways` that moves the fewest bytes in all."""
    kinds = {node.kind: node for node in reversed(costs.nodes)}
    measured = {kind: costs.measure(node, tuple(ways(node.layer))) for kind, node in kinds.items()}
    tables = [measured[node.kind] for node in costs.nodes]
    unary, edges = costs.tables(tables, costs.memo.problem.gateway)
    found = minimise(unary, edges)
    choices = zip(costs.nodes, tables, found.choice, strict=True)
    return {n.layer.number: one.choices[k] for n, one, k in choices if not n.is_junction}, found.exact


def measure(name: str, graph: Graph, partition: str, devices: int) -> PartitionFigures:
    """Searches with a study of its own, and lowers the partition that is found."""
    boards = tuple(Device(f"d{n}", "board", 1.2e10, 3.2e9, MEMORY_BYTES) for n in range(devices))
    cluster = Cluster(boards, {}, Link(bytes_per_s=1.17e8, latency_s=2e-4))
    study = Study(Problem(graph, cluster, "d0"))
    began = time.process_time()
    team, _ = choose_paper_team(study.memo)
    choices, proven = SEARCHES[partition](ByteCosts(study.memo, weights=True), team)
    search_s = time.process_time() - began
    tensors, weights = count_moved(study, choices)
    return PartitionFigures(name, len(graph.operators), partition, search_s, proven, tensors, weights)


def count_moved(study: Study, choices: Choices) -> tuple[int, int]:
    """The bytes that move of tensors, and of weights beyond one copy of each, in the lowered partition."""
    problem = study.memo.problem
    draft = lower(problem, study.candidates.make("partition", choices, ""), study.memo.coarse.accesses)
    home = problem.gateway
    tensors = sum(draft.nbytes(m) for m in draft.moves if (m.source or home) != (m.target or home))
    by_device: dict[str, list[Share]] = {}
    for share in draft.shares.values():
        by_device.setdefault(share.device, []).append(share)
    held = sum(_bytes_once(draft.graph, weights_of(draft, shares)) for shares in by_device.values())
    return tensors, held - _bytes_once(draft.graph, weights_of(draft, draft.shares.values()))


def _bytes_once(graph: Graph, regions: Iterable[tuple[str, Region]]) -> int:
    """The bytes of these regions of weights; what is in several of them counts once."""
    found: dict[str, list[Region]] = {}
    for name, region in regions:
        before = found.setdefault(name, [])
        before.extend(region.subtract_all(before))
    sizes = {name: sum(region.size for region in parts) for name, parts in found.items()}
    return sum(
        size * graph.constants[name].nbytes // graph.constants[name].region.size
        for name, size in sizes.items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tofu", description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args(arguments)
    collect_rarely()
    made: list[PartitionFigures] = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            graph = load_graph(MODELS[name](Path(folder)))
            for partition in SEARCHES:
                made.append(measure(name, graph, partition, options.devices))
                note(f"{name}, {partition}: {made[-1].search_s:.3f} s, {format_bytes(made[-1].moved_bytes)}")
    say(f"Partitions for {options.devices} devices, on {sentence()}, one core.")
    show_table(_table(made), options.markdown)
    if options.json:
        document = {"machine": describe(), "partitions": [asdict(one) for one in made]}
        options.json.write_text(json.dumps(document, indent=2))
    return 0


def _table(made: Sequence[PartitionFigures]) -> Table:
    columns = (
        "model",
        "operators",
        "partition",
        "search",
        "paper's",
        "moved",
        "of weights",
        "against tofu",
        "proven",
    )
    least = {one.model: one.moved_bytes for one in made if one.partition == "tofu"}
    rows = [
        (
            one.model,
            str(one.operators),
            one.partition,
            format_seconds(one.search_s),
            PAPER.get((one.model, one.partition), ""),
            format_bytes(one.moved_bytes),
            format_bytes(one.weight_bytes),
            f"{one.moved_bytes / least[one.model]:.2f}x",
            "yes" if one.proven else "no",
        )
        for one in made
    ]
    return table(columns, rows, right=columns[3:8])


if __name__ == "__main__":
    sys.exit(main())
