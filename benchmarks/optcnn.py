"""OptCNN's findings on its own networks and machines, planned and simulated, beside the paper's figures.

    python -m benchmarks.optcnn [--networks VGG-16] [--devices 4 16] [--markdown] [--json F]

The paper trains on 16 P100 GPUs of 4 hosts (benchmarks/optcnn_graphs.py describes them as devices and links); nothing
is run here. "Training" is the search under the paper's cost of a step (benchmarks/optcnn_training.py), "inference" is
the product's own strategy, with its simulated latency. The tables:

- the configurations of VGG-16 on one host, as in the paper's table 5, and what they depend on (optcnn_table5.py);
- how long the search takes and how many nodes it leaves to enumerate, as in table 3;
- how many times as many images a second as one GPU: the layer-wise search, and the best of data, model and OWT parallelism.
  The batch is 32 images for each GPU. For inference, how many times as fast as the best of the three;
- by how much the sum over layers and tensors differs from what the simulator predicts for the same strategy. The paper's
  table 4 has the difference from measured steps; nothing is measured here.

Prints tables; nothing here passes or fails."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import describe, sentence, show_table
from benchmarks.optcnn_graphs import BATCH, NETWORKS, study_of
from benchmarks.optcnn_table5 import SCALING, configurations, readings_table
from benchmarks.optcnn_training import baselines, make_step
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.cli.output import note, say, table
from edgepart.planner.layerwise.elimination import minimise
from edgepart.planner.strategies.registry import get

if TYPE_CHECKING:
    from rich.table import Table

READ = ("AlexNet", "VGG-16")
"""The networks of which each reading's speed-up is shown; Inception-v3's tables would take minutes more."""

TABLE_3 = {"AlexNet": (11, 0.02), "VGG-16": (21, 0.1), "Inception-v3": (102, 0.4)}
"""The paper's numbers of layers, and the seconds of its search for 4 GPUs; two nodes are left of each network."""

TABLE_4 = {
    "AlexNet": {1: 0.01, 2: 0.04, 4: -0.05, 8: 0.02, 16: -0.01},
    "VGG-16": {1: 0.0, 2: 0.03, 4: 0.02, 8: 0.06, 16: 0.07},
    "Inception-v3": {1: 0.01, 2: 0.05, 4: 0.05, 8: 0.09, 16: 0.06},
}
"""The paper's differences of estimated and measured seconds of a step, by network and number of GPUs."""


@dataclass(frozen=True)
class Scaling:
    """What one network gains from several GPUs."""

    network: str
    devices: int
    training: float
    """Images a second, as a multiple of one GPU's, under the configurations that the search finds."""
    best_other: float
    """The same of the best baseline."""
    other: str
    """The name of that baseline."""
    proven: bool
    """Whether no configurations cost less, for training and for inference."""
    inference_s: float
    """Simulated seconds of one request, under the product's strategy."""
    best_inference_s: float
    """The same of the best baseline."""
    sum_s: float
    """What the search says of the same request: its sum over layers and tensors."""

    @property
    def error(self) -> float:
        return self.sum_s / self.inference_s - 1


def measure(network: str, counts: Sequence[int]) -> Iterator[Scaling]:
    """Yields what the network gains from each number of GPUs."""
    one_s = make_step(study_of(network, 1)).solve().cost
    for devices in counts:
        study = study_of(network, devices)
        step = make_step(study)
        found = step.solve()
        others = {name: step.seconds_along(axis_of) for name, axis_of in baselines(study).items()}
        other = min(others, key=lambda name: others[name])
        served = minimise(step.problem.unary, step.problem.edges)
        strategy = study.candidates.make("optcnn", step.problem.choices_of(served.choice), "")
        rivals = [study.scorer.pick_best(list(get(name)(study))) for name in others]
        yield Scaling(
            network,
            devices,
            one_s * devices / found.cost,
            one_s * devices / others[other],
            other,
            found.exact and served.exact and step.problem.is_whole,
            study.scorer.forecast(strategy).latency_s,
            min(study.scorer.forecast(rival).latency_s for rival in rivals),
            served.cost,
        )


def scaling_table(made: Sequence[Scaling]) -> Table:
    columns = (
        "network", "GPUs", "images", "layer-wise", "paper's", "best other", "paper's", "which", "gain", "paper's gain",
        "inference", "inference gain", "proven",
    )  # fmt: skip
    rows = []
    for one in made:
        paper, other = SCALING[one.network] if one.devices == 16 else (0.0, 0.0)
        rows.append(
            (
                one.network,
                str(one.devices),
                str(BATCH * one.devices),
                f"{one.training:.1f}x",
                f"{paper:.1f}x" if paper else "",
                f"{one.best_other:.1f}x",
                f"{other:.1f}x" if other else "",
                one.other,
                f"{one.training / one.best_other:.2f}x",
                f"{paper / other:.2f}x" if other else "",
                f"{one.inference_s * 1e3:.3g} ms",
                f"{one.best_inference_s / one.inference_s:.2f}x",
                "yes" if one.proven else "no",
            )
        )
    found = table(columns, rows, right=(*columns[1:7], *columns[8:12]))
    found.title = "Images a second against one GPU, training; and inference against the best other"
    return found


def search_table(networks: Sequence[str]) -> Table:
    """The search for 4 GPUs. The tables that it is given are not counted, as the paper's are not."""
    rows = []
    for network in networks:
        study = study_of(network, 4)
        step = make_step(study)
        began = time.perf_counter()
        found = step.solve()
        took_s = time.perf_counter() - began
        layers, paper_s = TABLE_3[network]
        counts = (len(study.memo.layers), layers, len(step.problem.nodes), len(found.steps[-1].nodes), 2)
        rows.append((network, *map(str, counts), f"{took_s:.2g} s", f"{paper_s:g} s"))
    columns = ("network", "layers", "paper's", "nodes", "nodes left", "paper's", "search", "paper's")
    found_table = table(columns, rows, right=columns[1:])
    found_table.title = "The search for 4 GPUs"
    return found_table


def error_table(made: Sequence[Scaling]) -> Table:
    rows = [
        (one.network, str(one.devices), f"{one.error:+.1%}", f"{TABLE_4[one.network][one.devices]:+.0%}")
        for one in made
    ]
    columns = ("network", "GPUs", "sum against simulated", "paper's, against measured")
    found = table(columns, rows, right=columns[1:])
    found.title = "The sum that the search minimises, against the simulator"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optcnn", description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--devices", nargs="+", type=int, choices=(1, 2, 4, 8, 16), default=[4, 16])
    parser.add_argument("--markdown", action="store_true", help="print tables as documents have them")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args(arguments)
    collect_rarely()
    found = table(("layers", "paper's", "training", "inference"), list(configurations()))
    found.title = f"VGG-16 with {BATCH} images on 4 GPUs of one host"
    made: list[Scaling] = []
    for network in options.networks:
        for one in measure(network, options.devices):
            made.append(one)
            note(f"{network}, {one.devices} GPUs: {one.training:.1f}x, {one.other} {one.best_other:.1f}x")
    say(f"Planned and simulated on {sentence()}.")
    for each in (
        found,
        readings_table(READ),
        search_table(options.networks),
        scaling_table(made),
        error_table(made),
    ):
        say("")
        show_table(each, options.markdown)
    if options.json:
        options.json.write_text(
            json.dumps({"machine": describe(), "scaling": [asdict(one) for one in made]}, indent=2)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
