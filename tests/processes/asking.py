"""What the process tests ask of a cluster, as a user would, and what one session over the whole model answers."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import psutil
from benchmarks.comparing import Values, differences, run_alone

from edgepart.cli.demo.traffic import RequestTraffic, Tally
from edgepart.cli.local import LocalAgent, LocalCluster, edgepart
from edgepart.client.async_client import AsyncClient
from edgepart.client.target import AgentTarget

__all__ = [
    "deploy",
    "deploy_over",
    "differences",
    "infer",
    "requests_during",
    "run_alone",
    "served",
    "target",
    "undeploy",
    "workers",
]


PATIENCE_S = 500.0
"""A deployment takes seconds, and minutes beside programs that compute all the time."""


def deploy(cluster: LocalCluster, path: Path, name: str, *options: str) -> Any:
    state = str(cluster.living[0].state)
    return edgepart("deploy", str(path), "--name", name, "--state", state, *options, timeout_s=PATIENCE_S)


def deploy_over(
    cluster: LocalCluster, devices: Collection[str], path: Path, name: str, *options: str
) -> None:
    """Deploy, and wait until the plan is on all of these devices. On a busy machine one of them may seem to be away for a
    moment, and plans do without it until it is back."""
    deploy(cluster, path, name, *options)

    def is_on_all() -> bool:
        (found,) = [one for one in cluster.status()["deployments"] if one["name"] == name]
        return sorted(found["devices"]) == sorted(devices)

    cluster.wait(is_on_all, f"{name} on {', '.join(devices)}", timeout_s=PATIENCE_S)


def undeploy(cluster: LocalCluster, name: str) -> None:
    edgepart("undeploy", name, "--state", str(cluster.living[0].state))


def target(agent: LocalAgent) -> AgentTarget:
    return AgentTarget(agent.url, agent.state)


def served(agent: LocalAgent) -> float:
    """Requests that this agent's executor was done with."""
    with urllib.request.urlopen(f"{agent.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    (found,) = re.findall(r"^edgepart_requests_computed_total (\S+)$", text, re.M)
    return float(found)


def workers(agent: LocalAgent) -> list[psutil.Process]:
    assert agent.process is not None
    found = []
    for child in psutil.Process(agent.process.pid).children(recursive=True):
        try:
            if "edgepart.agent.workers.worker" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def infer(agent: LocalAgent, name: str, inputs: Values) -> Values:
    async def ask() -> Values:
        async with AsyncClient(target(agent)) as client:
            return (await client.infer(name, inputs, timeout_s=60)).outputs

    return asyncio.run(ask())


def requests_during(
    agent: LocalAgent,
    model: str,
    inputs: Values,
    expected: Values,
    count: int,
    event: Callable[[], None],
    concurrency: int = 4,
) -> Tally:
    """`count` requests, `concurrency` at a time, with `event` after a quarter of them. The client knows all members, as
    one that was told them would."""

    async def run() -> Tally:
        tally = Tally(spans=[[0.0]])
        async with AsyncClient(target(agent)) as client:
            await client.learn()
            traffic = RequestTraffic(client, model, inputs, expected, tally)
            left = iter(range(count))

            async def worker() -> None:
                for number in left:
                    if number == count // 4:
                        await asyncio.to_thread(event)
                    await traffic.ask()

            await asyncio.gather(*(worker() for _ in range(concurrency)))
        return tally

    return asyncio.run(run())
