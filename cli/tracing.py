"""`edgepart trace`: where the time of requests goes, on every device. Door: a client of the cluster, and a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Agent, AgentTarget, Json, State, target_of
from edgepart.cli.output import console, note, print_json, progress, say
from edgepart.cli.serving import Deadline, Input, bound_metadata
from edgepart.planner.errors import ClusterError, EdgepartError, UsageError

if TYPE_CHECKING:
    from edgepart.cli.client import Client
    from edgepart.cli.tensors import Array

REQUESTS = 10
WARM_UP = 2
LONGER = 4.0
"""So many times what its requests should take a trace may last, and `SPARE_S` besides."""
SPARE_S = 20.0


def trace(
    name: Annotated[str, typer.Argument(help="As `edgepart models` shows it.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="For ui.perfetto.dev or chrome://tracing.")
    ] = Path("trace.json"),
    number: Annotated[
        int | None,
        typer.Option("-n", "--requests", min=1, help="How many requests, one at a time.", show_default="10"),
    ] = None,
    watch_s: Annotated[
        float | None,
        typer.Option(
            "--watch",
            min=0.1,
            max=600.0,
            metavar="SECONDS",
            help="Send none: record what other clients send.",
        ),
    ] = None,
    given: Input = None,
    seed: Annotated[
        int, typer.Option(help="Of the random inputs that are made where no --input is given.")
    ] = 0,
    timeout_s: Deadline = 60.0,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw the median request, a line for each device.")
    ] = False,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Record what every device does, and show where a request's time goes."""
    from edgepart.cli.perfetto import trace_events
    from edgepart.cli.summary import drawing, show, summary
    from edgepart.cli.traced import read

    target = target_of(agent, state)
    if watch_s is not None and (number is not None or given):
        raise UsageError("--watch sends no requests; leave out --requests and --input")
    with _writable(output) as file, progress({}) as bar:
        run = TraceRun(
            target, name, 0 if watch_s else (number or REQUESTS), watch_s, given or (), seed, timeout_s
        )
        document, cluster = asyncio.run(_trace(run, lambda done: bar("requests", done, run.number)))
        taken = read(document)
        events = trace_events(taken)
        json.dump(events, file, allow_nan=False)
    found = summary(taken, cluster) | {
        "output": str(output),
        "requests": {"sent": run.sent, "lost": len(run.lost), "traced": len(taken.requests())},
    }
    if as_json:
        print_json(found)
    else:
        show(found)
        if draw:
            console().print(drawing(taken))
        say(f"written to {output}: {len(events['traceEvents'])} events, for https://ui.perfetto.dev")
    if run.lost:
        raise ClusterError(
            f"{len(run.lost)} of {run.sent} requests were not answered; the first: {run.lost[0]}"
        )


@dataclass
class TraceRun:
    """What is asked for, and what became of the requests."""

    target: AgentTarget
    model: str
    number: int
    """Requests to send."""
    watch_s: float | None
    given: Sequence[str]
    seed: int
    timeout_s: float
    sent: int = 0
    lost: list[str] = field(default_factory=list)
    """Why, for each that was not answered."""


@contextlib.contextmanager
def _writable(output: Path) -> Any:
    """A file that takes the place of `output` when all is in it. UsageError where it cannot be written, before anything is
    asked of the cluster."""
    if output.is_dir():
        raise UsageError(f"--output {output}: is a folder; give a file's name")
    part = output.with_name(f".{output.name}.part")
    try:
        file = part.open("w")
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from error
    try:
        with file:
            yield file
        os.replace(part, output)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


async def _trace(run: TraceRun, report: Callable[[int], None]) -> tuple[Any, Any]:
    """The agent's trace, and its cluster's description."""
    from edgepart.agent.api.protocol import check_name
    from edgepart.cli.client import Client

    check_name(run.model)
    async with Client(run.target) as client:
        inputs, took_s = ({}, 0.0) if run.watch_s else await _inputs(client, run)
        seconds = run.watch_s or min(600.0, SPARE_S + LONGER * run.number * took_s)
        tracing = await client.trace(run.model, seconds)
        for device, why in tracing.missing.items():
            note(f"{device} does not take part: {why}")
        try:
            if run.watch_s:
                note(f"recording for {run.watch_s:g} s what clients send to {run.model}")
                await asyncio.sleep(run.watch_s)
            else:
                await _send(client, run, inputs, report)
        except BaseException:
            with contextlib.suppress(EdgepartError):
                await client.traced(tracing)
            raise
        return await client.traced(tracing), await client.get("/api/devices")


async def _inputs(client: Client, run: TraceRun) -> tuple[dict[str, Array], float]:
    """What to send, and what a request takes: some go ahead, so that caches are warm."""
    from edgepart.cli.tensors import random_inputs, read_inputs

    metadata = await client.get(f"/v2/models/{run.model}")
    cards = {card["name"]: card for card in (await client.get("/api/models"))["models"]}
    bound = bound_metadata(metadata, cards.get(run.model, {}))
    inputs = read_inputs(run.given, metadata) if run.given else random_inputs(bound, run.seed)
    took_s = 0.0
    for _ in range(WARM_UP):
        began = time.perf_counter()
        await client.infer(run.model, inputs, None, run.timeout_s)
        took_s = time.perf_counter() - began
    return dict(inputs), took_s


async def _send(
    client: Client, run: TraceRun, inputs: dict[str, Array], report: Callable[[int], None]
) -> None:
    for number in range(run.number):
        run.sent += 1
        try:
            await client.infer(run.model, inputs, None, run.timeout_s)
        except EdgepartError as error:
            run.lost.append(str(error))
        report(number + 1)
