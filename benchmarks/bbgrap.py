"""BBGraP's batch sweep (its figure 7): ResNet-50 on one to three equal nodes, batches of 1, 10, 50 and 100, as simulated.

    python -m benchmarks.bbgrap [--batches 1 10 50 100] [--markdown] [--json F]

The paper's nodes have an Intel i5-10400. It divides output channels only, as its runtime could do no more, and its text
names neither the network nor how much of the processor its runtime used. So there is a table for each of SETTINGS, with the
speed that is published for that processor, reduced to what convolutions achieve. Beside channels there are directions that
the paper could not run: rows, and the batch itself. All are `bbgrap` with that axis; layers that lack it are divided along
another one, or are whole.

What the paper says of its figure is PAPER; the heights of its bars are not in its text. Prints tables; nothing here passes
or fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import show_table
from benchmarks.models.vision import resnet50
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.cli.output import note, say, table
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan

if TYPE_CHECKING:
    from rich.table import Table

BATCHES = (1, 10, 50, 100)
NODES = (1, 2, 3)
AXES = ("channel", "height", "batch")
"""Directions: the paper's, and two of which it says that its runtime was limited not to use them (section 4.2)."""
PAPER: Mapping[int, str] = {
    1: "1",
    2: "less, significantly",
    3: "no less than on 2, more for large batches; 0.70 at best",
}
"""Latency against one node, in the words of section 4.2 and of the abstract."""

FLOPS_PER_S = 0.6 * 6 * 4.0e9 * 32
"""An i5-10400: 6 cores at 4.0 GHz with AVX2 (32 FLOPs a cycle); convolutions achieve about 60 % of that."""
MEMORY_BYTES_PER_S = 0.7 * 41.6e9
"""Two channels of DDR4-2666, of which 70 % are achieved."""
MEMORY_BYTES = 16e9
LATENCY_S = 1e-4
SETTINGS = ((1.0, 1e9), (1.0, 1e10), (0.1, 1e10))
"""The share of that speed which a node has, and the bits a second of each link. The last nodes are so slow that moving all
channels to everybody pays, as it did for the paper."""


@dataclass(frozen=True)
class SweepFigures:
    """One bar: the latency that is predicted for a batch on a number of nodes."""

    speed: float
    """The node's share of the speed of an i5-10400."""
    bits_per_s: float
    batch: int
    nodes: int
    axis: str
    latency_s: float
    sent_bytes: int


def nodes_of(count: int, speed: float, bits_per_s: float) -> Cluster:
    boards = tuple(
        Device(
            f"node-{n + 1}",
            "i5-10400",
            speed * FLOPS_PER_S,
            speed * MEMORY_BYTES_PER_S,
            MEMORY_BYTES,
            threads=6,
        )
        for n in range(count)
    )
    return Cluster(boards, {}, Link(bytes_per_s=bits_per_s / 8, latency_s=LATENCY_S))


def predict(graph: Graph, batch: int, nodes: int, axis: str, speed: float, bits_per_s: float) -> SweepFigures:
    """The plan that divides along this axis, as simulated. `graph` has that batch."""
    problem = Problem(graph, nodes_of(nodes, speed, bits_per_s), "node-1", axis=axis)
    _, found, _ = choose_plan(problem, "bbgrap")
    sent = sum(found.sent_bytes.values())
    return SweepFigures(speed, bits_per_s, batch, nodes, axis, found.latency_s, sent)


def sweep(graph: Graph, batch: int, speed: float, bits_per_s: float) -> list[SweepFigures]:
    """One batch on each number of nodes, along each direction that it has."""
    axes = AXES if batch > 1 else AXES[:2]
    return [
        predict(graph, batch, nodes, axis, speed, bits_per_s)
        for nodes in NODES
        for axis in (axes if nodes > 1 else AXES[:1])
    ]


def setting(speed: float, bits_per_s: float) -> str:
    part = "" if speed == 1 else f"{speed:.0%} of "
    return f"nodes with {part}an i5-10400 and links of {bits_per_s / 1e9:g} Gbit/s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bbgrap", description=__doc__.split("\n")[0])
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--markdown", action="store_true", help="print the tables as documents have them")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args(arguments)
    collect_rarely()
    made: list[SweepFigures] = []
    for batch in options.batches:
        graph = load_graph(resnet50(batch=batch).SerializeToString())
        for speed, rate in SETTINGS:
            made += sweep(graph, batch, speed, rate)
            note(f"batch {batch} on {setting(speed, rate)}: {made[-1].latency_s:.3f} s on {NODES[-1]} nodes")
    for speed, rate in SETTINGS:
        say(f"\nResNet-50, predicted for {setting(speed, rate)}:\n")
        rows = [one for one in made if (one.speed, one.bits_per_s) == (speed, rate)]
        show_table(sweep_table(rows), options.markdown)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in made], indent=2))
    return 0


def sweep_table(made: Sequence[SweepFigures]) -> Table:
    """A row for each batch and number of nodes: the seconds along channels, and each direction against one node."""
    columns = (
        "batch",
        "nodes",
        "along channels",
        "sent",
        "against one node",
        "rows",
        "batch",
        "paper, along channels",
    )
    found = {(one.batch, one.nodes, one.axis): one for one in made}
    rows = []
    for one in made:
        if one.axis != AXES[0]:
            continue
        alone = found[one.batch, 1, AXES[0]].latency_s
        others = [found.get((one.batch, one.nodes, axis)) for axis in AXES[1:]]
        rows.append(
            (
                str(one.batch),
                str(one.nodes),
                format_seconds(one.latency_s),
                format_bytes(one.sent_bytes),
                f"{one.latency_s / alone:.2f}",
                *("" if other is None else f"{other.latency_s / alone:.2f}" for other in others),
                PAPER[one.nodes],
            )
        )
    return table(columns, rows, right=columns[:7])


if __name__ == "__main__":
    sys.exit(main())
