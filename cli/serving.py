"""`edgepart infer` and `bench`: an ordinary client of a deployment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Agent, AgentTarget, Json, State, target_of
from edgepart.cli.output import console, note, print_json, progress, say, seconds, shape, table
from edgepart.cli.verifying import measured_report, of_plan, show
from edgepart.planner.errors import ClusterError, EdgepartError, UsageError
from edgepart.planner.figures import figure

if TYPE_CHECKING:
    from edgepart.cli.client import Client, Reply
    from edgepart.cli.tensors import Array

Input = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="[NAME=]FILE", help="A .npy, .npz or .json file. Repeatable."),
]
Deadline = Annotated[float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="For each request.")]
SHOWN = 6
"""Values of each output that people see."""


def infer(
    name: Annotated[str, typer.Argument(help="As `edgepart models` shows it.")],
    given: Input = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs to this .npz.")
    ] = None,
    timeout_s: Deadline = 60.0,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Run one request, and show or write its outputs."""
    import numpy as np

    from edgepart.cli.tensors import plain

    target = target_of(agent, state)
    if not given:
        raise UsageError(
            f"--input is missing: `edgepart infer {name} --input NAME=FILE.npy`; {_see(target, name)}"
        )
    if output is not None and output.suffix != ".npz":
        raise UsageError(f"--output {output}: give a name that ends in .npz")
    answer = asyncio.run(_infer(target, name, given, timeout_s))
    if output is not None:
        packed = {key: _storable(array) for key, array in answer.outputs.items()}
        try:
            with output.open("wb") as file:
                np.savez(file, allow_pickle=False, **packed)
        except OSError as error:
            raise UsageError(f"--output {output}: {error.strerror}") from error
    about: dict[str, Any] = {"epoch": answer.epoch, "seconds": answer.seconds, "replays": answer.replays}
    if as_json:
        outputs = {
            key: {"dtype": str(array.dtype), "shape": list(array.shape)}
            | ({} if output else {"data": plain(array)})
            for key, array in answer.outputs.items()
        }
        print_json({"outputs": outputs, "output": str(output) if output else None, **about})
        return
    rows = [
        (key, str(array.dtype), shape(array.shape), _glance(array)) for key, array in answer.outputs.items()
    ]
    console().print(table(("output", "type", "shape", "values"), rows))
    note(f"{seconds(answer.seconds)} on epoch {answer.epoch}, run again {answer.replays} times")
    if output:
        say(f"written to {output}")


def bench(
    name: Annotated[str, typer.Argument(help="As `edgepart models` shows it.")],
    number: Annotated[int, typer.Option("-n", "--requests", min=1, help="How many requests.")] = 100,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="How many at once.")] = 1,
    given: Input = None,
    seed: Annotated[
        int, typer.Option(help="Of the random inputs that are made where no --input is given.")
    ] = 0,
    timeout_s: Deadline = 60.0,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Measure latency and throughput, and whether any request is lost. Exits 1 when one is."""
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
    """What one bench measured."""

    model: str
    number: int
    concurrency: int
    predicted_s: float | None
    began: float = 0.0
    ended: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Per request without an answer, why."""
    retries: int = 0
    replays: int = 0
    epochs: set[str] = field(default_factory=set)
    report: dict[str, Any] | None = None
    """Of the plan that served in the end, with what was measured of it."""
    difference: float = 0.0
    """The largest between any answer and the first: the inputs are the same each time."""

    def document(self) -> dict[str, Any]:
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


async def _infer(target: AgentTarget, name: str, given: Sequence[str], timeout_s: float) -> Reply:
    from edgepart.agent.api.protocol import check_name
    from edgepart.cli.client import Client
    from edgepart.cli.tensors import read_inputs

    check_name(name)
    async with Client(target) as client:
        await client.learn()
        metadata = await client.get(f"/v2/models/{name}")
        return await client.infer(name, read_inputs(given, metadata), None, timeout_s)


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
    from edgepart.agent.api.protocol import check_name
    from edgepart.cli.client import Client
    from edgepart.cli.tensors import random_inputs, read_inputs

    check_name(name)
    async with Client(target) as client:
        await client.learn()
        metadata = await client.get(f"/v2/models/{name}")
        cards = {card["name"]: card for card in (await client.get("/api/models"))["models"]}
        inputs = (
            read_inputs(given, metadata)
            if given
            else random_inputs(bound_metadata(metadata, cards.get(name, {})), seed)
        )
        run = BenchRun(name, number, concurrency, cards.get(name, {}).get("predicted_latency_s"))
        first = await client.infer(name, inputs, None, timeout_s)  # warms up; not counted
        todo = iter(range(number))
        run.began = time.perf_counter()
        workers = [_work(client, run, todo, inputs, first, timeout_s, report) for _ in range(concurrency)]
        await asyncio.gather(*workers)
        run.ended = time.perf_counter()
        run.report = await measured_report(client, name) if len(run.latencies_s) else None
    return run


def bound_metadata(metadata: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    """With the shapes that the deployment was bound to first in place of open ones."""
    first: Mapping[str, Any] = next((bound["shapes"] for bound in card.get("bindings") or ()), {})
    inputs = [entry | {"shape": first.get(entry["name"], entry["shape"])} for entry in metadata["inputs"]]
    return {**metadata, "inputs": inputs}


async def _work(
    client: Client,
    run: BenchRun,
    todo: Any,
    inputs: Mapping[str, Array],
    first: Reply,
    timeout_s: float,
    report: Any,
) -> None:
    """One of several at work on the same requests."""
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
            f"{figure(document['requests_per_s'], 4)} requests/s at concurrency {document['concurrency']}",
        ),
    ]
    if latency:
        rows += [(f"latency {key}", seconds(latency[key])) for key in ("p50", "p90", "p99", "max")]
    rows += [
        ("predicted", f"{seconds(document['predicted_latency_s'])} for one request alone"),
        ("longest gap", f"{seconds(document['longest_gap_s'])} between two answers"),
        ("run again", f"{document['replays']} by agents, {document['retries']} by this client"),
        ("answers", _sameness(document)),
    ]
    console().print(table(("", document["model"]), rows))
    if document["predicted_and_measured"]:
        show(document["predicted_and_measured"])


def _sameness(document: Mapping[str, Any]) -> str:
    if not document["answers_equal"]:
        return "differ for the same inputs"
    return f"the same each time (within {figure(document['max_abs_diff'])})"


def _storable(array: Array) -> Array:
    """Types that .npz can hold without pickling."""
    if array.dtype.kind == "O":
        return array.astype(str)
    return array if array.dtype.kind in "fiubUS" else array.astype("float32")


def _glance(array: Array) -> str:
    values = [f"{v:.5g}" if isinstance(v, float) else str(v)[:200] for v in array.ravel()[:SHOWN].tolist()]
    return ", ".join(values) + (", ..." if array.size > SHOWN else "")


def _see(target: AgentTarget, name: str) -> str:
    return f"{target.url}/v2/models/{name} tells the inputs"
