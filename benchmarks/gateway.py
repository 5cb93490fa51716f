"""Overhead of HTTP: one agent on this machine, asked in the protocol's binary form, against the executor alone.

The executor runs in this process, the agent in its own. Three are asked in turn, so that other load on the
machine weighs on all of them: the executor; the agent through a minimal client (benchmarks/lean.py), which
shows the overhead of the gateway; and the agent through the product's own client, which also packs, reads and
unpacks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from benchmarks.comparing import largest_difference
from benchmarks.executor import WARM_UP, OneDevice
from benchmarks.lean import Lean, read
from benchmarks.models import light, sample_inputs
from benchmarks.serving import client_of, deploy, settle
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph

T = TypeVar("T")


@dataclass(frozen=True)
class Gateway:
    """The overhead for one model and number of threads."""

    model: str
    threads: int
    turns: int
    executor_s: float
    """Median at the executor."""
    lean_s: float
    """Median at the minimal client, from the first byte handed to the agent's socket to the last byte of its
    answer."""
    added_s: float
    """Median of `lean_s` minus `executor_s` within the turns."""
    outside_s: float
    """Median of the part of `lean_s` that the agent does not count: reading the request, writing the answer,
    and the transfer."""
    client_s: float
    """Median at the product's client."""
    client_added_s: float
    """Like `added_s`, with the product's client."""
    request_bytes: int
    largest_difference: float
    """Relative difference between the answers."""


def measure(name: str, threads: int, turns: int) -> Gateway:
    options = ("--threads", str(threads), "--no-mdns")
    with LocalCluster(["a"], options=options, listen="127.0.0.1:0") as cluster:
        return asyncio.run(_measure(cluster, name, threads, turns))


async def _measure(cluster: LocalCluster, name: str, threads: int, turns: int) -> Gateway:
    path = light(name)
    graph = load_graph(path)
    inputs = sample_inputs(graph)
    times: list[tuple[float, float, float, float]] = []
    async with client_of(cluster.first) as client:
        await deploy(client, path, name, DeployOptions())
        await settle(client, name)
        with OneDevice(graph, threads) as executor, Lean(cluster.first.url, name, inputs) as lean:
            for number in range(WARM_UP + turns):
                executor_s, expected = _timed(lambda: executor(inputs))
                lean_s, came = _timed(lean.ask)
                counted_s, outputs = read(*came)
                began = time.perf_counter()
                answer = await client.infer(name, inputs)
                client_s = time.perf_counter() - began
                if number >= WARM_UP:
                    times.append((executor_s, lean_s, lean_s - counted_s, client_s))
    difference = max(largest_difference(found, expected) for found in (outputs, answer.outputs))
    return Gateway(
        model=name,
        threads=threads,
        turns=turns,
        executor_s=median(executor for executor, _, _, _ in times),
        lean_s=median(lean for _, lean, _, _ in times),
        added_s=median(lean - executor for executor, lean, _, _ in times),
        outside_s=median(outside for _, _, outside, _ in times),
        client_s=median(client for _, _, _, client in times),
        client_added_s=median(client - executor for executor, _, _, client in times),
        request_bytes=sum(array.nbytes for array in inputs.values()),
        largest_difference=difference,
    )


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
