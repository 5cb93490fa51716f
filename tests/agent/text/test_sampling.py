"""Sampling agrees with a plain twin, has the figures of the formulas, and never fails on extreme logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgepart.agent.text.generation import Sampling
from edgepart.agent.text.sampling import (
    BOUNDS,
    FIRST_LIKELY,
    check_sampling,
    choose,
    describe_choice,
    uniform,
)
from edgepart.planner.errors import RequestError, RunError

GREEDY = Sampling(temperature=0.0)


def plain_weights(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int], generated: Sequence[int]
) -> dict[int, float]:
    """The weights of the tokens left, by ids: the definition, token for token."""
    numbers = list(logits)
    for token in {*prompt, *generated}:
        factor = sampling.repetition_penalty
        numbers[token] = numbers[token] / factor if numbers[token] > 0 else numbers[token] * factor
    for token, count in Counter(generated).items():
        numbers[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    greatest = max(numbers)
    order = sorted(range(len(numbers)), key=lambda token: (-numbers[token], token))
    if sampling.temperature == 0:
        return {order[0]: 1.0}
    weights = {n: float(np.exp((numbers[n] - greatest) / sampling.temperature)) for n in order}
    left = order[: sampling.top_k or None]
    if sampling.top_p < 1:
        wanted = sampling.top_p * float(np.array([weights[n] for n in sorted(left)]).sum())
        nucleus, total = [], 0.0
        for token in left:
            nucleus.append(token)
            total += weights[token]
            if total >= wanted:
                break
        left = nucleus
    return {n: weights[n] for n in sorted(left) if weights[n] >= sampling.min_p}


def plain_choice(weights: dict[int, float], chance: float) -> int:
    """The token in whose part of the line from 0 to the whole sum the chance lies."""
    mark, total = chance * math.fsum(weights.values()), 0.0
    for token, weight in weights.items():
        total += weight
        if total > mark:
            return token
    return max(token for token, weight in weights.items() if weight > 0)


levels = st.integers(-40, 40).map(lambda n: n / 4)
"""Few different logits, so that many are equal."""
rows = st.lists(levels, min_size=1, max_size=40)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 0.25]),
    seed=st.integers(-(2**63), 2**64 - 1),
)


@given(rows, samplings, st.data())
def test_it_chooses_as_its_plain_twin(row: list[float], sampling: Sampling, data: st.DataObject) -> None:
    tokens = st.lists(st.integers(0, len(row) - 1), max_size=12)
    prompt, generated = data.draw(tokens), data.draw(tokens)
    weights = plain_weights(row, sampling, prompt, generated)
    chance = uniform(sampling.seed, len(generated))
    mark = chance * math.fsum(weights.values())
    sums = np.cumsum(list(weights.values()))
    assume(sampling.temperature == 0 or float(np.abs(sums - mark).min()) > 1e-9)  # both are rounded
    check_sampling(sampling)
    token = choose(np.array(row), sampling, prompt, generated)
    assert token == plain_choice(weights, chance)
    assert describe_choice(np.array(row), token, None).likely == []


@given(rows, st.integers(0, 50))
def test_probabilities_are_the_models_own(row: list[float], likely: int) -> None:
    sampling = Sampling(temperature=0.3, top_k=2, repetition_penalty=1.5, presence_penalty=1.0)
    given = np.array(row, np.float32)
    chosen = describe_choice(given, choose(given, sampling, [0], [0]), likely)
    total = math.log(math.fsum(math.exp(x) for x in row))
    assert chosen.logprob == pytest.approx(row[chosen.token] - total, abs=1e-9)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert [token for token, _ in chosen.likely] == order[:likely]
    assert [p for _, p in chosen.likely] == pytest.approx([row[n] - total for n in order[:likely]], abs=1e-9)


@given(rows)
def test_greedy_is_the_first_greatest_and_so_is_the_first_of_one(row: list[float]) -> None:
    greatest = int(np.argmax(row))
    for sampling in (GREEDY, Sampling(top_k=1), Sampling(top_p=0.0)):
        assert choose(np.array(row), sampling, (), ()) == greatest


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 5000))
def test_the_same_seed_and_place_have_the_same_token(seed: int, place: int) -> None:
    row, sampling = np.linspace(-2, 2, 200), Sampling(seed=seed)
    chosen = [choose(row, sampling, prompt, [3] * place) for prompt in ((), (1, 2))]
    assert chosen[0] == chosen[1]
    assert 0 <= uniform(seed, place) < 1


def test_seeds_and_places_have_different_numbers() -> None:
    """These figures must stay: other versions and devices go on with a text that was begun with them."""
    assert len({uniform(seed, place) for seed in range(-20, 20) for place in range(50)}) == 2000
    assert [uniform(0, 0), uniform(0, 1), uniform(42, 7), uniform(-1, 0)] == FIGURES


FIGURES = [0.011546754286331562, 0.8133540609793564, 0.649420079613736, 0.23494158814525556]


def test_choices_follow_the_probabilities() -> None:
    """4,000 choices at fixed seeds: each token's share is near its probability. With the given seeds it is always so."""
    row = np.log([0.5, 0.25, 0.15, 0.1])
    for temperature in (1.0, 0.5):
        counts = Counter(
            choose(row, Sampling(temperature=temperature, seed=seed), (), ()) for seed in range(4000)
        )
        powers = np.exp(row / temperature)
        shares = [counts[n] / 4000 for n in range(4)]
        assert shares == pytest.approx(list(powers / powers.sum()), abs=0.02)


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.7}, {"top_k": 4, "top_p": 0.8, "min_p": 0.5}]
)
def test_tokens_left_are_in_the_order_of_their_ids(options: dict[str, Any]) -> None:
    row = np.log([0.15, 0.2, 0.25, 0.22, 0.18])
    for seed in range(100):
        sampling = replace(Sampling(seed=seed), **options)
        weights = plain_weights(list(row), sampling, (), ())
        assert 1 < len(weights) < 5
        assert choose(row, sampling, (), ()) == plain_choice(weights, uniform(seed, 0))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999, 1 - 1e-12])
def test_top_p_of_a_large_vocabulary_is_the_smallest_set(share: float) -> None:
    """Beyond the tokens among which it looks first, too: these logits differ little."""
    size = 4 * FIRST_LIKELY
    row = np.random.default_rng(5).normal(0, 0.5, size)
    weights = plain_weights(list(row), Sampling(top_p=share), (), ())
    assert share < 0.9 or len(weights) > FIRST_LIKELY
    for seed in range(20):
        sampling = Sampling(top_p=share, seed=seed)
        assert choose(row, sampling, (), ()) == plain_choice(weights, uniform(seed, 0))


@pytest.mark.parametrize(
    ("sampling", "logits"),
    [
        (GREEDY, [2.0, -1.0, 0.5, 4.0]),
        (Sampling(repetition_penalty=2.0), [1.0, -2.0, 0.25, 4.0]),
        (Sampling(presence_penalty=0.5), [2.0, -1.0, 0.0, 4.0]),
        (Sampling(presence_penalty=-0.5), [2.0, -1.0, 1.0, 4.0]),
        (Sampling(frequency_penalty=0.25), [2.0, -1.0, 0.0, 4.0]),
        (Sampling(frequency_penalty=0.25, presence_penalty=1.0), [2.0, -1.0, -1.0, 4.0]),
        (Sampling(repetition_penalty=2.0, presence_penalty=0.5), [1.0, -2.0, -0.25, 4.0]),
    ],
)
def test_penalties_have_these_figures(sampling: Sampling, logits: list[float]) -> None:
    """The logits are 2, -1, 0.5 and 4; tokens 0 and 1 are in the prompt, and token 2 was generated twice. Token 3
    bears no penalty, and is chosen if its logit is the greater one."""
    given_logits = np.array([2.0, -1.0, 0.5, 4.0])
    for token, logit in enumerate(logits[:3]):
        for more, is_chosen in ((1e-6, False), (-1e-6, True)):
            other = given_logits.copy()
            other[3] = logit + more
            others = [n for n in range(3) if n != token]
            other[others] = -np.inf
            found = choose(other, replace(sampling, temperature=0.0), (0, 1), (2, 2))
            assert (found == token) is is_chosen


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(temperature=1e-300), Sampling(), Sampling(top_k=3, top_p=0.9)]
)
def test_extreme_logits_have_a_token(kind: Any, sampling: Sampling) -> None:
    huge = np.finfo(kind).max
    for row, possible in (
        ([-np.inf, 1.0, -np.inf], {1}),
        ([huge, -huge, 0.0, -np.inf], {0}),
        ([np.inf, 5.0, np.inf], {0, 2}),
        ([-huge, -huge], {0, 1}),
        ([0.0], {0}),
    ):
        for place in range(10):
            given = np.array(row, kind)
            chosen = describe_choice(given, choose(given, sampling, (), (0,) * place), 5)
            assert chosen.token in possible
            assert math.isfinite(chosen.logprob) and chosen.logprob <= 0
            assert all(math.isfinite(p) for _, p in chosen.likely)


def test_penalties_of_extreme_logits_have_a_token() -> None:
    row = np.array([3e38, -np.inf, 1.0], np.float32)
    for penalty in (0.01, 10.0):
        sampling = Sampling(repetition_penalty=penalty, frequency_penalty=2.0)
        assert choose(row, sampling, (0, 1), (0, 1)) == 0


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(top_k=5)])
def test_logits_that_are_no_numbers_are_told(sampling: Sampling) -> None:
    with pytest.raises(RunError, match=r"1 of the model's 3 logits are not numbers"):
        choose(np.array([1.0, np.nan, np.inf]), sampling, (), ())
    with pytest.raises(RunError, match=r"all of the model's 2 logits are minus infinity"):
        choose(np.array([-np.inf, -np.inf]), sampling, (), ())


def test_tokens_without_a_logit_bear_no_penalty() -> None:
    sampling = Sampling(temperature=0.0, repetition_penalty=2.0, presence_penalty=1.0)
    assert choose(np.array([1.0, 1.5]), sampling, (2, 900_000), (-1, 7)) == 1


def test_the_logits_are_left_as_they_are() -> None:
    row = np.array([1.0, 2.0, 3.0])
    describe_choice(row, choose(row, Sampling(repetition_penalty=2.0, top_k=2), (0,), (1,)), 3)
    assert row.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", BOUNDS)
def test_options_have_bounds(name: str) -> None:
    low, high = BOUNDS[name]
    for good in (low, high):
        check_sampling(_with(name, good))
    beyond = (low - 1, high + 1) if isinstance(low, int) else (low / 2, high * 2)
    for bad in (*beyond, float("nan"), float("inf"), True, "1", None, [1]):
        with pytest.raises(RequestError, match=rf"^{name} must be a .*number from"):
            check_sampling(_with(name, bad))


def _with(name: str, value: Any) -> Sampling:
    return replace(Sampling(), **{name: value})


def test_every_option_has_bounds() -> None:
    assert {field.name for field in fields(Sampling)} == BOUNDS.keys()
    check_sampling(Sampling())
    with pytest.raises(RequestError, match="top_k must be a whole number"):
        check_sampling(Sampling(top_k=2.0))  # type: ignore[arg-type]
