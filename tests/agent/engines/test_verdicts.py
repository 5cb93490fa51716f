"""Verdicts: what is remembered of engines, and what becomes of a program whose engines are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.engines.verdicts import (
    ADMITTED,
    CRASHES,
    MOST_VERDICTS,
    MOST_WHY,
    OUTCOMES,
    SLOWER,
    EngineVerdict,
    VerdictBook,
    compare_times,
    limited,
    on_cpu,
    verdict_from_json,
    verdicts_to_json,
)
from edgepart.planner.errors import FrameError
from tests.agent import handmade

SECONDS = st.floats(0, 1e3)
VERDICTS = st.builds(
    EngineVerdict,
    st.sampled_from("ab"),
    st.sampled_from("xyz"),
    st.sampled_from(OUTCOMES),
    st.text(max_size=9),
    model=st.sampled_from("mn"),
    lacks=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    cpu_s=SECONDS,
    engine_s=SECONDS,
    times_cpu=SECONDS,
)


@given(st.lists(VERDICTS))
def test_a_refusal_stays_whatever_comes_after_it(told: list[EngineVerdict]) -> None:
    book = VerdictBook()
    for one in told:
        before = book.find(one.engine, one.segment)
        news = book.note(one)
        after = book.find(one.engine, one.segment)
        assert after is not None and news == (after != before)
        assert not (before is not None and before.refused) or after == before
    refused = {(one.engine, one.segment) for one in told if one.refused}
    assert {(one.engine, one.segment) for one in book.refusals()} == refused


@given(st.lists(VERDICTS))
def test_what_is_written_is_read_again(told: list[EngineVerdict]) -> None:
    assert [verdict_from_json(entry) for entry in verdicts_to_json(told)] == told


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"engine": "a", "segment": "x"},
        {"engine": "a", "segment": "x", "outcome": "perhaps"},
        {"engine": "a", "segment": 1, "outcome": ADMITTED},
        {"engine": "a", "segment": "x", "outcome": ADMITTED, "more": "y"},
        {"engine": "a", "segment": "x", "outcome": ADMITTED, "cpu_s": "1"},
        {"engine": "a", "segment": "x", "outcome": ADMITTED, "engine_s": -1.0},
        {"engine": "a", "segment": "x", "outcome": ADMITTED, "times_cpu": float("inf")},
        {"engine": "a", "segment": "x", "outcome": ADMITTED, "times_cpu": True},
    ],
)
def test_what_is_no_verdict_is_refused(entry: object) -> None:
    with pytest.raises(FrameError, match="no verdict"):
        verdict_from_json(entry)


def test_verdicts_count_only_for_the_software_that_they_were_made_with() -> None:
    old = VerdictBook(made_with="onnxruntime 1")
    old.note(EngineVerdict("lab", "x", CRASHES))
    assert VerdictBook(old.all(), "onnxruntime 1").find("lab", "x")
    assert not VerdictBook(old.all(), "onnxruntime 2").find("lab", "x")


@given(st.lists(VERDICTS, max_size=6))
def test_the_drift_for_a_model_is_that_of_all_its_timed_segments_together(told: list[EngineVerdict]) -> None:
    book = VerdictBook()
    for one in told:
        book.note(one)
    for drift in book.drifts():
        mine = [
            one
            for one in book.all()
            if (one.engine, one.model) == (drift.engine, drift.model)
            and one.outcome in (ADMITTED, SLOWER)
            and one.cpu_s * one.times_cpu > 0
            and one.engine_s > 0
        ]
        expected_s = sum(one.cpu_s * one.times_cpu for one in mine)
        assert mine and drift.drift == limited(sum(one.engine_s for one in mine) / expected_s)
    keys = [(one.engine, one.model) for one in book.drifts()]
    assert len(keys) == len(set(keys))


def test_figures_that_no_clock_gives_are_no_drift() -> None:
    book = VerdictBook()
    for n, (cpu_s, times_cpu) in enumerate([(0.5, 5e-324), (1e308, 1e308), (0.0, 1.0), (1.0, 0.0)]):
        book.note(
            EngineVerdict("a", str(n), ADMITTED, model="m", cpu_s=cpu_s, engine_s=1.0, times_cpu=times_cpu)
        )
    assert book.drifts() == ()


@given(VERDICTS)
def test_an_engine_that_takes_longer_than_the_cpu_is_refused_with_the_figures(tried: EngineVerdict) -> None:
    found = compare_times(tried)
    if tried.outcome == ADMITTED and tried.is_timed and tried.engine_s > tried.cpu_s:
        assert found.outcome == SLOWER and found.refused and not found.is_fault
        assert found.why.startswith("it takes ") and ", the CPU " in found.why
        assert replace(found, outcome=ADMITTED, why=tried.why) == tried
    else:
        assert found == tried


def test_the_drift_of_a_segment_is_that_of_its_engine_for_its_model() -> None:
    segment = replace(handmade.split_plan().programs["a"].segments[0], engine="lab")
    book = VerdictBook()
    assert book.drift_of(replace(segment, engine="")) == 1.0
    assert book.drift_of(segment) is None
    book.note(EngineVerdict("lab", segment.digest, ADMITTED, model="m"))
    assert book.drift_of(segment) is None, "it was not timed"
    book.note(EngineVerdict("lab", "x", ADMITTED, model="m", cpu_s=2.0, engine_s=3.0, times_cpu=0.5))
    book.note(EngineVerdict("lab", "y", ADMITTED, model="n", cpu_s=2.0, engine_s=9.0, times_cpu=0.5))
    assert book.drift_of(segment) == 3.0
    assert {(one.model, one.drift) for one in book.drifts()} == {("m", 3.0), ("n", 9.0)}


def test_a_book_does_not_grow_for_ever() -> None:
    book = VerdictBook()
    for number in range(MOST_VERDICTS + 5):
        book.note(EngineVerdict("lab", str(number), CRASHES, "w" * (2 * MOST_WHY)))
    assert len(book.all()) == MOST_VERDICTS
    assert not book.find("lab", "4") and book.find("lab", "5")
    assert len(book.all()[0].why) == MOST_WHY


def test_only_segments_for_which_their_engine_is_refused_go_to_the_cpu() -> None:
    first, second = (
        replace(one, engine="lab", calibrated_s=2.0) for one in handmade.split_plan().programs["a"].segments
    )
    program = replace(handmade.split_plan().programs["a"], segments=(first, second))
    book = VerdictBook()
    book.note(EngineVerdict("lab", first.digest, ADMITTED))
    assert book.settle(program) is program
    book.note(EngineVerdict("lab", second.digest, CRASHES))
    book.note(EngineVerdict("other", first.digest, CRASHES))
    assert book.settle(program).segments == (first, replace(second, engine="", calibrated_s=0.0))
    assert [one.engine for one in on_cpu(program).segments] == ["", ""]
