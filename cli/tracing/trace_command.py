"""`edgepart trace`: records where the time of requests goes on every device. Door: it is a client of the cluster, and
writes a file."""

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

from edgepart.cli.options import Agent, Deadline, DeployedName, Input, Json, Seed, State
from edgepart.cli.output import console, note, print_json, progress, say
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import ClusterError, EdgepartError, UsageError

if TYPE_CHECKING:
    from edgepart.cli.tensors import Array
    from edgepart.client.async_client import AsyncClient
    from edgepart.client.trace_records import Trace

REQUESTS = 10
WARM_UP = 2
LONGER = 4.0
"""A trace may last this many times as long as its requests should take, plus `SPARE_S`."""
SPARE_S = 20.0


Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE", help="The trace, for ui.perfetto.dev or chrome://tracing."
    ),
]
Number = Annotated[
    int | None,
    typer.Option(
        "-n", "--requests", min=1, help="How many requests to send, one after the other.", show_default="10"
    ),
]
Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        min=0.1,
        max=600.0,
        metavar="SECONDS",
        help="Send no requests; record those of other clients for this long.",
    ),
]
Draw = Annotated[bool, typer.Option("--draw", help="Draw the median request with a line for each device.")]


def trace(
    name: DeployedName,
    output: Output = Path("trace.json"),
    number: Number = None,
    watch_s: Watch = None,
    given: Input = None,
    seed: Seed = 0,
    timeout_s: Deadline = 60.0,
    draw: Draw = False,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Record what every device does, and show where the time of a request goes."""
    target = target_of(agent, state)
    if watch_s is not None and (number is not None or given):
        raise UsageError("--watch sends no requests; leave out --requests and --input")
    run = TraceRun(
        target, name, 0 if watch_s else (number or REQUESTS), watch_s, given or (), seed, timeout_s
    )
    taken, cluster, events = _record(run, output)
    found = _summarise(run, taken, cluster) | {"output": str(output)}
    if as_json:
        print_json(found)
    else:
        _print(found, taken if draw else None)
        say(f"written to {output}: {events} events, for https://ui.perfetto.dev")
    if run.lost:
        raise ClusterError(
            f"{len(run.lost)} of {run.sent} requests were not answered; the first: {run.lost[0]}"
        )


def _record(run: TraceRun, output: Path) -> tuple[Trace, Any, int]:
    """Takes the trace and writes it to a file. Returns the trace, the cluster's description, and the number of events in
    the file."""
    from edgepart.client.perfetto import trace_events
    from edgepart.client.trace_records import read

    with _writable(output) as file, progress({}) as bar:
        document, cluster = asyncio.run(_trace(run, lambda done: bar("requests", done, run.number)))
        taken = read(document)
        events = trace_events(taken)
        json.dump(events, file, allow_nan=False)
    return taken, cluster, len(events["traceEvents"])


def _summarise(run: TraceRun, taken: Trace, cluster: Any) -> dict[str, Any]:
    from edgepart.cli.tracing.trace_summary import summary

    counts = {"sent": run.sent, "lost": len(run.lost), "traced": len(taken.requests())}
    return summary(taken, cluster) | {"requests": counts}


def _print(found: dict[str, Any], drawn: Trace | None) -> None:
    from edgepart.cli.tracing.trace_summary import draw, show

    show(found)
    if drawn is not None:
        console().print(draw(drawn))


@dataclass
class TraceRun:
    """The options that the user gave, and the outcomes of the requests."""

    target: AgentTarget
    model: str
    number: int
    """Number of requests to send."""
    watch_s: float | None
    given: Sequence[str]
    seed: int
    timeout_s: float
    sent: int = 0
    lost: list[str] = field(default_factory=list)
    """The reason for each request without an answer."""


@contextlib.contextmanager
def _writable(output: Path) -> Any:
    """Yields a file that replaces `output` when it is complete. Raises UsageError, before the cluster is asked for
    anything, if the file cannot be written."""
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
    """The agent's trace, and the description of its cluster."""
    from edgepart.agent.api.deployment_name import check_name
    from edgepart.client.async_client import AsyncClient

    check_name(run.model)
    async with AsyncClient(run.target) as client:
        inputs, took_s = ({}, 0.0) if run.watch_s else await _inputs(client, run)
        seconds = run.watch_s or min(600.0, SPARE_S + LONGER * run.number * took_s)
        tracing = await client.begin_trace(run.model, seconds)
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
                await client.end_trace(tracing)
            raise
        return await client.end_trace(tracing), await client.get("/api/devices")


async def _inputs(client: AsyncClient, run: TraceRun) -> tuple[dict[str, Array], float]:
    """The inputs to send, and the seconds that a request takes. Some requests go ahead to warm up the caches."""
    from edgepart.cli.tensors import bound_metadata, random_inputs, read_inputs

    metadata = await client.get(f"/v2/models/{run.model}")
    cards = {card["name"]: card for card in (await client.get("/api/models"))["models"]}
    bound = bound_metadata(metadata, cards.get(run.model, {}))
    inputs = read_inputs(run.given, bound, tell=note) if run.given else random_inputs(bound, run.seed)
    took_s = 0.0
    for _ in range(WARM_UP):
        began = time.perf_counter()
        await client.infer(run.model, inputs, None, run.timeout_s)
        took_s = time.perf_counter() - began
    return dict(inputs), took_s


async def _send(
    client: AsyncClient, run: TraceRun, inputs: dict[str, Array], report: Callable[[int], None]
) -> None:
    for number in range(run.number):
        run.sent += 1
        try:
            await client.infer(run.model, inputs, None, run.timeout_s)
        except EdgepartError as error:
            run.lost.append(str(error))
        report(number + 1)
