"""Taking a trace: who takes part, who cannot and why, and that recording ends whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from edgepart.agent.cluster.state.events import Member
from edgepart.agent.measure.clock_exchange import ClockExchange
from edgepart.agent.measure.clock_offset import Offset
from edgepart.agent.measure.trace_collector import (
    LONGEST_TRACE_S,
    TraceCollector,
    supports_traces,
    with_trace_support,
)
from edgepart.agent.net.rpc_client import RpcClient
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import COMPUTE, COMPUTING, Span, Subject, pack
from edgepart.agent.wire.control import ALIVE, Prepare, Version
from edgepart.agent.wire.inference import Epoch
from edgepart.agent.wire.queries import Clock, Record, Recording, Spans, WantClock, WantSpans
from edgepart.planner.errors import RequestError, Unavailable
from edgepart.planner.plans.plan_bytes import plan_to_bytes
from tests.agent import handmade

AHEAD_S = {"b": 100.0, "c": -3.0}


def member(node: str, version: str = with_trace_support("1")) -> Member:
    return Member(node, f"pi-{node}", "boot", ALIVE, (), "", version)


def order(deployment: str = "photos", number: int = 1) -> Prepare:
    plan = plan_to_bytes(handmade.split_plan())
    names = tuple(handmade.NODES.items())
    return Prepare(1, deployment, Version(1, "a"), Epoch(1, number), plan, names, "digest", ("a",), 0.1, {})


class Others:
    """The other members, as far as a trace asks them."""

    def __init__(self) -> None:
        self.broken: dict[str, Exception] = {}
        """By node, what asking it raises."""
        self.silent_clocks: set[str] = set()
        self.answers: dict[str, Any] = {}
        """By node, instead of the right one."""
        self.asked: list[tuple[str, str]] = []

    async def ask(self, node: str, question: Any, *, timeout_s: float) -> tuple[Any, memoryview]:
        self.asked.append((node, type(question).__name__))
        if node in self.broken:
            raise self.broken[node]
        if isinstance(question, Record):
            return self.answers.get(node, Recording(1)), memoryview(b"")
        span = Span(COMPUTING, COMPUTE, 7.0 + AHEAD_S[node], 0.5, Subject("photos", Epoch(1, 1), "a/0/1"))
        return Spans(1, 3), memoryview(pack([span]))

    async def offset(self, node: str) -> Offset:
        if node in self.silent_clocks:
            raise Unavailable("no link")
        return Offset(1.0, AHEAD_S[node], 0.001)


class World:
    def __init__(self) -> None:
        self.others = Others()
        self.members: list[Member] = [member("a"), member("b"), member("c")]
        self.orders: list[Prepare] = [order()]
        self.recorder = Recorder()
        self.tracing = TraceCollector(
            "a",
            self.recorder,
            cast(RpcClient, self.others),
            cast(ClockExchange, self.others),
            lambda: self.members,
            lambda _: self.orders,
        )


def run(work: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await work(world)
        world.tracing._end()

    asyncio.run(main())


def parts(document: dict[str, Any]) -> dict[str, list[Any]]:
    return {part["name"]: part["spans"] for part in document["devices"]}


def test_all_members_are_on_one_clock() -> None:
    async def story(world: World) -> None:
        begun = await world.tracing.start("photos", 5.0)
        assert begun == {"model": "photos", "devices": ["pi-a", "pi-b", "pi-c"], "missing": {}}
        assert world.recorder.on
        world.recorder.add(COMPUTING, COMPUTE, 6.0, ended_s=6.25)
        document = await world.tracing.finish("photos")
        assert not world.recorder.on
        found = parts(document)
        assert found["pi-a"][0][:4] == [COMPUTING, COMPUTE, 6.0, 0.25]
        for name in ("pi-b", "pi-c"):
            assert found[name][0][2:8] == [7.0, 0.5, "photos", 1, 1, "a/0/1"]
        assert [part["forgotten"] for part in document["devices"]] == [0, 3, 3]
        assert [part["clock_error_s"] for part in document["devices"]] == [0.0, 0.001, 0.001]
        (plan,) = document["plans"]
        assert plan["steps"]["a"][1] == ["run", 0.001] and plan["messages"][0][:2] == ["", "a"]

    run(story)


def test_who_cannot_take_part_is_named() -> None:
    async def story(world: World) -> None:
        world.members = [member("a"), member("b", "0.1.0"), member("c")]
        world.others.broken["c"] = Unavailable("the link to c went down")
        begun = await world.tracing.start("photos", 5.0)
        assert begun["devices"] == ["pi-a"]
        assert "0.1.0" in begun["missing"]["pi-b"] and "went down" in begun["missing"]["pi-c"]
        assert all(node != "b" for node, _ in world.others.asked)  # it would end the link
        assert list(parts(await world.tracing.finish("photos"))) == ["pi-a"]

    run(story)


@pytest.mark.parametrize("answer", [Recording(1, "a trace is being taken already"), Spans(1, 0)])
def test_who_does_not_record_is_named(answer: Any) -> None:
    async def story(world: World) -> None:
        world.others.answers["b"] = answer
        begun = await world.tracing.start("photos", 5.0)
        assert list(begun["missing"]) == ["pi-b"] and begun["missing"]["pi-b"]

    run(story)


def test_a_device_that_dies_meanwhile_is_missing_and_the_others_are_there() -> None:
    async def story(world: World) -> None:
        await world.tracing.start("photos", 5.0)
        world.others.broken["b"] = Unavailable("the link to b went down")
        world.others.silent_clocks.add("c")  # its first offset has to do
        document = await world.tracing.finish("photos")
        assert list(parts(document)) == ["pi-a", "pi-c"] and list(document["missing"]) == ["pi-b"]
        assert parts(document)["pi-c"][0][2] == 7.0

    run(story)


def test_plans_that_come_meanwhile_are_in_it_too() -> None:
    async def story(world: World) -> None:
        await world.tracing.start("photos", 5.0)
        world.orders = [order(number=2), order("photos@0123456789abcdef")]
        document = await world.tracing.finish("photos")
        assert [(plan["deployment"], plan["epoch"]) for plan in document["plans"]] == [
            ("photos", [1, 1]),
            ("photos", [1, 2]),
            ("photos@0123456789abcdef", [1, 1]),
        ]

    run(story)


def test_one_at_a_time_and_not_for_ever() -> None:
    async def story(world: World) -> None:
        for seconds in (0.0, -1.0, LONGEST_TRACE_S * 2, float("nan"), float("inf")):
            with pytest.raises(RequestError):
                await world.tracing.start("photos", seconds)
            assert not world.recorder.on
        with pytest.raises(RequestError):
            await world.tracing.finish("photos")
        await world.tracing.start("photos", 5.0)
        with pytest.raises(Unavailable):
            await world.tracing.start("photos", 5.0)
        with pytest.raises(RequestError):
            await world.tracing.finish("letters")
        assert world.recorder.on
        await world.tracing.finish("photos")
        with pytest.raises(RequestError):
            await world.tracing.finish("photos")

    run(story)


def test_a_start_that_fails_leaves_nothing_on() -> None:
    async def story(world: World) -> None:
        world.others.broken["b"] = ZeroDivisionError("a fault of ours")
        with pytest.raises(ZeroDivisionError):
            await world.tracing.start("photos", 5.0)
        assert not world.recorder.on

    run(story)


# For others


async def asked(world: World, node: str, question: Record | WantSpans) -> tuple[Any, Sequence[bytes]]:
    return await world.tracing.answer(node, question)


def test_it_records_for_one_other_member_at_a_time() -> None:
    async def story(world: World) -> None:
        assert (await asked(world, "b", WantSpans(1)))[0].error
        assert (await asked(world, "b", Record(2, LONGEST_TRACE_S * 2)))[0].error
        assert await asked(world, "b", Record(3, 5.0)) == (Recording(3), [])
        assert world.recorder.on
        assert "node b" in (await asked(world, "c", Record(4, 5.0)))[0].error
        assert (await asked(world, "c", WantSpans(5)))[0].error
        with pytest.raises(Unavailable):
            await world.tracing.start("photos", 5.0)
        world.recorder.add(COMPUTING, COMPUTE, 1.0, ended_s=2.0)
        answer, payload = await asked(world, "b", WantSpans(6))
        assert answer == Spans(6, 0) and payload == [pack([Span(COMPUTING, COMPUTE, 1.0, 1.0)])]
        assert not world.recorder.on and (await asked(world, "b", WantSpans(7)))[0].error

    run(story)


def test_a_member_that_asks_again_begins_anew() -> None:
    async def story(world: World) -> None:
        await asked(world, "b", Record(1, 5.0))
        world.recorder.add(COMPUTING, COMPUTE, 1.0, ended_s=2.0)
        assert await asked(world, "b", Record(2, 5.0)) == (Recording(2), [])
        assert (await asked(world, "b", WantSpans(3)))[1] == [pack([])]

    run(story)


def test_recording_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepart.agent.measure.trace_collector.GRACE_S", 0.0)

    async def story(world: World) -> None:
        await asked(world, "b", Record(1, 0.001))
        while world.recorder.on:
            await asyncio.sleep(0)
        assert (await asked(world, "b", WantSpans(2)))[0].error

    run(story)


@pytest.mark.parametrize("version", ["", "0.1.0", "0.1.0+local", "traces"])
def test_older_agents_are_known_by_their_version(version: str) -> None:
    assert not supports_traces(version)
    assert supports_traces(with_trace_support(version)) and supports_traces(
        with_trace_support(with_trace_support(version))
    )


# Clocks


def test_a_clock_is_read_over_a_wire_and_a_silent_one_is_said() -> None:
    async def story() -> None:
        def to_b(_: str, message: WantClock | Clock) -> None:
            b.came("a", message)

        def to_a(_: str, message: WantClock | Clock) -> None:
            shifted = replace(message, now_s=message.now_s + 50.0) if isinstance(message, Clock) else message
            a.came("x", Clock(message.ticket, 0.0))  # not whom it asked
            a.came("b", shifted)

        a, b = ClockExchange(to_b), ClockExchange(to_a)
        found = await a.offset("b")
        assert abs(found.ahead_s - 50.0) <= found.error_s
        with pytest.raises(Unavailable):
            await ClockExchange(_gone).offset("b")

    asyncio.run(story())


def _gone(*_: Any) -> None:
    raise Unavailable("there is no link")
