"""`edgepart bench`: measures how fast a deployment answers, and whether it answers every request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Agent, Deadline, DeployedName, Input, Json, Seed, State
from edgepart.cli.output import console, note, print_json, progress, table
from edgepart.cli.query import note_detour
from edgepart.cli.verification import await_report, of_plan, show
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import ClusterError, EdgepartError
from edgepart.planner.figures import format_figure, format_seconds

if TYPE_CHECKING:
    from edgepart.cli.tensors import Array
    from edgepart.client.async_client import AsyncClient
    from edgepart.client.records import Answer

Number = Annotated[int, typer.Option("-n", "--requests", min=1, help="How many requests to send.")]
Concurrency = Annotated[
    int, typer.Option("-c", "--concurrency", min=1, help="How many requests to have under way at once.")
]


def bench(
    name: DeployedName,
    number: Number = 100,
    concurrency: Concurrency = 1,
    given: Input = None,
    seed: Seed = 0,
    timeout_s: Deadline = 60.0,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Measure latency and throughput. Exits with 1 if a request gets no answer."""
    target = target_of(agent, state)
    with progress({}) as bar:

        def report(done: int) -> None:
            bar("requests", done, number)

        run = asyncio.run(_bench(target, name, number, concurrency, given or (), seed, timeout_s, report))
    document = run.document()
    if as_json:
        print_json(document)
    else:
        _show(document)
    if run.lost:
        raise ClusterError(
            f"{len(run.lost)} of {number} requests were not answered; the first: {run.lost[0]}"
        )


@dataclass
class BenchRun:
    """The measurements of one run of `edgepart bench`."""

    model: str
    number: int
    concurrency: int
    predicted_s: float | None
    began: float = 0.0
    ended: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """The reason for each request without an answer."""
    retries: int = 0
    replays: int = 0
    epochs: set[str] = field(default_factory=set)
    report: dict[str, Any] | None = None
    """The agent's report of the plan that served at the end, with the measured times."""
    difference: float = 0.0
    """The largest difference between any answer and the first one. All requests have the same inputs."""

    def document(self) -> dict[str, Any]:
        """The document that --json prints."""
        import numpy as np

        times = np.array(self.latencies_s)
        marks = [self.began, *sorted(self.answered_at)]
        gaps = [after - before for before, after in pairwise(marks)]
        latency = {f"p{q}": float(np.percentile(times, q)) for q in (50, 90, 99)} if len(times) else None
        if latency is not None:
            latency |= {"mean": float(times.mean()), "max": float(times.max())}
        took_s = self.ended - self.began
        alone_s = latency["p50"] if latency is not None and self.concurrency == 1 else None
        return {
            "model": self.model,
            "concurrency": self.concurrency,
            "requests": {"sent": self.number, "answered": len(times), "lost": len(self.lost)},
            "errors": sorted(set(self.lost)),
            "seconds": took_s,
            "requests_per_s": len(times) / took_s if took_s else None,
            "latency_s": latency,
            "predicted_latency_s": self.predicted_s,
            "predicted_and_measured": of_plan(self.report, alone_s, len(times)) if self.report else None,
            "longest_gap_s": max(gaps) if gaps else None,
            "retries": self.retries,
            "replays": self.replays,
            "epochs": sorted(self.epochs),
            "max_abs_diff": self.difference if self.difference != float("inf") else None,
            "answers_equal": self.difference != float("inf"),
        }


async def _bench(
    target: AgentTarget,
    name: str,
    number: int,
    concurrency: int,
    given: Sequence[str],
    seed: int,
    timeout_s: float,
    report: Any,
) -> BenchRun:
    from edgepart.agent.api.deployment_name import check_name
    from edgepart.cli.tensors import bound_metadata, random_inputs, read_inputs
    from edgepart.client.async_client import AsyncClient

    check_name(name)
    async with AsyncClient(target) as client:
        await client.learn()
        metadata = await client.get(f"/v2/models/{name}")
        cards = {card["name"]: card for card in (await client.get("/api/models"))["models"]}
        inputs = (
            read_inputs(given, bound_metadata(metadata, cards.get(name, {})), tell=note)
            if given
            else random_inputs(bound_metadata(metadata, cards.get(name, {})), seed)
        )
        run = BenchRun(name, number, concurrency, cards.get(name, {}).get("predicted_latency_s"))
        first = await client.infer(name, inputs, None, timeout_s)  # the first one warms up; it is not counted
        todo = iter(range(number))
        run.began = time.perf_counter()
        workers = [_work(client, run, todo, inputs, first, timeout_s, report) for _ in range(concurrency)]
        await asyncio.gather(*workers)
        run.ended = time.perf_counter()
        note_detour(target, client.url)
        run.report = await await_report(client, name) if len(run.latencies_s) else None
    return run


async def _work(
    client: AsyncClient,
    run: BenchRun,
    todo: Any,
    inputs: Mapping[str, Array],
    first: Answer,
    timeout_s: float,
    report: Any,
) -> None:
    """Sends requests one after the other until `todo`, which all workers share, is used up."""
    from edgepart.cli.tensors import largest_difference

    for _ in todo:
        sent = time.perf_counter()
        try:
            answer = await client.infer(run.model, inputs, None, timeout_s)
        except EdgepartError as error:
            run.lost.append(str(error))
            continue
        now = time.perf_counter()
        run.latencies_s.append(now - sent)
        run.answered_at.append(now)
        run.retries += answer.retries
        run.replays += answer.replays
        run.epochs.add(answer.epoch)
        run.difference = max(run.difference, largest_difference(first.outputs, answer.outputs))
        report(len(run.latencies_s) + len(run.lost))


def _show(document: Mapping[str, Any]) -> None:
    requests, latency = document["requests"], document["latency_s"]
    rows = [
        ("requests", f"{requests['sent']} sent, {requests['answered']} answered, {requests['lost']} lost"),
        (
            "throughput",
            f"{format_figure(document['requests_per_s'], 4)} requests/s at concurrency {document['concurrency']}",
        ),
    ]
    if latency:
        rows += [(f"latency {key}", format_seconds(latency[key])) for key in ("p50", "p90", "p99", "max")]
    rows += [
        ("predicted", f"{format_seconds(document['predicted_latency_s'])} for one request alone"),
        ("longest gap", f"{format_seconds(document['longest_gap_s'])} between two answers"),
        ("run again", f"{document['replays']} by agents, {document['retries']} by this client"),
        ("answers", _sameness(document)),
    ]
    console().print(table(("", document["model"]), rows))
    if document["predicted_and_measured"]:
        show(document["predicted_and_measured"])


def _sameness(document: Mapping[str, Any]) -> str:
    if not document["answers_equal"]:
        return "differ for the same inputs"
    return f"the same each time (within {format_figure(document['max_abs_diff'])})"
