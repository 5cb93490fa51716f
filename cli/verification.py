"""Compares predictions with measurements, for a plan on a live cluster or for this machine alone. Door: it runs requests.

`edgepart plan --verify` and `edgepart bench` print the comparison.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from edgepart.cli.output import console, table
from edgepart.planner.errors import UsageError
from edgepart.planner.figures import format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from edgepart.client.target import AgentTarget
    from edgepart.planner.layout.strategy import Problem
    from edgepart.planner.plans.plan import Plan

REQUESTS = 10
WARM_UP = 2
LOOKS = 12
"""The most times that an agent is asked whether it has measured the plan."""
LOOK_S = 0.5
"""Seconds between two of these questions."""


def off(predicted_s: float | None, measured_s: float | None) -> float | None:
    """The error of the prediction, relative to the measurement; negative if the prediction is too short.

    >>> off(1.1, 1.0)
    0.1
    """
    return round(predicted_s / measured_s - 1, 4) if predicted_s is not None and measured_s else None


def comparison(
    predicted_s: float | None,
    measured_s: float | None,
    devices: Mapping[str, tuple[float | None, float | None]],
    requests: int,
) -> dict[str, Any]:
    """The comparison as a document. `devices` maps each device to its predicted and measured seconds of computing for one
    request."""
    return {
        "requests": requests,
        "predicted_latency_s": predicted_s,
        "measured_latency_s": measured_s,
        "off": off(predicted_s, measured_s),
        "devices": {
            name: {"predicted_compute_s": mine, "measured_compute_s": took, "off": off(mine, took)}
            for name, (mine, took) in devices.items()
        },
    }


def comparison_table(document: Mapping[str, Any]) -> Table:
    """The comparison for each device, and for the whole request."""
    rows = [
        (
            f"{name} computes",
            format_seconds(one["predicted_compute_s"]),
            format_seconds(one["measured_compute_s"]),
            percent(one["off"]),
        )
        for name, one in document["devices"].items()
    ]
    total = (format_seconds(document["predicted_latency_s"]), format_seconds(document["measured_latency_s"]))
    rows.append(("a request alone", *total, percent(document["off"])))
    columns = ("", "predicted", "measured", "off")
    return table(columns, rows, right=columns[1:])


def percent(part: float | None) -> str:
    """A share with its sign; "-" if it is unknown.

    >>> percent(-0.0421)
    '-4.2 %'
    """
    return "-" if part is None else f"{part:+.1%}".replace("%", " %")


def of_plan(report: Mapping[str, Any], measured_s: float | None, requests: int) -> dict[str, Any]:
    """The comparison from an agent's report of the plan that serves."""
    devices = {
        name: (one["predicted_compute_s"], one["measured_compute_s"])
        for name, one in report["measured"]["devices"].items()
    }
    return comparison(report["predicted_latency_s"], measured_s, devices, requests)


def check_measurable(problem: Problem) -> None:
    """Raises UsageError if plans for this problem are for other machines, which cannot be measured from here."""
    if len(problem.cluster.devices) > 1:
        raise UsageError(
            "--verify cannot measure a cluster that a file describes. Give the name of a deployment instead of a model, "
            "or leave out --cluster to measure this machine"
        )


def verify_here(
    problem: Problem, plan: Plan, predicted_s: float, compute_s: Mapping[str, float]
) -> dict[str, Any]:
    """Measures the plan by running its segments in this process. Raises UsageError if the plan is for other machines."""
    from edgepart.agent.verify.local_run import LocalRun
    from edgepart.agent.verify.sample_inputs import random_inputs

    check_measurable(problem)
    (device,) = problem.cluster.devices
    running = LocalRun(plan, problem.graph, threads=device.threads)
    inputs = random_inputs(problem.graph)
    totals: list[float] = []
    computed: list[float] = []
    for run in range(WARM_UP + REQUESTS):
        began = time.perf_counter()
        running.run(inputs)
        if run >= WARM_UP:
            totals.append(time.perf_counter() - began)
            computed.append(sum(running.computed_s.values()))
    devices = {device.name: (compute_s.get(device.name), median(computed))}
    return comparison(predicted_s, median(totals), devices, REQUESTS)


def verify_live(target: AgentTarget, name: str) -> dict[str, Any]:
    """Measures a deployment by sending requests to it, one after the other."""
    return asyncio.run(_verify_live(target, name))


async def _verify_live(target: AgentTarget, name: str) -> dict[str, Any]:
    from edgepart.agent.api.deployment_name import check_name
    from edgepart.cli.tensors import bound_metadata, random_inputs
    from edgepart.client.async_client import AsyncClient

    check_name(name)
    async with AsyncClient(target) as client:
        await client.learn()
        metadata = await client.get(f"/v2/models/{name}")
        cards = {card["name"]: card for card in (await client.get("/api/models"))["models"]}
        inputs = random_inputs(bound_metadata(metadata, cards.get(name, {})), 0)
        took = []
        for run in range(WARM_UP + REQUESTS):
            began = time.perf_counter()
            await client.infer(name, inputs, None, 60.0)
            if run >= WARM_UP:
                took.append(time.perf_counter() - began)
        report = await await_report(client, name)
    return of_plan(report, median(took), REQUESTS) | {"model": name, "strategy": report["strategy"]}


async def await_report(client: Any, name: str) -> dict[str, Any]:
    """The agent's report of the plan. It waits a while for the measurements of all devices."""
    for _ in range(LOOKS):
        report: dict[str, Any] = await client.get(f"/api/models/{name}/plan")
        if all(one["measured_compute_s"] is not None for one in report["measured"]["devices"].values()):
            break
        await asyncio.sleep(LOOK_S)
    return report


def show(document: Mapping[str, Any]) -> None:
    console().print(comparison_table(document))


def is_deployment(model: Path) -> bool:
    """Whether the argument must be the name of a deployment, and not a model's file."""
    return not model.is_file() and model.name == str(model) and model.suffix != ".onnx"
