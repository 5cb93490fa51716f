"""A client's request moves on from an agent that accepts it and then says nothing, and waits for one that is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.server import HttpServer
from edgepart.client.async_client import AsyncClient
from edgepart.client.liveness import ProbeTiming, Silent, while_alive
from edgepart.client.target import AgentTarget
from tests.agent.http.conftest import CREDENTIAL, LIMITS
from tests.agent.http.fakes import A, FakeNode

AT_ONCE = ProbeTiming(quiet_s=0.0, probe_s=0.0)


class Gone(Exception):
    """What a beat raises where nobody answers."""


def result(
    work: Coroutine[Any, Any, str], beat: Callable[[float], Awaitable[object]], patience: int = 1
) -> str:
    return asyncio.run(while_alive(work, beat, (Gone,), AT_ONCE, patience))


async def _never() -> str:
    await asyncio.Event().wait()
    return ""


def test_work_goes_on_as_long_as_there_are_signs_of_life() -> None:
    async def story() -> str:
        beats = 0
        enough = asyncio.Event()

        async def slow() -> str:
            await enough.wait()
            return "done"

        async def beat(seconds: float) -> None:
            nonlocal beats
            beats += 1
            if beats == 3:
                enough.set()

        found = await while_alive(slow(), beat, (Gone,), AT_ONCE)
        assert beats >= 3
        return found

    assert asyncio.run(story()) == "done"


def test_without_a_sign_of_life_work_is_given_up_and_cancelled() -> None:
    cancelled = []

    async def work() -> str:
        try:
            return await _never()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def beat(seconds: float) -> None:
        await asyncio.sleep(0)
        raise Gone

    with pytest.raises(Silent):
        result(work(), beat)
    assert cancelled == [True]


def test_a_patient_probe_takes_longer() -> None:
    async def beat(seconds: float) -> None:
        asked.append(seconds)
        raise Gone

    asked: list[float] = []
    for patience in (1, 2, 3):
        with pytest.raises(Silent):
            asyncio.run(while_alive(_never(), beat, (Gone,), ProbeTiming(0.0, 0.5), patience))
    assert asked == [0.5, 1.0, 1.5]


def test_what_work_raises_is_raised_and_a_beat_that_fails_otherwise_gives_nothing_up() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        raise KeyError("work")

    async def beat(seconds: float) -> None:
        raise ValueError("not one of those that tell of a loss")

    with pytest.raises(KeyError, match="work"):
        result(work(), beat)


def test_a_request_moves_on_from_an_agent_that_takes_it_and_says_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        frozen = await asyncio.start_server(_hold, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{frozen.sockets[0].getsockname()[1]}"
        node = FakeNode()
        well = HttpServer(Gateway(node, CREDENTIAL, LIMITS), "127.0.0.1", 0, spool=tmp_path)
        status = node.status()
        status["members"].append({"name": "pi-b", "state": "alive", "http": url})
        node.status = lambda: status  # type: ignore[method-assign]
        async with AsyncClient(AgentTarget(await well.start(), tmp_path), ProbeTiming(0.05, 0.05)) as client:
            await client.learn()
            while client.url != url:
                client.door.members.failed(client.url, 0.0)
            answer = await client.infer("add", {"a": A, "b": A})
            np.testing.assert_array_equal(answer.outputs["total"], 2 * A)
            assert answer.retries >= 1
        await well.stop()
        frozen.close()

    asyncio.run(story())


async def _hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a process that was stopped: the kernel takes what is sent to it."""
    try:
        while await reader.read(1 << 16):
            continue
    finally:
        writer.close()
