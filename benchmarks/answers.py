"""Check that every plan gives the answers of one ONNX Runtime session: models x strategies, on three real agents.

    python -m benchmarks.answers [--quick] [--json FILE]

Exits with 1 if an answer differs by more than the product allows (agent/verify/same_answer.py,
tolerance_for).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.comparing import TOLERANCE, differences, largest_difference, run_alone, tolerance_for
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import all_light, real_models, sample_inputs
from benchmarks.serving import client_of, deploy
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.output import note, say, table
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import EdgepartError, UsageError
from edgepart.planner.model.load import load_graph

NAMES = ("a", "b", "c")
AXES = ("height", "width", "channel")
WAYS: tuple[tuple[str, str | None], ...] = (
    *((name, None) for name in ("single", "modnn", "deepthings", "bbgrap", "auto")),
    *(("bbgrap", axis) for axis in AXES),
)
"""Pairs of a strategy and the axis that it has to split along, or None."""

QUICK = ("squeezenet", "shufflenet", "ppocr_cls", "silero_vad")


@dataclass(frozen=True)
class Case:
    """A model to try."""

    name: str
    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    inputs: Mapping[str, Any]
    allowed: float | None
    """Tolerance for the outputs; None means the tolerance of their element types."""


@dataclass(frozen=True)
class Outcome:
    """The result of one model under one strategy and axis."""

    model: str
    way: str
    devices: tuple[str, ...] = ()
    difference: float | None = None
    """Largest over outputs and agents asked, relative to each output's largest magnitude; None if not deployed."""
    allowed: float = TOLERANCE
    wrong: tuple[str, ...] = ()
    """One sentence for each difference or failure."""
    note: str = ""
    """The planner's reason why there is no plan of that kind."""
    why: str = field(default="", repr=False)
    seconds: float = 0.0

    @property
    def cell(self) -> str:
        if self.difference is None:
            return "FAILED" if self.wrong else "no such axis"
        return f"{'WRONG ' if self.wrong else ''}{self.difference:.0e} on {len(self.devices)}"


def cases(names: Sequence[str] | None) -> Iterator[Case]:
    """Yield the light models, then the trained ones; only those in `names` unless it is None."""
    for name, path in all_light():
        if names is None or name in names:
            graph = load_graph(path)
            yield Case(name, path, {}, sample_inputs(graph), tolerance_for(graph))
    for model in real_models():
        if names is None or model.name in names:
            graph = load_graph(model.path, shapes=model.shapes)
            yield Case(model.name, model.path, model.shapes, model.inputs(0), tolerance_for(graph))


def way_name(way: tuple[str, str | None]) -> str:
    return way[0] if way[1] is None else f"{way[0]} {way[1]}"


async def outcome(
    clients: Sequence[AsyncClient],
    case: Case,
    way: tuple[str, str | None],
    expected: Mapping[str, Any],
) -> Outcome:
    """Deploy the model, ask every agent once and undeploy it."""
    began = time.monotonic()
    model, called = case.name, way_name(way)
    name = f"{case.name}-{'-'.join(filter(None, way))}"
    options = DeployOptions(shapes=dict(case.shapes), strategy=way[0], axis=way[1])
    try:
        plan = await deploy(clients[0], case.path, name, options)
    except UsageError as error:
        return Outcome(model, called, note=str(error))
    except EdgepartError as error:
        return Outcome(model, called, wrong=(f"{type(error).__name__}: {error}",))
    worst, wrong = 0.0, list[str]()
    try:
        for number, client in enumerate(clients):
            got = (await client.infer(name, case.inputs)).outputs
            worst = max(worst, largest_difference(got, expected))
            wrong += [f"at {NAMES[number]}: {text}" for text in differences(got, expected, case.allowed)]
    except EdgepartError as error:
        wrong.append(f"{type(error).__name__}: {error}")
    finally:
        await clients[0].undeploy(name)
    return Outcome(
        model,
        called,
        devices=tuple(plan["devices"]),
        difference=worst,
        allowed=case.allowed or TOLERANCE,
        wrong=tuple(wrong),
        why=str(plan["why"]),
        seconds=time.monotonic() - began,
    )


async def outcomes(cluster: LocalCluster, names: Sequence[str] | None) -> list[Outcome]:
    found: list[Outcome] = []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(agent)) for agent in cluster.living]
        for case in cases(names):
            expected = run_alone(case.path, case.inputs)
            for way in WAYS:
                found.append(await outcome(clients, case, way, expected))
            mine = found[-len(WAYS) :]
            note(f"{case.name}: {', '.join(one.cell for one in mine)} ({sum(o.seconds for o in mine):.0f} s)")
    return found


def show(found: Sequence[Outcome], seconds: float) -> None:
    cells: dict[str, dict[str, str]] = {}
    for one in found:
        cells.setdefault(one.model, {})[one.way] = one.cell
    columns = [way_name(way) for way in WAYS]
    rows = [(model, *(row.get(way, "-") for way in columns)) for model, row in cells.items()]
    say(f"largest difference from one session, relative, and devices used; {sentence()}")
    show_table(table(("model", *columns), rows, right=columns))
    for one in found:
        for text in one.wrong:
            say(f"{one.model} under {one.way}: {text}")
        if one.note:
            say(f"{one.model} under {one.way}: {one.note}")
    for model in dict.fromkeys(one.model for one in found if one.allowed > TOLERANCE):
        allowed = next(one.allowed for one in found if one.model == model)
        say(f"{model} computes in less than float32: {allowed:g} of the largest magnitude is allowed")
    bad = sum(bool(one.wrong) for one in found)
    say(f"{len(found)} deployments in {seconds:.0f} s, {bad} with a wrong answer or none")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write every outcome there")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--models", help="only these, separated by commas")
    options = parser.parse_args(arguments)
    names = options.models.split(",") if options.models else QUICK if options.quick else None
    began = time.monotonic()
    with LocalCluster(NAMES, options=("--threads", "1")) as cluster:
        found = asyncio.run(outcomes(cluster, names))
    seconds = time.monotonic() - began
    show(found, seconds)
    if options.json:
        document = {"machine": describe(), "seconds": seconds, "outcomes": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(document, indent=2))
    return int(not found or any(one.wrong for one in found))


if __name__ == "__main__":
    sys.exit(main())
