"""What segments and requests took, as it is told: real sessions, made-up times."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edgepart.agent.cluster.state.drift import DriftBook, round_to_step
from edgepart.agent.cluster.state.events import DriftMeasured, LatencyMeasured, SegmentsTimed
from edgepart.agent.cluster.state.judging import LoneRequests
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.execution.counters import SegmentTime
from edgepart.agent.execution.runtime.sessions import PreparedProgram, Sessions
from edgepart.agent.measure import segment_times
from edgepart.agent.measure.segment_times import LEAST_RUNS, RECENT_RUNS, SegmentTimer
from edgepart.agent.measure.starvation import ThreadTimes
from edgepart.agent.wire.control import Drift, Profile
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.devices.cluster import Device
from edgepart.planner.plans.plan import Program, Run, Segment
from tests.agent import handmade

EPOCH = Epoch(1, 1)
DEVICE = Device("a", "box", float(2**30), 1e9, 1e9)
assert DEVICE.pace == "box~60"


class Contended:
    """In place of what the system tells of threads."""

    def __init__(self) -> None:
        self.spoils = False

    def read(self) -> ThreadTimes:
        return {}

    def look(self) -> bool:
        return self.spoils

    def spoilt_since(self, before: ThreadTimes, passed_s: float) -> bool:
        return self.spoils


def made(
    budget_s: float = 10.0,
    book: ProfileBook | None = None,
    drifts: DriftBook | None = None,
    contended: Contended | None = None,
) -> tuple[SegmentTimer, list[Any]]:
    told: list[Any] = []
    known = drifts or DriftBook()

    def post(event: Any) -> None:
        told.append(event)
        if isinstance(event, DriftMeasured):
            known.learn("a", Drift(event.deployment, event.factor), 0.0)

    return SegmentTimer("a", DEVICE, budget_s, book or ProfileBook(), known, post, starving=contended), told


# Before a plan serves


def prepared(calibrated_s: float = 0.0) -> PreparedProgram:
    program = handmade.split_plan().programs["a"]
    segments = tuple(replace(one, calibrated_s=calibrated_s) for one in program.segments)
    return Sessions(1, handmade.read_weight).prepare(replace(program, segments=segments))


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes each segment take so long."""

    def so_long(seconds: float) -> None:
        def best(prepared: PreparedProgram, segment: int, budget_s: float) -> float:
            return seconds

        monkeypatch.setattr(PreparedProgram, "best_s", best)

    return so_long


def timed(found: Any) -> list[Profile]:
    return [one for event in found if isinstance(event, SegmentsTimed) for one in event.timings]


def test_each_segment_is_timed_once_and_not_where_it_is_known() -> None:
    program = prepared()
    digests = [one.segment.digest for one in program.loaded]
    found = timed(made()[0].time("net", program))
    assert [one.segment for one in found] == digests
    assert all(one.seconds > 0 and (one.kind, one.threads) == ("box~60", 1) for one in found)
    known = ProfileBook([Profile(digests[0], "box~60", 1, 1.0), Profile(digests[1], "other", 1, 1.0)])
    assert [one.segment for one in timed(made(book=known)[0].time("net", program))] == digests[1:]


def test_without_a_budget_nothing_is_run() -> None:
    assert made(budget_s=0.0)[0].time("net", prepared()) == []


def test_a_device_that_had_nothing_to_run_tells_how_it_computes_now(takes: Callable[[float], None]) -> None:
    drifts = DriftBook()
    drifts.learn("a", Drift("net", 4.0), 0.0)
    slow = replace(DEVICE, flops_per_s=DEVICE.flops_per_s / 4).pace
    program = prepared(calibrated_s=0.01)
    known = ProfileBook(Profile(one.segment.digest, slow, 1, 0.04) for one in program.loaded)
    takes(0.04)
    drift, profiles = made(book=known, drifts=drifts)[0].time("net", program)
    assert drift == DriftMeasured("net", 4.0)  # again: somebody waits for it
    assert isinstance(profiles, SegmentsTimed) and {one.kind for one in profiles.timings} == {slow}
    takes(0.01)
    drift, profiles = made(book=known, drifts=drifts)[0].time("net", program)
    assert drift == DriftMeasured("net", 1.0)
    assert isinstance(profiles, SegmentsTimed) and {one.kind for one in profiles.timings} == {"box~60"}


def test_what_is_timed_on_a_starved_device_counts_for_nothing(takes: Callable[[float], None]) -> None:
    drifts, contended, program = DriftBook(), Contended(), prepared(calibrated_s=0.01)
    takes(0.02)
    contended.spoils = True
    assert made(contended=contended)[0].time("net", program) == []
    drifts.learn("a", Drift("net", 4.0), 0.0)
    timer, _ = made(drifts=drifts, contended=contended)
    assert timer.time("net", program) == [DriftMeasured("net", 4.0)]  # it has not shown that it has passed
    contended.spoils = False
    assert timer.time("net", program)[0] == DriftMeasured("net", 2.0)


# While plans serve


def runs(*seconds: float, before: int = 0) -> dict[Any, SegmentTime]:
    return {("net", "d1"): SegmentTime(before + len(seconds), sum(seconds), min(seconds), deque(seconds))}


def serving(calibrated_s: float = 0.0, epoch: Epoch = EPOCH) -> dict[str, tuple[Epoch, Program]]:
    segment = Segment("d1", b"", (), (), (), (), 1.0, 0.0, 0, calibrated_s)
    return {"net": (epoch, Program("a", (Run(0),), (segment,), 0, 0))}


def test_the_median_of_enough_recent_runs_is_told() -> None:
    look = made()[0]._look
    assert list(look(serving(), runs(*[0.1] * (LEAST_RUNS - 1)))) == []
    found = list(look(serving(), runs(0.1, 0.1, 0.2, 9.0, 9.0)))
    assert found == [SegmentsTimed((Profile("d1", "box~60", 1, 0.2),))]
    found = list(look(serving(), runs(*[0.1] * 20, *[0.4] * RECENT_RUNS)))
    assert found == [SegmentsTimed((Profile("d1", "box~60", 1, 0.4),))]


def test_runs_from_before_a_plan_served_say_nothing() -> None:
    look = made()[0]._look
    old = runs(*[0.1] * 9)
    assert list(look({}, old)) == []
    assert list(look(serving(0.1), old)) == []
    later = runs(*[0.1] * 9, *[0.4] * LEAST_RUNS)
    drift, _ = look(serving(0.1), later)
    assert drift == DriftMeasured("net", 4.0)


def test_runs_of_a_deployment_that_came_back_count_though_there_were_more_before() -> None:
    timer, _ = made()
    list(timer._look({}, runs(1.0, before=100)))
    plan = serving()
    assert not timed(list(timer._look(plan, runs(*[1.0] * (LEAST_RUNS - 1)))))
    assert timed(list(timer._look(plan, runs(*[1.0] * LEAST_RUNS))))


def test_a_device_that_slows_down_tells_so_once_and_again_when_it_is_as_it_was() -> None:
    timer, told = made()

    def look(*seconds: float, epoch: Epoch = EPOCH) -> list[Any]:
        told.clear()
        for event in timer._look(serving(0.1, epoch), runs(*seconds)):
            timer._post(event)
        return list(told)

    assert look(*[0.1] * 11) == [SegmentsTimed((Profile("d1", "box~60", 1, 0.1),))]
    slow = replace(DEVICE, flops_per_s=DEVICE.flops_per_s / 2).pace
    second = SegmentsTimed((Profile("d1", slow, 1, 0.2),))
    assert look(*[0.1] * 5, *[0.2] * 6) == [DriftMeasured("net", 2.0), second]
    assert look(*[0.2] * 11) == [second]
    wavering = look(*[0.21] * 11)  # less than a step
    assert not any(isinstance(event, DriftMeasured) for event in wavering)
    assert look(*[0.2] * 5, *[0.1] * 6)[0] == DriftMeasured("net", 1.0)


def test_a_drift_is_told_again_with_each_plan() -> None:
    drifts = DriftBook()
    drifts.learn("a", Drift("net", 2.0), 0.0)
    timer, _ = made(drifts=drifts)
    drift, _ = timer._look(serving(0.1), runs(*[0.2] * 11))
    assert drift == DriftMeasured("net", 2.0)
    assert not any(isinstance(e, DriftMeasured) for e in timer._look(serving(0.1), runs(*[0.2] * 12)))
    after = list(timer._look(serving(0.1, Epoch(1, 2)), runs(*[0.2] * 11, before=11)))
    assert after[0] == DriftMeasured("net", 2.0)


def test_too_little_computing_tells_no_drift() -> None:
    found = list(made()[0]._look(serving(1e-4), runs(*[0.1] * 11)))
    assert [type(event) for event in found] == [SegmentsTimed]
    assert round_to_step(1.0) == 1.0


def test_the_watch_posts_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_times, "LOOK_S", 0.0)
    timer, told = made()

    async def main() -> None:
        took = {("net", EPOCH): LoneRequests((0.5,) * 5, 5, frozenset("a"))}
        task = asyncio.create_task(timer.watch(serving, lambda: runs(*[0.1] * 5), lambda: took))
        while len(told) < 2:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert told[:2] == [
        SegmentsTimed((Profile("d1", "box~60", 1, 0.1),)),
        LatencyMeasured("net", EPOCH, 0.5, 5),
    ]


def test_latencies_are_told_when_there_are_enough_and_when_they_move() -> None:
    key = ("net", EPOCH)
    timer, _ = made()
    looks = [(0.5,) * 4, (0.5,) * 5, (0.51,) * 6, (0.6,) * 7]
    told = [event for seconds in looks for event in timer._latencies({key: seconds})]
    assert told == [LatencyMeasured("net", EPOCH, 0.5, 5), LatencyMeasured("net", EPOCH, 0.6, 7)]


# While others have the CPU


def test_runs_on_a_starved_device_are_never_told() -> None:
    timer, _ = made()

    def settled(*seconds: float, spoilt: bool) -> list[Any]:
        return timer._confirm_events(serving(0.1), runs(*seconds), spoilt=spoilt)

    assert settled(*[0.1] * 11, spoilt=False) == []
    assert settled(*[0.1] * 22, spoilt=False)  # what the look before found
    slow = [*[0.1] * 33, *[0.9] * 5]  # it has just begun, unseen
    assert [type(event) for event in settled(*slow, spoilt=False)] == [SegmentsTimed]
    assert settled(*slow, *[0.9] * 11, spoilt=True) == []
    assert settled(*slow, *[0.9] * 22, spoilt=True) == []
    again = [*slow, *[0.9] * 22]
    assert settled(*again, *[0.1] * 3, spoilt=False) == []
    assert settled(*again, *[0.1] * 4, spoilt=False) == []  # too few, as those before do not count
    found = settled(*again, *[0.1] * 9, spoilt=False)
    assert found == []
    assert settled(*again, *[0.1] * 9, spoilt=False) == [SegmentsTimed((Profile("d1", "box~60", 1, 0.1),))]


def test_what_a_starved_device_measures_counts_once_that_has_lasted() -> None:
    timer, _ = made()
    for _ in range(3):
        assert timer._confirm_events(serving(0.1), runs(*[0.4] * 11), spoilt=True) == []
    assert timer._confirm_events(serving(0.1), runs(*[0.4] * 20), spoilt=False) == []
    (drift, _) = timer._confirm_events(serving(0.1), runs(*[0.4] * 30), spoilt=False)
    assert drift == DriftMeasured("net", 4.0)


def test_requests_by_a_starved_device_are_not_counted() -> None:
    key, nodes = ("net", EPOCH), frozenset("ab")
    timer, _ = made()

    def found(count: int, seconds: float, *starved: str) -> dict[Any, tuple[float, ...]]:
        last = tuple([0.5] * 10 + [seconds] * (count - 10))[-15:]
        return dict(timer._undisturbed_latencies({key: LoneRequests(last, count, nodes)}, starved))

    assert found(10, 0.5) == {}
    assert found(12, 9.0) == {key: (0.5,) * 10}
    assert found(20, 9.0, "b") == {}  # those of the look before it are as doubtful
    assert found(24, 9.0, "z") == {}
    assert found(30, 9.0, "z") == {key: (9.0,) * 4}  # since then
    assert found(30, 9.0, "a", "z") == {}
    assert found(30, 9.0) == {}


def test_a_watch_on_a_starved_device_posts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_times, "LOOK_S", 0.0)
    contended = Contended()
    timer, told = made(contended=contended)
    contended.spoils, looks = True, 0

    def alone() -> dict[Any, LoneRequests]:
        nonlocal looks
        looks += 1
        if looks == 5:
            contended.spoils = False
            assert told == []
        return {("net", EPOCH): LoneRequests((0.5,) * 5, 5 * looks, frozenset("a"))}

    async def main() -> None:
        task = asyncio.create_task(timer.watch(serving, lambda: runs(*[0.1] * 5, before=5 * looks), alone))
        while len(told) < 2:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert looks > 5
    assert {type(event) for event in told} == {SegmentsTimed, LatencyMeasured}
