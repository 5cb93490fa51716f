"""Check that every model gives the same answers under every strategy on real agents, for several numbers of devices.

    python -m benchmarks.everywhere --json results/everywhere.json [--models a b] [--docs docs/models.md]

One cluster has three agents, as processes with the options of a deployment. Each model is deployed on two of them and
on all three, asked through an agent that computes and through the last one, compared with one ONNX Runtime session over
its file, and undeployed. Every cell is written as soon as it is there. Cells that are already in the file are not tried
again, except faults. Exits with 1 if an answer is wrong or something failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparing import Values, differences, largest_difference, run_alone, tolerance_for
from benchmarks.every_axis import ANYTHING, SATURATED
from benchmarks.everywhere_report import Cell, Cells, Key, Outcome, notes, page, rewritten, summary
from benchmarks.machine import commit, describe, sentence
from benchmarks.models import SMALL, ZOO, Model, zoo_model
from benchmarks.serving import client_of, deploy
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.output import note, say
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import ClusterError, EdgepartError, Infeasible, UsageError
from edgepart.planner.model.load import load_graph

NAMES = ("a", "b", "c")
STRATEGIES = ("single", "auto", "bbgrap", "optcnn", "tofu", "pipeline")
COUNTS = (2, 3)
REQUESTS = 2
"""Requests per cell, each with inputs of another seed."""
WITHIN_S = 600.0
"""Time limit of a cell, longer than any of them takes; a cell that exceeds it has failed."""
DEADLINE_S = 120.0
REFUSED = "is not served"
"""Words in a plan's reason that another plan was refused, because its answers were not the model's."""


@dataclass(frozen=True)
class Case:
    """A model to try, with its inputs and expected answers."""

    model: Model

    @cached_property
    def inputs(self) -> list[Values]:
        return [self.model.inputs(seed) for seed in range(REQUESTS)]

    @cached_property
    def expected(self) -> list[Values]:
        """The answers of one session to each input, with maps as JSON has them."""
        answers = (run_alone(self.model.path, inputs) for inputs in self.inputs)
        return [{name: _mapped(value) for name, value in one.items()} for one in answers]

    @cached_property
    def telling(self) -> bool:
        """Whether the answer to other inputs would be recognised as wrong."""
        first, *others = self.expected
        return all(differences(other, first, self.allowed) for other in others)

    @cached_property
    def allowed(self) -> float | None:
        if self.model.name in SATURATED:
            return ANYTHING
        return tolerance_for(load_graph(self.model.path, shapes=self.model.shapes))


def wanted(
    names: Sequence[str], strategies: Sequence[str], counts: Sequence[int], known: Cells
) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield each model with its cells to try: all except those that went well before."""
    for name in names:
        missing = [
            (strategy, count)
            for strategy in strategies
            for count in counts
            if (cell := known.get((name, strategy, count))) is None or cell.is_fault
        ]
        if missing:
            yield name, missing


async def tried(clients: Sequence[AsyncClient], case: Case, strategy: str, count: int) -> Cell:
    """Deploy a model, ask it, undeploy it and return its cell."""
    began = time.monotonic()
    name = f"{case.model.name}-{strategy}-{count}"
    blank = Cell(case.model.name, strategy, count, Outcome.FAILED, allowed=case.allowed, telling=case.telling)
    options = DeployOptions(shapes=dict(case.model.shapes), strategy=strategy, devices=NAMES[:count])
    try:
        async with asyncio.timeout(WITHIN_S):
            await deploy(clients[0], case.model.path, name, options)
            cell = await _asked(clients, case, name, blank)
            await clients[0].undeploy(name)
    except (UsageError, Infeasible) as error:
        cell = replace(blank, outcome=Outcome.NOT_PLANNED, text=str(error))
    except (EdgepartError, TimeoutError) as error:
        cell = replace(blank, text=f"{type(error).__name__}: {error}")
        await _cleared(clients[0], name)
    return replace(cell, seconds=round(time.monotonic() - began, 1))


async def _cleared(client: AsyncClient, name: str) -> None:
    """Undeploy what a failed cell may have left. If the cluster does not even do that, the next cell will show it."""
    try:
        await client.undeploy(name)
    except EdgepartError as error:
        note(f"{name} is not undeployed: {error}")


async def _asked(clients: Sequence[AsyncClient], case: Case, name: str, blank: Cell) -> Cell:
    """Send each request through another agent, and return the cell. The last agent may be one that computes
    nothing."""
    worst, wrong = 0.0, list[str]()
    for number, (inputs, expected) in enumerate(zip(case.inputs, case.expected, strict=True)):
        answer = await clients[-number].infer(name, inputs, timeout_s=DEADLINE_S)
        got = {output: _restored(value, expected.get(output)) for output, value in answer.outputs.items()}
        worst = max(worst, largest_difference(got, expected), key=_worse)
        wrong += [
            f"asked through {NAMES[-number]}, {text}" for text in differences(got, expected, case.allowed)
        ]
    plan = await clients[0].get(f"/api/models/{name}/plan")
    used = tuple(device for device, one in plan["devices"].items() if one["segments"])
    outcome, text = Outcome.RIGHT, ""
    if wrong:
        outcome, text = Outcome.WRONG, "; ".join(wrong)
    elif REFUSED in plan["why"]:
        outcome, text = Outcome.REFUSED, plan["why"]
    excuse = SATURATED.get(case.model.name, "") if outcome is Outcome.REFUSED else ""
    return replace(blank, outcome=outcome, used=used, difference=worst, text=text, excuse=excuse)


def _mapped(value: Any) -> Any:
    """Return a value as JSON gives it back: keys of maps become texts."""
    return value if isinstance(value, np.ndarray) else json.loads(json.dumps(value))


def _restored(value: Any, expected: Any) -> Any:
    """Return an output in its expected form. Sequences and maps come as one text of JSON."""
    return value if isinstance(expected, np.ndarray) else json.loads(value.item())


def _worse(difference: float) -> float:
    """Return a sort key by which nan is worse than any number."""
    return float("inf") if difference != difference else difference


async def collect(cluster: LocalCluster, todo: Sequence[tuple[str, Any]], known: Cells, kept: Path) -> Cells:
    """Try the cells and return them with the known ones. Raises ClusterError if an agent died; cells written
    so far stay."""
    found, source, machine = dict(known), commit(), sentence()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(agent)) for agent in cluster.living]
        for name, missing in todo:
            case = Case(zoo_model(name))
            for strategy, count in missing:
                cell = replace(await tried(clients, case, strategy, count), commit=source, machine=machine)
                found[cell.key] = cell
                write(kept, found)
                note(_line(cell))
                if len(cluster.living) < len(NAMES):
                    raise ClusterError(f"an agent died over {name} under {strategy} on {count} devices")
    return found


def _line(cell: Cell) -> str:
    said = f"{cell.difference:.0e} on {len(cell.used)}" if cell.difference is not None else cell.text
    return f"{cell.model} {cell.strategy} {cell.devices}: {cell.outcome.value}, {said} ({cell.seconds:.1f} s)"


def read(path: Path) -> dict[Key, Cell]:
    """Return the cells in a file; {} if there is no file."""
    if not path.exists():
        return {}
    cells = (
        Cell(**{**one, "outcome": Outcome(one["outcome"]), "used": tuple(one["used"])})
        for one in json.loads(path.read_text())["cells"]
    )
    return {cell.key: cell for cell in cells}


def write(path: Path, cells: Cells) -> None:
    """Write all cells atomically, because the program may be stopped at any time."""
    document = {"machine": describe(), "cells": [asdict(cell) for cell in cells.values()]}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(document, indent=1))
    beside.replace(path)


def ordered(cells: Cells, names: Sequence[str]) -> Cells:
    """Return the cells in the order of the models, whatever the order in which they were tried."""
    places = {name: place for place, name in enumerate(names)}
    return dict(sorted(cells.items(), key=lambda one: places.get(one[0][0], len(places))))


def main(arguments: Sequence[str] | None = None) -> int:
    names = [*SMALL, *ZOO]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.everywhere", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=names, metavar="NAME", help="only these; default: all")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--devices", nargs="+", type=int, default=COUNTS, choices=COUNTS)
    parser.add_argument("--json", type=Path, required=True, help="every cell is kept there")
    parser.add_argument("--docs", type=Path, help="a document whose table is written anew")
    options = parser.parse_args(arguments)
    known = read(options.json)
    todo = list(wanted(options.models, options.strategies, options.devices, known))
    found: Cells = known
    if todo:
        with LocalCluster(NAMES, options=("--threads", "1")) as cluster:
            found = asyncio.run(collect(cluster, todo, known, options.json))
    found = ordered(found, names)
    for line in (*summary(found), *notes(found)):
        say(line)
    if options.docs is not None:
        figures = page(found, STRATEGIES, COUNTS, date.today().isoformat())
        options.docs.write_text(rewritten(options.docs.read_text(), figures))
    return int(not found or any(cell.is_fault for cell in found.values()))


if __name__ == "__main__":
    sys.exit(main())
