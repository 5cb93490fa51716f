"""A client of a local cluster for benchmarks: deploys, waits until the plan is stable, asks and measures the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.client import Client
from edgepart.cli.local import LocalAgent
from edgepart.cli.options import AgentTarget
from edgepart.cli.sources.files import files_of
from edgepart.planner.errors import ClusterError, InternalError

SETTLED_S = 10.0
"""A plan that has been stable for this long stays: the comparison with a thorough search is over by then."""

SETTLE_WITHIN_S = 180.0
POLL_S = 0.25
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Answers:
    """Answers to equal requests, sent one after the other."""

    spans: tuple[tuple[float, float], ...]
    """When each request was sent and its answer arrived, on the machine's monotonic clock."""
    outputs: Mapping[str, Any]
    """Outputs of the last answer."""
    epochs: frozenset[str]
    """Epochs of the plans that made them; more than one if the plan changed meanwhile."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """Latencies as the client saw them."""
        return tuple(stop - start for start, stop in self.spans)


def client_of(agent: LocalAgent) -> Client:
    """Return a client of the agent, to be used as an async context manager."""
    return Client(AgentTarget(agent.url, agent.state))


async def deploy(client: Client, path: Path, name: str, options: DeployOptions) -> dict[str, Any]:
    """Deploy a model and return what `edgepart deploy --json` would print. Raises the agent's errors."""
    async for document in client.deploy(name, files_of(path), options, True):
        if "result" in document:
            result: dict[str, Any] = document["result"]
            return result
    raise InternalError(f"the deployment of {name} ended without a result")


async def settle(client: Client, name: str) -> dict[str, Any]:
    """Wait until the deployment's epoch has not changed for `SETTLED_S`, and return its card. Raises
    ClusterError if it keeps changing."""
    until = time.monotonic() + SETTLE_WITHIN_S
    last: Any = None
    since = time.monotonic()
    while time.monotonic() < until:
        cards = (await client.get("/api/models"))["models"]
        card: dict[str, Any] = next(card for card in cards if card["name"] == name)
        if card["epoch"] != last or card["state"] != "serving":
            last, since = card["epoch"], time.monotonic()
        elif time.monotonic() - since >= SETTLED_S:
            return card
        await asyncio.sleep(POLL_S)
    raise ClusterError(f"{name}: the plan still changed after {SETTLE_WITHIN_S:.0f} s")


async def ask(client: Client, name: str, inputs: Mapping[str, Any], *, warm_up: int, count: int) -> Answers:
    """Send `warm_up` requests that are not counted, then `count` requests, and return their answers."""
    spans: list[tuple[float, float]] = []
    epochs: set[str] = set()
    outputs: Mapping[str, Any] = {}
    for number in range(warm_up + count):
        began = time.monotonic()
        answer = await client.infer(name, inputs, deadline_s=DEADLINE_S)
        if number >= warm_up:
            spans.append((began, time.monotonic()))
            epochs.add(answer.epoch)
        outputs = answer.outputs
    return Answers(tuple(spans), outputs, frozenset(epochs))
