"""The history of requests against a plain list of them; its bounds; and quantiles against sorted durations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.chronicle import request_history as history
from edgepart.agent.chronicle.request_history import (
    BINS,
    MOST_DEPLOYMENTS,
    MOST_REASONS,
    OTHER,
    SLICE_S,
    SLICES,
    RequestHistory,
    bin_of,
    middle_of,
    quantile,
)

durations = st.floats(2e-5, 2000.0)


@given(durations)
def test_a_bin_is_right_to_five_per_cent(seconds: float) -> None:
    assert middle_of(bin_of(seconds)) == pytest.approx(seconds, rel=0.05)


@given(st.lists(durations, min_size=1, max_size=60), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_those_of_the_sorted_durations(taken: list[float], part: float) -> None:
    counts = [0] * BINS
    for seconds in taken:
        counts[bin_of(seconds)] += 1
    exact = sorted(taken)[max(math.ceil(part * len(taken) - 1e-9), 1) - 1]
    assert quantile(counts, part) == pytest.approx(exact, rel=0.05)


requests = st.lists(
    st.tuples(st.floats(0.0, 40.0), st.sampled_from(["a", "b"]), st.none() | durations), max_size=60
)


@given(requests, st.floats(1e3, 1e6), st.floats(0.0, 700.0))
def test_series_and_figures_are_those_of_a_plain_list(
    drawn: list[tuple[float, str, float | None]], began: float, later: float
) -> None:
    kept, plain, now = RequestHistory(), [], began
    for pause, model, seconds in drawn:
        now += pause
        plain.append((now, model, seconds))
        if seconds is None:
            kept.failed(model, now, "Unavailable")
        else:
            kept.answered(model, now, seconds)
    now += later
    first = int(now // SLICE_S) - SLICES + 1
    for model in ("a", "b"):
        mine = [(at, seconds) for at, name, seconds in plain if name == model]
        series = kept.series(model, now)
        assert len(series) == SLICES
        for number, one in enumerate(series, first):
            within = [seconds for at, seconds in mine if int(at // SLICE_S) == number]
            good = [seconds for seconds in within if seconds is not None]
            assert one.failed == len(within) - len(good)
            middle = quantile_of(good, 0.5)
            assert one.p50_s is None if middle is None else one.p50_s == pytest.approx(middle, rel=0.05)
            if number < int(now // SLICE_S):
                assert one.per_s == pytest.approx(len(good) / SLICE_S)
        failed = sum(seconds is None and int(at // SLICE_S) >= first for at, seconds in mine)
        assert kept.errors(model, now) == ({"Unavailable": failed} if failed else {})


def quantile_of(taken: list[float], part: float) -> float | None:
    return sorted(taken)[math.ceil(part * len(taken)) - 1] if taken else None


def test_lately_is_the_last_minute_or_the_time_since_the_first_request() -> None:
    kept = RequestHistory()
    for n in range(20):
        kept.answered("net", 1000.0 + n, 0.1)
    assert kept.lately("net", 1020.0).per_s == pytest.approx(1.0)
    assert kept.lately("net", 1100.0).per_s == 0.0
    assert kept.lately("net", 1100.0).p50_s is None
    assert kept.lately("unknown", 1.0).per_s == 0.0
    kept.grown("net", 1200.0, 60)
    assert kept.lately("net", 1200.0).tokens_per_s == pytest.approx(60 / 55)


def test_the_last_request_is_told() -> None:
    kept = RequestHistory()
    assert kept.last("net") is None
    kept.answered("net", 5.0, 0.2, 0.1, 2)
    kept.failed("net", 6.0, "Unavailable")
    assert kept.last("net") == history.LastRequest(5.0, 0.2, 0.1, 2)


def test_memory_is_bounded() -> None:
    kept = RequestHistory()
    for n in range(MOST_DEPLOYMENTS + 3):
        kept.answered(f"net{n}", 1.0, 0.1)
    assert len(kept.models()) == MOST_DEPLOYMENTS and "net0" not in kept.models()
    for n in range(MOST_REASONS + 5):
        kept.failed("net5", 2.0, f"Error{n}")
    assert kept.errors("net5", 2.0)[OTHER] == 5
    for n in range(3 * SLICES):
        kept.answered("net5", 10.0 + n * SLICE_S, 0.1)
    assert len(kept._deployments["net5"].slices) == SLICES
