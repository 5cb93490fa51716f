"""Arrivals and unread answers: few messages arrive at a time, each client in its turn, and slow ones give way."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.grpc.arrivals import Arrivals
from edgepart.agent.grpc.unread_answers import UnreadAnswers
from edgepart.planner.errors import RequestError, Unavailable

TWO = BodyLimits(request_bytes=8, all_requests_bytes=16)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_as_many_arrive_at_once_as_all_requests_may_take() -> None:
    async def main() -> None:
        arrivals, asked, here = Arrivals(TWO), list[str](), asyncio.Event()

        async def receive(name: str) -> str:
            asked.append(name)
            await here.wait()
            return name

        async def read(name: str, client: str, lane: str = "requests") -> str:
            return await arrivals.read(lane, client, lambda: receive(name))

        greedy = [asyncio.create_task(read(f"a{n}", "a")) for n in range(3)]
        await turns()
        modest = asyncio.create_task(read("b", "b"))
        question = asyncio.create_task(read("q", "b", "questions"))
        await turns()
        assert asked == ["a0", "a1", "q"]
        here.set()
        assert await asyncio.gather(*greedy, modest, question) == ["a0", "a1", "a2", "b", "q"]
        assert asked.index("b") < 5

    asyncio.run(main())


@pytest.mark.parametrize(("stall_s", "body_s", "others"), [(0.0, 1e9, True), (0.0, 0.0, False)])
def test_a_message_that_is_slow_gives_way(stall_s: float, body_s: float, others: bool) -> None:
    """After `stall_s` if others wait, and after `body_s` in any case."""

    async def main() -> None:
        arrivals = Arrivals(replace(TWO, request_bytes=16, stall_s=stall_s, body_s=body_s))
        never = asyncio.Event()
        slow = asyncio.create_task(arrivals.read("requests", "a", never.wait))
        await turns()
        if others:
            assert not slow.done()

            async def receive() -> str:
                return "here"

            assert await arrivals.read("requests", "b", receive) == "here"
        with pytest.raises(RequestError, match="has not arrived in 0 s; send large ones over HTTP"):
            await slow

    asyncio.run(main())


def test_a_call_that_ends_stops_waiting_for_its_message() -> None:
    async def main() -> None:
        arrivals, ended = Arrivals(TWO), asyncio.Event()

        async def receive() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(arrivals.read("requests", "a", receive))
        await turns()
        task.cancel()
        await ended.wait()
        assert arrivals._turns._lines == {}

    asyncio.run(main())


def test_unread_answers_have_limits_for_all_and_for_each_client() -> None:
    answers = UnreadAnswers(100)
    with answers.holding("a", 90):  # One answer may be as large as all.
        with pytest.raises(
            Unavailable, match="90 bytes of answers wait for clients to read them, 0 of them for you"
        ):
            answers.holding("b", 11).__enter__()
        with pytest.raises(Unavailable, match="90 of them for you"):
            answers.holding("a", 1).__enter__()
        with answers.holding("b", 10):
            assert answers.held_bytes == 100
    assert answers.held_bytes == 0 and not answers._by_client
    with answers.holding("a", 30), answers.holding("a", 20):
        assert answers.held_bytes == 50
        with pytest.raises(Unavailable):
            answers.holding("a", 1).__enter__()
