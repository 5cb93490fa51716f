"""Check that `auto` finds the best plan that any strategy finds: models x clusters x links, simulated.

    python -m benchmarks.dominance [--quick] [--models resnet50 vgg19] [--clusters "2 equal"] [--processes 2] [--json FILE]

In every cell the predicted latency of `auto` has to be at most that of every other strategy. No device may hurt: auto's
plan must not become faster by more than 1 % without any one of its devices. Prints the ratios; exits with 1 if a cell
fails. With --json every cell is written as soon as it is measured, and cells that are already in the file are not
measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean

from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import LIGHT, light, zoo_model
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.cli.output import note, say, table
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import compare
from edgepart.planner.search.moves import devices_of, leave_out
from edgepart.planner.search.study import Study

OTHERS = ("vit_b16", "bert_base")
MODELS = (*LIGHT, *OTHERS)

FLOPS_PER_S, MEMORY_BYTES_PER_S, MEMORY_BYTES = 1.2e10, 3e9, 8e9
"""About those of a Raspberry Pi 4."""

BITS_PER_S = (1e8, 1e9, 1e10)
PAYLOAD, LATENCY_S = 0.94, 2e-4
"""The share of a link's bits that carries the message itself, and the link's delay."""

SPEEDS: Mapping[str, tuple[float, ...]] = {
    "2 equal": (1, 1),
    "4 equal": (1,) * 4,
    "8 equal": (1,) * 8,
    "1:2:4:8": (1, 2, 4, 8),
    "1 slow of 4": (1, 1, 1, 0.1),
    "1 slow link of 4": (1, 1, 1, 1),
}
"""Maps a cluster to the relative speed of each of its devices."""

HURTS = 0.99
"""A device hurts if the plan without it takes less than this share of the latency."""

QUICK = (("squeezenet", "bvlc_alexnet"), (("2 equal", 1e9), ("1:2:4:8", 1e9), ("1 slow link of 4", 1e8)))
"""Models and cells for a test."""

ROUNDING = 1e-9

Where = tuple[str, str, float]
"""Model, cluster, and bits per second of its links."""


@dataclass(frozen=True)
class Cell:
    """One model on one cluster."""

    model: str
    cluster: str
    bits_per_s: float
    seconds: Mapping[str, float]
    """Predicted latency by strategy; strategies that do not fit are left out."""
    used: tuple[str, ...]
    """Devices that compute something in auto's plan."""
    lighter: float
    """Latency of auto's plan without its most dispensable device, over its latency; inf if it uses one device."""
    searched_s: float
    """CPU seconds for all strategies."""

    @property
    def others(self) -> dict[str, float]:
        return {name: s for name, s in self.seconds.items() if name != "auto"}

    @property
    def next_best(self) -> str:
        return min(self.others, key=lambda name: (self.others[name], name))

    @property
    def ratio(self) -> float:
        """Latency of the best other strategy over that of auto."""
        return self.others[self.next_best] / self.seconds["auto"]

    @property
    def dominated(self) -> bool:
        return self.ratio < 1 - ROUNDING

    @property
    def hurts(self) -> bool:
        return self.lighter < HURTS


def cluster(name: str, bits_per_s: float) -> Cluster:
    """Return a cluster of `SPEEDS`. All links are alike, except those to the last device if its name says
    "slow link"."""
    devices = tuple(
        Device(f"d{n}", "board", FLOPS_PER_S * speed, MEMORY_BYTES_PER_S * speed, MEMORY_BYTES)
        for n, speed in enumerate(SPEEDS[name])
    )
    link = Link(PAYLOAD * bits_per_s / 8, LATENCY_S)
    slow = Link(link.bytes_per_s / 10, LATENCY_S)
    last = devices[-1].name
    links = {(d.name, last): slow for d in devices[:-1]} if "slow link" in name else {}
    return Cluster(devices, links, link)


@lru_cache(maxsize=1)
def graph(model: str) -> Graph:
    return load_graph(light(model) if model in LIGHT else zoo_model(model).path)


def measure(where: Where) -> Cell:
    """Run all strategies in one cell."""
    model, name, bits_per_s = where
    start = time.process_time()
    study = Study(Problem(graph(model), cluster(name, bits_per_s), "d0"))
    results = {r.name: r for r in compare(study.memo.problem, study)}
    seconds = {name: r.simulation.latency_s for name, r in results.items() if r.simulation is not None}
    best = results["auto"].strategy
    assert best is not None  # Every device has memory for these models.
    used = tuple(study.scorer.outline(best).compute_s)
    searched_s = time.process_time() - start
    lighter = min(_lighter(study, best), default=float("inf")) / seconds["auto"]
    return Cell(model, name, bits_per_s, seconds, used, lighter, searched_s)


def _lighter(study: Study, best: Strategy) -> Iterator[float]:
    """Yield the seconds of the plan without each of its devices."""
    choices = study.candidates.choices_of(best)
    named = devices_of(choices)
    for device in named if len(named) > 1 else ():
        instead = min((name for name in named if name != device), key=study.memo.by_speed.index)
        yield study.scorer.outline(
            study.candidates.make("auto", leave_out(choices, device, instead), "")
        ).latency_s


def cells(models: Sequence[str], clusters: Sequence[str]) -> list[Where]:
    """Return all cells, ordered by model, cluster and link."""
    return list(product(models, clusters, BITS_PER_S))


def run(wanted: Sequence[Where], processes: int, kept: Path | None = None) -> list[Cell]:
    """Return the wanted cells in their order. Cells in the file `kept` are taken from it; others are measured
    and added to it."""
    known = {(cell.model, cell.cluster, cell.bits_per_s): cell for cell in _read(kept)}
    missing = [where for where in wanted if where not in known]
    for cell in _measured(missing, processes):
        known[cell.model, cell.cluster, cell.bits_per_s] = cell
        said = f"{cell.ratio:.4f}, {cell.next_best} {_verdict(cell)}"
        note(f"{cell.model}, {cell.cluster}, {_rate(cell.bits_per_s)}: {said} ({cell.searched_s:.0f} s)")
        if kept is not None:
            _write(kept, list(known.values()))
    return [known[where] for where in wanted]


def _measured(wanted: Sequence[Where], processes: int) -> Iterator[Cell]:
    if processes == 1:
        collect_rarely()
        yield from map(measure, wanted)
        return
    with get_context("spawn").Pool(processes, collect_rarely) as pool:
        yield from pool.imap(measure, wanted, chunksize=3)


def _read(path: Path | None) -> list[Cell]:
    if path is None or not path.exists():
        return []
    return [Cell(**{**one, "used": tuple(one["used"])}) for one in json.loads(path.read_text())["cells"]]


def _write(path: Path, found: Sequence[Cell]) -> None:
    """Write all cells atomically, because the program may be stopped at any time."""
    document = {"machine": describe(), "cells": [asdict(cell) for cell in found]}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(document, indent=2))
    beside.replace(path)


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:g} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:g} Mbit/s"


def _verdict(cell: Cell) -> str:
    if cell.dominated:
        return f"{cell.next_best} is faster"
    return "a device hurts" if cell.hurts else ""


def show(found: Sequence[Cell]) -> None:
    columns = ("model", "cluster", "links", "auto ms", "devices", "single / auto", "next / auto", "next", "")
    rows = [
        (
            cell.model,
            cell.cluster,
            _rate(cell.bits_per_s),
            f"{cell.seconds['auto'] * 1e3:.1f}",
            str(len(cell.used)),
            f"{cell.seconds['single'] / cell.seconds['auto']:.2f}",
            f"{cell.ratio:.3f}",
            cell.next_best,
            _verdict(cell),
        )
        for cell in found
    ]
    show_table(
        table(columns, rows, right=("auto ms", "devices", "single / auto", "next / auto")),
    )


def summary(found: Sequence[Cell]) -> str:
    mean = geometric_mean([cell.ratio for cell in found])
    beaten = sum(cell.dominated for cell in found)
    strictly = sum(cell.ratio > 1 + ROUNDING for cell in found)
    return (
        f"{len(found)} cells: auto is the fastest alone in {strictly}, beaten in {beaten}; a "
        f"device hurts in {sum(c.hurts for c in found)}. Mean of next / auto: {mean:.3f}."
    )


def show_grid(found: Sequence[Cell]) -> None:
    """Print a Markdown table: latency of the next best strategy over that of `auto`, by links from slow to fast."""
    clusters = tuple(dict.fromkeys(cell.cluster for cell in found))
    rows = []
    for model in dict.fromkeys(cell.model for cell in found):
        ratios = {c: [x.ratio for x in found if (x.model, x.cluster) == (model, c)] for c in clusters}
        rows.append((model, *(", ".join(f"{ratio:.3f}" for ratio in ratios[c]) for c in clusters)))
    show_table(table(("model", *clusters), rows), markdown=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dominance", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="two models on three clusters")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--clusters", nargs="+", choices=SPEEDS, default=tuple(SPEEDS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--markdown", action="store_true", help="print a grid as documents have it")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    options = parser.parse_args(arguments)
    quick = [(model, *where) for model in QUICK[0] for where in QUICK[1]]
    wanted = quick if options.quick else cells(options.models, options.clusters)
    found = run(wanted, options.processes, options.json)
    say(f"On {sentence()}.")
    (show_grid if options.markdown else show)(found)
    say(summary(found))
    return int(any(cell.dominated or cell.hurts for cell in found))


if __name__ == "__main__":
    sys.exit(main())
