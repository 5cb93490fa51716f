"""Chaos without a laboratory: schedules depend only on seeds and are survivable; ghosts and figures are
computed correctly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from benchmarks.chaos_asking import Asked
from benchmarks.chaos_figures import lines, outcome, silence_s
from benchmarks.chaos_presence import Done, Look, Presence, broken_rules, ghosts
from benchmarks.chaos_schedule import KINDS, Act, Incident
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import chaos_schedule as schedule

BOXES = ("box-1", "box-2", "box-3", "box-4")
CLIENT = "client"
STATIONS = (*BOXES, CLIENT)
ALL = Presence(frozenset(BOXES))

kinds = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True).map(tuple)
acts = st.builds(
    Done,
    at=st.just(0.0),
    verb=st.sampled_from(
        [
            *(schedule.KILL, schedule.START, schedule.FREEZE, schedule.THAW, schedule.CUT, schedule.CUT_FROM),
            *(schedule.CUT_TO, schedule.CUT_PAIR, schedule.HEAL),
        ]
    ),
    box=st.sampled_from(BOXES),
    other=st.just(""),
).map(lambda one: one if one.verb != schedule.CUT_PAIR else Done(0.0, one.verb, one.box, _next(one.box)))


def _next(box: str) -> str:
    return BOXES[(BOXES.index(box) + 1) % len(BOXES)]


@given(st.integers(0, 10_000), st.floats(0, 900), kinds)
def test_a_schedule_follows_from_its_seed_and_can_be_survived(
    seed: int, seconds: float, some: tuple[str, ...]
) -> None:
    made = schedule.schedule(seed, seconds, BOXES, some)
    assert made == schedule.schedule(seed, seconds, BOXES, some)
    assert not list(broken_rules(made, BOXES, CLIENT))
    assert all(one.at_s + one.lasts_s <= seconds for one in made)


def test_calm_comes_before_each_incident() -> None:
    made = schedule.schedule(1, 300, BOXES, calm_s=30)
    assert made[0].at_s == schedule.FIRST_S + 30
    assert [b.at_s - a.at_s - a.lasts_s for a, b in pairwise(made)] == pytest.approx([30] * (len(made) - 1))


def test_five_minutes_have_every_kind_and_seeds_differ() -> None:
    first = schedule.schedule(1, 300, BOXES)
    assert {act.verb for one in first for act in one.acts} >= {schedule.KILL, schedule.FREEZE, schedule.FILL}
    assert len({one.kind for one in first}) >= len(KINDS) - 2
    assert first != schedule.schedule(2, 300, BOXES)


def test_longer_runs_go_on_as_shorter_ones_began() -> None:
    for seed in range(20):
        short, long = (schedule.schedule(seed, seconds, BOXES) for seconds in (120, 500))
        assert long[: len(short)] == short
        assert sum(one.kind == "join" for one in long) <= 1


@pytest.mark.parametrize(
    ("acts", "text"),
    [
        ([Act(0, schedule.KILL, box) for box in BOXES[:3]], "fewer than two whole boxes"),
        ([Act(0, schedule.KILL, "box-2")], "leaves something broken"),
        ([Act(0, schedule.FILL, "box-2")], "leaves something broken"),
        ([Act(0, schedule.CUT, box) for box in BOXES[:3]], "fewer than two whole boxes"),
    ],
)
def test_what_cannot_be_survived_is_said(acts: Sequence[Act], text: str) -> None:
    found = list(broken_rules([Incident("made up", 0, tuple(acts), 10)], BOXES, CLIENT))
    assert any(text in one for one in found)


def test_incidents_that_overlap_are_said() -> None:
    two = [Incident("a", 0, (), 10), Incident("b", 9, (), 10)]
    assert list(broken_rules(two, BOXES, CLIENT)) == ["incident 1 (b) begins before the last one is over"]


@given(st.lists(acts, max_size=12))
def test_company_is_mutual_and_whole_ways_lead_to_fewer(done: list[Done]) -> None:
    presence = ALL
    for one in done:
        presence = presence.after(one, STATIONS)
    for box in BOXES:
        company = presence.company(box)
        assert presence.company(box, whole=True) <= company <= presence.awake
        assert all(box in presence.company(other) for other in company)
        assert (box in company) == (box in presence.awake)


@given(st.lists(acts, max_size=12))
def test_company_is_what_a_walk_over_all_links_reaches(done: list[Done]) -> None:
    """The plain twin joins links one by one until nothing changes."""
    presence = ALL
    for act in done:
        presence = presence.after(act, STATIONS)
    room = {box: {box} for box in presence.awake}
    for _ in BOXES:
        for one in presence.awake:
            for other in presence.awake:
                if not {(one, other), (other, one)} <= presence.cut:
                    room[one] |= room[other]
    for box in BOXES:
        assert presence.company(box) == room.get(box, set())


def test_a_cut_is_healed_by_its_own_heal_only() -> None:
    cut = ALL.after(Done(0, schedule.CUT, "box-1"), STATIONS)
    assert cut.company("box-1") == {"box-1"} and ("box-1", CLIENT) in cut.cut
    assert cut.after(Done(0, schedule.HEAL, "box-1", "box-2"), STATIONS).company("box-1") == set(BOXES)
    assert cut.after(Done(0, schedule.HEAL, "box-2"), STATIONS).cut == cut.cut - {
        ("box-1", "box-2"),
        ("box-2", "box-1"),
    }
    assert cut.after(Done(0, schedule.HEAL, "box-1"), STATIONS) == ALL
    one_way = ALL.after(Done(0, schedule.CUT_FROM, "box-1"), STATIONS)
    assert one_way.company("box-1") == set(BOXES)
    assert one_way.company("box-1", whole=True) == {"box-1"}


def look(at: float, viewer: str, *others: str) -> Look:
    return Look(at, viewer, frozenset({viewer, *others}))


def seen(done: Sequence[Done], *looks: Look) -> list[tuple[float, str, str]]:
    return [(one.at, one.viewer, box) for one, box, _ in ghosts(ALL, done, looks, STATIONS, bound_s=5.0)]


def test_a_dead_one_is_a_ghost_after_the_bound_and_not_when_it_is_back() -> None:
    done = [Done(10, schedule.KILL, "box-3"), Done(20, schedule.START, "box-3")]
    looks = [look(at, "box-1", "box-2", "box-3") for at in (9, 14, 16, 21)]
    assert seen(done, *looks) == [(16, "box-1", "box-3")]


def test_either_side_of_a_cut_may_list_the_other_no_longer_but_two_that_others_join_may() -> None:
    done = [Done(10, schedule.CUT, "box-3")]
    assert seen(done, look(16, "box-1", "box-2", "box-3"), look(16, "box-3", "box-4")) == [
        (16, "box-1", "box-3"),
        (16, "box-3", "box-4"),
    ]
    pair = [Done(10, schedule.CUT_PAIR, "box-3", "box-4")]
    assert not seen(pair, look(99, "box-3", *BOXES))


def test_who_was_frozen_has_the_bound_from_when_it_wakes() -> None:
    done = [
        Done(10, schedule.KILL, "box-3"),
        Done(10, schedule.FREEZE, "box-1"),
        Done(30, schedule.THAW, "box-1"),
    ]
    looks = [look(at, "box-1", "box-3") for at in (31, 34, 36)]
    assert seen(done, *looks) == [(36, "box-1", "box-3")]


def asked(began: float, ended: float, epoch: str = "1.1", error: str = "", wrong: bool = False) -> Asked:
    return Asked(began, ended, epoch, 1, 2, wrong, error)


def test_figures_say_what_became_of_requests() -> None:
    incidents = schedule.schedule(1, 60, BOXES, ("kill",))[:1]
    done = [Done(10, schedule.KILL, "box-2"), Done(16, schedule.START, "box-2")]
    answers = [
        asked(8, 9),
        asked(9, 10.1),
        asked(10, 10.9, "1.2"),
        asked(10.9, 11.2, "1.2"),
        asked(40, 41, "1.3"),
    ]
    lost = asked(10, 70, error="Unavailable")
    found = outcome([*answers, lost], incidents, done, [], [])
    (row,) = found.rows
    assert (found.sent, found.answered, found.lost, found.wrong, found.fine) == (6, 5, 1, 0, False)
    assert row.silence_s == pytest.approx(29.8) and row.replanned_s == pytest.approx(0.9)
    assert (row.requests, row.replays, row.retries, row.lost) == (5, 5, 10, 1)
    assert row.slowest_s == 60
    assert [line[0] for line in lines(found.rows)] == ["kill", "all"]
    still = outcome(answers, incidents, done, [], [], [(12.0, 2.0), (99.0, 0.5)])
    assert still.rows[0].stall_s == still.stood_still_s == 2.0 and not still.rows[0].counts
    assert next(lines(still.rows))[1:3] == ("1, 1 disturbed", "")
    assert outcome(answers, incidents, done, [], []).fine
    assert not outcome([*answers, asked(1, 2, wrong=True)], incidents, done, [], []).fine
    assert not outcome(answers, incidents, done, ["a ghost"], []).fine
    assert not outcome([], incidents, done, [], []).fine


@given(st.lists(st.floats(0, 100), max_size=20), st.floats(0, 100), st.floats(0, 100))
def test_the_longest_silence_is_the_largest_gap_that_began_in_time(
    times: list[float], at: float, lasts: float
) -> None:
    answers = sorted(times)
    found = silence_s(answers, at, at + lasts)
    gaps = []
    for number, answer in enumerate(answers):
        before = max([at, *answers[:number]])
        if answer > at and before <= at + lasts:
            gaps.append(answer - before)
    assert found == (pytest.approx(max(gaps), abs=1e-8) if gaps else float("inf"))
