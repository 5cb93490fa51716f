"""What segments and requests took, as it is told: real sessions, made-up latencies."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from edgepart.agent import timing
from edgepart.agent.control import Profile
from edgepart.agent.events import LatencyMeasured, SegmentsTimed
from edgepart.agent.executor import SegmentTime
from edgepart.agent.messages import Epoch
from edgepart.agent.profiles import ProfileBook
from edgepart.agent.sessions import Sessions
from edgepart.agent.timing import ENOUGH_RUNS, Timing
from tests.agent import handmade

EPOCH = Epoch(1, 1)


def made(budget_s: float = 10.0, book: ProfileBook | None = None) -> tuple[Timing, list[Any]]:
    told: list[Any] = []
    return Timing("box~60", 1, budget_s, book or ProfileBook(), told.append), told


def test_each_segment_is_timed_once_and_not_where_it_is_known() -> None:
    prepared = Sessions(1, handmade.read_weight).prepare(handmade.split_plan().programs["a"])
    digests = [one.segment.digest for one in prepared.loaded]
    found = made()[0].time(prepared)
    assert [one.segment for one in found] == digests
    assert all(one.seconds > 0 and (one.kind, one.threads) == ("box~60", 1) for one in found)
    known = ProfileBook([Profile(digests[0], "box~60", 1, 1.0), Profile(digests[1], "other", 1, 1.0)])
    assert [one.segment for one in made(book=known)[0].time(prepared)] == digests[1:]


def test_without_a_budget_nothing_is_run() -> None:
    prepared = Sessions(1, handmade.read_weight).prepare(handmade.split_plan().programs["a"])
    assert made(budget_s=0.0)[0].time(prepared) == ()


def watched(looks: list[tuple[dict[Any, SegmentTime], dict[Any, tuple[float, ...]]]]) -> list[Any]:
    """What is told after so many looks."""
    timer, told = made()

    async def main() -> None:
        now = iter(looks)
        current: list[Any] = []

        def segments() -> dict[Any, SegmentTime]:
            found, took = next(now, ({}, {}))
            current[:] = found, took
            return found

        task = asyncio.create_task(timer.watch(segments, lambda: current[1]))
        while next(iter(current), None) != {}:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    return told


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LOOK_S", 0.0)


def runs(*seconds: float) -> dict[Any, SegmentTime]:
    return {("net", "d1"): SegmentTime(len(seconds), sum(seconds), min(seconds), deque(seconds))}


def test_the_median_of_enough_runs_is_told() -> None:
    few = runs(*[0.1] * (ENOUGH_RUNS - 1))
    many = runs(0.1, 0.1, 0.2, 9.0, 9.0)
    assert watched([(few, {}), (many, {})]) == [SegmentsTimed((Profile("d1", "box~60", 1, 0.2),))]


def test_latencies_are_told_when_there_are_enough_and_when_they_move() -> None:
    one = runs(1.0)
    key = ("net", EPOCH)
    told = watched(
        [
            (one, {key: (0.5,) * 4}),
            (one, {key: (0.5,) * 5}),
            (one, {key: (0.51,) * 6}),
            (one, {key: (0.6,) * 7}),
        ]
    )
    assert told == [LatencyMeasured("net", EPOCH, 0.5, 5), LatencyMeasured("net", EPOCH, 0.6, 7)]
