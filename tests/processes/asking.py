"""What the process tests ask of a cluster, as a user would, and what one session over the whole model answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgepart.cli.client import Client
from edgepart.cli.local import LocalAgent, LocalCluster, edgepart
from edgepart.cli.options import Target
from edgepart.cli.traffic import Tally, Traffic

Values = Mapping[str, Any]
TOLERANCE = 1e-4
"""Of the largest magnitude of the output: the design's promise 1 for float32."""


def alone(path: Path, inputs: Values) -> dict[str, Any]:
    """One ONNX Runtime session over the whole model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def deploy(cluster: LocalCluster, path: Path, name: str, *options: str) -> Any:
    state = str(cluster.living[0].state)
    return edgepart("deploy", str(path), "--name", name, "--state", state, *options, timeout_s=180)


def undeploy(cluster: LocalCluster, name: str) -> None:
    edgepart("undeploy", name, "--state", str(cluster.living[0].state))


def target(agent: LocalAgent) -> Target:
    return Target(agent.url, agent.state)


def infer(agent: LocalAgent, name: str, inputs: Values) -> Values:
    async def ask() -> Values:
        async with Client(target(agent)) as client:
            return (await client.infer(name, inputs, deadline_s=60)).outputs

    return asyncio.run(ask())


def differences(got: Values, expected: Values) -> list[str]:
    """Outputs that are not the same answer, and by how much; nothing where all are."""
    found = [f"{name} is missing" for name in expected.keys() - got.keys()]
    for name in expected.keys() & got.keys():
        mine, theirs = np.asarray(got[name]), np.asarray(expected[name])
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            found.append(f"{name} is {mine.dtype}{mine.shape}, expected {theirs.dtype}{theirs.shape}")
        elif theirs.dtype.kind == "f" and theirs.size:
            worst = float(np.abs(mine.astype(np.float64) - theirs).max())
            scale = float(np.abs(theirs).max())
            if not worst <= TOLERANCE * scale:
                found.append(f"{name} differs by {worst:.3g} where the largest is {scale:.3g}")
        elif theirs.size and not (mine == theirs).all():
            found.append(f"{name} differs")
    return found


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
        async with Client(target(agent)) as client:
            await client.learn()
            traffic = Traffic(client, model, inputs, expected, tally)
            left = iter(range(count))

            async def worker() -> None:
                for number in left:
                    if number == count // 4:
                        await asyncio.to_thread(event)
                    await traffic.ask()

            await asyncio.gather(*(worker() for _ in range(concurrency)))
        return tally

    return asyncio.run(run())
