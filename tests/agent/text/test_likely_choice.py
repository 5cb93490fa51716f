"""Likely choice: the token that whole logits give, or none; and how many entries are asked for, so that it is rarely
none."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.serving.likely_outputs import merge_likely
from edgepart.agent.text.generation import Sampling
from edgepart.agent.text.likely_choice import FOR_SHARE, MORE, MOST, choose_from, count_likely, describe_from
from edgepart.agent.text.sampling import choose, describe_choice
from edgepart.agent.wire.likely_entries import LikelyEntries, find_likely, keep_likely
from edgepart.planner.errors import RunError
from edgepart.planner.region import Region

GREEDY = Sampling(temperature=0.0)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.01, 0.3, 0.6, 1.0, 1.0, 1.3, 2.0]),
    top_k=st.sampled_from([0, 0, 0, 1, 2, 5, 20, 400]),
    top_p=st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.95, 0.999, 1.0, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 0.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 0.0, 0.0, 0.25]),
    seed=st.integers(0, 2**64 - 1),
)
tokens = st.lists(st.integers(0, 40), max_size=12)


@st.composite
def logits(draw: st.DrawFn) -> Any:
    """Logits in which many are equal or nearly so, or few are likely, or most are impossible."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, kind = draw(st.integers(3, 300)), draw(st.sampled_from([np.float16, np.float32, np.float64]))
    row = random.standard_normal(size) * draw(st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0]))
    if draw(st.booleans()):
        row = np.round(row * 2) / 2
    if draw(st.booleans()):
        row += draw(st.sampled_from([-1000.0, -3.0, 500.0]))
    if draw(st.integers(0, 4)) == 0:
        row[random.random(size) < draw(st.sampled_from([0.1, 0.9]))] = -np.inf
        row[int(random.integers(size))] = 1.0
    return row.astype(kind)


@st.composite
def cuts(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """The columns of each of several devices."""
    bounds = sorted({0, size, *draw(st.lists(st.integers(1, size - 1), max_size=3))})
    return list(pairwise(bounds))


def likely_of(row: Any, count: int, columns: list[tuple[int, int]]) -> Any:
    """The logits as a gateway has them if devices were asked for so many likely entries."""
    pieces = [(Region.box(bounds), keep_likely(row[slice(*bounds)], count)) for bounds in columns]
    return merge_likely(row.shape, pieces, count)


@settings(max_examples=600)
@given(logits(), samplings, tokens, tokens, st.integers(1, 60), st.data())
def test_the_choice_is_that_from_whole_logits_or_is_not_made(
    row: Any, sampling: Sampling, prompt: list[int], generated: list[int], count: int, data: st.DataObject
) -> None:
    # Half of the time the most likely tokens are those that have penalties.
    order = np.argsort(-row, kind="stable") if data.draw(st.booleans()) else np.arange(row.size)
    prompt, generated = ([int(order[token % row.size]) for token in one] for one in (prompt, generated))
    columns = data.draw(cuts(row.size))
    found = choose_from(likely_of(row, count, columns), sampling, prompt, generated)
    assert found in (None, choose(row, sampling, prompt, generated))


@given(logits(), st.data())
def test_greedy_is_known_from_one_entry(row: Any, data: st.DataObject) -> None:
    assert count_likely(GREEDY, None, (), ()) == 1
    found = choose_from(likely_of(row, 1, data.draw(cuts(row.size))), GREEDY, (), ())
    assert found == choose(row, GREEDY, (), ()) == int(np.argmax(row))


@given(logits(), st.integers(1, 20), st.data())
def test_what_is_told_of_a_token_is_the_models_own(row: Any, likely: int, data: st.DataObject) -> None:
    entries = likely_of(row, likely, data.draw(cuts(row.size)))
    token = int(np.argmax(row))
    told, expected = describe_from(entries, token, likely), describe_choice(row, token, likely)
    assert told.token == token and told.logprob == pytest.approx(expected.logprob, abs=2e-5)
    assert [one for one, _ in told.likely] == [one for one, _ in expected.likely]
    assert [p for _, p in told.likely] == pytest.approx([p for _, p in expected.likely], abs=2e-5)
    assert describe_from(row, token, likely) == expected
    assert describe_from(entries, token, None).likely == []


USUAL = [
    Sampling(temperature=0.6, top_p=0.9),
    Sampling(temperature=0.7, top_k=20, top_p=0.8),
    Sampling(top_p=0.95),
    Sampling(temperature=0.8, min_p=0.05),
    Sampling(temperature=1.5, min_p=0.1),
    Sampling(temperature=1.2, top_k=64),
    Sampling(temperature=0.7, top_p=0.8, repetition_penalty=1.05),
    Sampling(top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5),
    Sampling(temperature=0.0, repetition_penalty=1.1),
]


@pytest.mark.parametrize("sampling", USUAL, ids=str)
def test_usual_texts_rarely_need_whole_logits(sampling: Sampling) -> None:
    """On a vocabulary of the usual size, where some hundred tokens are far more likely than all others."""
    random, unknown = np.random.default_rng(3), 0
    prompt = random.integers(0, 20_000, 40).tolist()
    for step in range(40):
        row = random.standard_normal(20_000).astype(np.float32)
        row[random.integers(0, row.size, 100)] += 6 + 10 * random.random(100).astype(np.float32)
        generated = random.integers(0, row.size, step).tolist()
        count = count_likely(sampling, None, prompt, generated)
        assert 0 < count <= 2 * FOR_SHARE
        found = choose_from(likely_of(row, count, [(0, 9000), (9000, row.size)]), sampling, prompt, generated)
        unknown += found is None
        assert found in (None, choose(row, sampling, prompt, generated))
    assert unknown <= 4


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=1.5, top_p=0.9),
        Sampling(temperature=0.0, presence_penalty=-0.5),
        Sampling(temperature=0.0, frequency_penalty=-0.5),
        Sampling(temperature=0.0, repetition_penalty=0.9),
        Sampling(top_k=MOST),
    ],
    ids=str,
)
def test_whole_logits_are_asked_for_where_all_tokens_count(sampling: Sampling) -> None:
    assert count_likely(sampling, 5, [1, 2], [3]) == 0


def test_more_is_asked_for_as_more_is_told_or_there_was_too_little() -> None:
    assert count_likely(GREEDY, 20, (), ()) == 20
    assert count_likely(Sampling(top_k=5), 3, (), ()) == count_likely(Sampling(top_k=5), None, (), ()) > 5
    penalised = Sampling(temperature=0.0, repetition_penalty=1.1)
    assert count_likely(penalised, None, [1, 2, 2], [3]) == count_likely(penalised, None, [1], []) + 2
    assert count_likely(penalised, None, range(5000), ()) < MOST
    asked = [count_likely(Sampling(top_p=0.5), None, (), (), n) for n in range(4)]
    assert asked == [FOR_SHARE, MORE * FOR_SHARE, 0, 0]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_left_to_whoever_sees_them_all(odd: float) -> None:
    row = np.linspace(-1, 1, 90, dtype=np.float32)
    row[50 if odd > 0 or odd != odd else slice(None)] = odd
    entries = likely_of(row, 3, [(0, 30), (30, 90)])
    assert choose_from(entries, GREEDY, (), ()) is None
    if odd == np.inf:
        assert choose_from(row, GREEDY, (), ()) == 50
        return
    with pytest.raises(RunError, match="logits are"):
        choose_from(row, GREEDY, (), ())


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=2), samplings, tokens)
def test_sums_that_a_peer_made_up_choose_a_token_or_none(
    sums: list[float], sampling: Sampling, generated: list[int]
) -> None:
    row = np.linspace(-3, 3, 400, dtype=np.float32)
    for log_sum in sums:
        honest = find_likely(row, 40)
        entries = LikelyEntries(honest.shape, honest.ids, honest.values, np.array([log_sum]))
        found = choose_from(entries, sampling, (), generated)
        assert found is None or 0 <= found < row.size


def test_a_penalty_on_the_last_entry_does_not_rule_out_those_after_it() -> None:
    """The last entry falls below what min-p lets through; a token that was hardly less likely does not."""
    row = np.array([2.0, 1.9, 1.8, *(1.7 - n / 100 for n in range(40))], np.float32)
    sampling = Sampling(min_p=0.5, presence_penalty=2.0)
    assert choose_from(likely_of(row, 3, [(0, 43)]), sampling, (), [2]) is None
    assert choose_from(likely_of(row, 3, [(0, 43)]), replace(sampling, min_p=0.85), (), [2]) in (0, 1)
