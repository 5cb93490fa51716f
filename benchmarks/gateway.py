"""What HTTP adds: one agent on this machine, asked in the protocol's binary form, against the executor alone.

The executor runs in this process, the agent in its own; they are asked in turn, so that what else the machine does
weighs on both.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import median

from benchmarks.comparing import largest_difference
from benchmarks.executor import WARM_UP, OneDevice
from benchmarks.models import light, sample_inputs
from benchmarks.serving import client_of, deploy, settle
from edgepart.agent.messages import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.planner.model import load_graph


@dataclass(frozen=True)
class Gateway:
    """Of one model with so many threads."""

    model: str
    threads: int
    pairs: int
    executor_s: float
    """Median."""
    http_s: float
    """Median, at a client on the same machine."""
    added_s: float
    """Median of the differences within the pairs."""
    outside_s: float
    """Median of what of the client's time was spent outside the agent's own count: the way there and back, and
    both ends' reading and writing of HTTP."""
    request_bytes: int
    largest_difference: float
    """Between the two answers, relative."""


def measure(name: str, threads: int, pairs: int) -> Gateway:
    options = ("--threads", str(threads), "--no-mdns")
    with LocalCluster(["a"], options=options, listen="127.0.0.1:0") as cluster:
        return asyncio.run(_measure(cluster, name, threads, pairs))


async def _measure(cluster: LocalCluster, name: str, threads: int, pairs: int) -> Gateway:
    path = light(name)
    graph = load_graph(path)
    inputs = sample_inputs(graph)
    times: list[tuple[float, float, float]] = []
    async with client_of(cluster.first) as client:
        await deploy(client, path, name, DeployOptions())
        await settle(client, name)
        with OneDevice(graph, threads) as executor:
            for number in range(WARM_UP + pairs):
                began = time.perf_counter()
                expected = executor(inputs)
                executor_s = time.perf_counter() - began
                began = time.perf_counter()
                answer = await client.infer(name, inputs)
                http_s = time.perf_counter() - began
                if number >= WARM_UP:
                    times.append((executor_s, http_s, http_s - answer.seconds))
        difference = largest_difference(answer.outputs, expected)
    return Gateway(
        model=name,
        threads=threads,
        pairs=pairs,
        executor_s=median(executor for executor, _, _ in times),
        http_s=median(http for _, http, _ in times),
        added_s=median(http - executor for executor, http, _ in times),
        outside_s=median(outside for _, _, outside in times),
        request_bytes=sum(array.nbytes for array in inputs.values()),
        largest_difference=difference,
    )
