"""What segments took: remembered, told as news, written and read; and what is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edgepart.agent.cluster.state.judging import (
    MIN_REQUESTS,
    PlanJudge,
    compute_slowdown,
    correct_prediction_s,
    predict_busiest_s,
)
from edgepart.agent.cluster.state.profiles import (
    MAX_PROFILES,
    NEWS_SHARE,
    ProfileBook,
    from_json,
    to_json,
    to_planner_profiles,
)
from edgepart.agent.wire.control import Latency, Profile
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.errors import UsageError
from edgepart.planner.plans.plan import Plan, Program, Run, Segment, Step

ONE = Profile("d1", "box~60", 2, 0.5)
TWO = Profile("d2", "box~60", 2, 0.1)


def test_only_what_moved_is_news() -> None:
    book = ProfileBook([ONE])
    assert book.learn([ONE, TWO]) == (TWO,)
    assert book.learn([replace(ONE, seconds=0.5 * (1 + NEWS_SHARE / 2))]) == ()
    moved = replace(ONE, seconds=0.5 * (1 + 2 * NEWS_SHARE))
    assert book.learn([moved]) == (moved,)
    assert book.seconds("d1", "box~60", 2) == moved.seconds
    assert book.seconds("d1", "box~60", 4) is None
    assert to_planner_profiles(book.profiles())["d2", "box~60", 2] == 0.1


def test_the_ones_not_heard_of_for_longest_are_forgotten() -> None:
    book = ProfileBook(Profile(str(n), "box", 1, 1.0) for n in range(MAX_PROFILES))
    book.learn([Profile("0", "box", 1, 1.0)])
    book.learn([Profile("new", "box", 1, 1.0)])
    assert book.seconds("1", "box", 1) is None
    assert book.seconds("0", "box", 1) == 1.0
    assert len(book.profiles()) == MAX_PROFILES
    assert [one.segment for one in book.profiles(2)] == ["0", "new"]


def test_profiles_come_back_from_their_file() -> None:
    assert from_json(json.loads(json.dumps(to_json([ONE, TWO])))) == (ONE, TWO)


@pytest.mark.parametrize(
    "document", [5, {"a": 1}, [1], [{}], [{"segment": "d", "kind": "k", "threads": 1, "seconds": -1}]]
)
def test_what_are_no_profiles_is_said(document: Any) -> None:
    with pytest.raises(UsageError, match="no profiles of segments"):
        from_json(document)


def segment(digest: str, compute_s: float) -> Segment:
    return Segment(digest, b"", (), (), (), (), compute_s, 0.0, 0)


def plan(**seconds: list[float]) -> Plan:
    """By device, the seconds predicted for each of its segments; digests are "device-0" and so on."""
    programs = {}
    for name, each in seconds.items():
        steps: tuple[Step, ...] = tuple(Run(n) for n in range(len(each)))
        segments = tuple(segment(f"{name}-{n}", one) for n, one in enumerate(each))
        programs[name] = Program(name, steps, segments, 0, 0)
    return Plan("m", "auto", programs, (), (), (), predicted_latency_s=1.0)


def test_a_plan_is_as_late_as_its_latest_device() -> None:
    made = plan(a=[0.2, 0.2], b=[0.5])
    kinds = {"a": ("k", 1), "b": ("k", 1)}
    book = ProfileBook([Profile("a-0", "k", 1, 0.3), Profile("a-1", "k", 1, 0.3)])
    assert compute_slowdown(made, kinds, book) is None  # b's was not timed
    book.learn([Profile("b-0", "k", 1, 0.4)])
    assert compute_slowdown(made, kinds, book) == pytest.approx(1.5)
    assert compute_slowdown(made, {"a": ("k", 1)}, book) is None
    assert predict_busiest_s(made) == 0.5
    assert correct_prediction_s(made, 1.5, 0.5) == pytest.approx(1.25)


def test_a_plan_on_several_devices_disappoints_where_one_is_faster() -> None:
    judge, epoch = PlanJudge(single_s=0.5), Epoch(1, 1)
    assert not judge.disappoints(epoch, 2)
    assert judge.hears(Latency("m", epoch, 0.6, MIN_REQUESTS))
    assert not judge.hears(Latency("m", epoch, 0.6, MIN_REQUESTS + 1))
    assert judge.disappoints(epoch, 2)
    assert not judge.disappoints(epoch, 1)
    assert not judge.disappoints(Epoch(1, 2), 2)  # of another plan nothing is known
    assert judge.hears(Latency("m", epoch, 0.45, MIN_REQUESTS))
    assert not judge.disappoints(epoch, 2)
    judge.hears(Latency("m", epoch, 0.9, MIN_REQUESTS - 1))
    assert not judge.disappoints(epoch, 2)  # too few
