"""A client of a local cluster for benchmarks: deploys, waits until the plan is stable, asks and measures the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalAgent
from edgepart.client.async_client import AsyncClient
from edgepart.client.model_files import files_of
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import ClusterError

SETTLED_S = 10.0
"""A plan that has been stable for this long stays: the comparison with a thorough search is over by then."""

RESTING_S = 5.0
RESTING_CORE = 0.05
"""An agent rests if it takes less than this share of a core for that long: about four times what an idle one takes. It then
makes no plan that may not replace the one that serves, which `SETTLED_S` does not tell on a slow machine."""

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


def client_of(agent: LocalAgent) -> AsyncClient:
    """Return a client of the agent, to be used as an async context manager."""
    return AsyncClient(AgentTarget(agent.url, agent.state))


async def deploy(client: AsyncClient, path: Path, name: str, options: DeployOptions) -> dict[str, Any]:
    """Deploy a model and return what `edgepart deploy --json` would print. Raises the agent's errors."""
    return await client.deploy_files(name, await asyncio.to_thread(files_of, path), options)


async def settle(client: AsyncClient, name: str) -> dict[str, Any]:
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


async def rest(agents: Sequence[LocalAgent]) -> None:
    """Wait until the agents and all their processes rest. Raises ClusterError if they do not within `SETTLE_WITHIN_S`."""
    until = time.monotonic() + SETTLE_WITHIN_S
    while time.monotonic() < until:
        before = [cpu_s_of(agent) for agent in agents]
        await asyncio.sleep(RESTING_S)
        took = [cpu_s_of(agent) - spent_s for agent, spent_s in zip(agents, before, strict=True)]
        if max(took) < RESTING_CORE * RESTING_S:
            return
    raise ClusterError(f"the agents still computed something after {SETTLE_WITHIN_S:.0f} s")


def cpu_s_of(agent: LocalAgent) -> float:
    """Return the CPU seconds that the agent and its processes have taken, those that have ended among them."""
    process = psutil.Process(int(agent.addresses["pid"]))
    own = process.cpu_times()
    spent_s = float(own.user + own.system + own.children_user + own.children_system)
    for child in process.children(recursive=True):
        # One that ends just now is in `children_user` the next time.
        with suppress(psutil.NoSuchProcess):
            spent = child.cpu_times()
            spent_s += spent.user + spent.system
    return spent_s


async def ask(
    client: AsyncClient, name: str, inputs: Mapping[str, Any], *, warm_up: int, count: int
) -> Answers:
    """Send `warm_up` requests that are not counted, then `count` requests, and return their answers."""
    spans: list[tuple[float, float]] = []
    epochs: set[str] = set()
    outputs: Mapping[str, Any] = {}
    for number in range(warm_up + count):
        began = time.monotonic()
        answer = await client.infer(name, inputs, timeout_s=DEADLINE_S)
        if number >= warm_up:
            spans.append((began, time.monotonic()))
            epochs.add(answer.epoch)
        outputs = answer.outputs
    return Answers(tuple(spans), outputs, frozenset(epochs))
