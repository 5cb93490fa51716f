"""Sampling: chooses the next token from a model's logits. Pure functions of the logits, the options and the tokens before.

The options apply in this order: penalties, temperature, top-k, top-p, min-p. Chance is a number that follows from the seed
and the place of the token, so that a step that is repeated, here or on another device, chooses the same token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepart.agent.text.generation import Sampling
from edgepart.planner.errors import RequestError, RunError

Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]

BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_k": (0, 2**31 - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 10),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**64 - 1),
}
"""The lowest and the highest value of each option."""
WHOLE = ("top_k", "seed")
"""Options that are whole numbers."""
FIRST_LIKELY = 1024
"""The number of most likely tokens among which top-p looks first. Mostly they are enough, and sorting a whole vocabulary
takes several times as long as all the rest."""


class ChosenToken(NamedTuple):
    """A token that was chosen. Probabilities are the model's own, before penalties and temperature."""

    token: int
    logprob: float
    likely: list[tuple[int, float]]
    """The most likely tokens and their log-probabilities, the most likely one first, ties by their ids. Tokens that the
    model rules out (a logit of minus infinity) are left out."""


def check_sampling(sampling: Sampling) -> None:
    """Raises RequestError, with its name and bounds, if an option is not a number within its bounds."""
    for name, (low, high) in BOUNDS.items():
        value = getattr(sampling, name)
        kind = "a whole number" if name in WHOLE else "a number"
        allowed = int if name in WHOLE else int | float
        if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
            raise RequestError(
                f"{name} must be {kind} from {low} to {high}, and is {str(value)[:40]!r}; nothing was generated"
            )


def choose(
    logits: NDArray[Any],
    sampling: Sampling,
    prompt_tokens: Sequence[int],
    generated_tokens: Sequence[int],
) -> int:
    """Return the next token, after `generated_tokens`.

    `logits` has one number for each token of the vocabulary. Raises RunError if no token can be chosen from them, as one is
    not a number or all are minus infinity. The sampling is one that `check_sampling` takes.
    """
    penalties = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
    if sampling.temperature == 0 and penalties == (1, 0, 0):
        token = int(np.argmax(logits))
        if np.isfinite(logits[token]):
            # The usual case by far. Every token waits for this choice, and it takes a fifth of the time of what follows.
            return token
    ways = _relative(np.asarray(logits))
    if penalties != (1, 0, 0):
        # Repetition penalties divide the logits themselves, and not their distances from the greatest.
        ways = _relative(penalise(logits, sampling, prompt_tokens, generated_tokens))
    if sampling.temperature == 0:
        return int(ways.argmax())
    return _draw(ways, sampling, uniform(sampling.seed, len(generated_tokens)))


def describe_choice(logits: NDArray[Any], token: int, likely: int | None) -> ChosenToken:
    """Return a token that `choose` has chosen from these logits with its log-probability, and the `likely` most likely
    ones."""
    own = _relative(np.asarray(logits))
    total = math.log(float(np.exp(own).sum()))
    ids = greatest(own, likely) if likely else np.empty(0, np.int64)
    ids = ids[np.lexsort((ids, -own[ids]))]
    return ChosenToken(
        token, float(own[token]) - total, [(int(n), float(own[n]) - total) for n in ids if own[n] > -np.inf]
    )


def uniform(seed: int, number: int) -> float:
    """Return the random number, at least 0 and below 1, by which the token of this number is chosen.

    >>> uniform(7, 3) == uniform(7, 3) != uniform(7, 4)
    True
    """
    key = np.array([seed % 2**64, number], np.uint64)
    return (int(np.random.Philox(key=key).random_raw()) >> 11) * 2.0**-53


def _relative(logits: NDArray[Any]) -> Numbers:
    """Return how far each logit is below the greatest one: 0 at the greatest, so that no exponential overflows."""
    numbers = logits.astype(np.float64)
    highest = numbers.max(initial=-np.inf)
    if np.isnan(highest):
        count = int(np.isnan(numbers).sum())
        raise RunError(
            f"{count} of the model's {numbers.size} logits are not numbers, so that no token can be chosen; "
            "the model computes wrongly on these tokens, and the text ends before them"
        )
    if highest == -np.inf:
        raise RunError(
            f"all of the model's {numbers.size} logits are minus infinity, so that no token can be chosen; "
            "the model computes wrongly on these tokens, and the text ends before them"
        )
    if highest == np.inf:  # too large for the model's type: these tokens are equally likely
        return np.where(numbers == np.inf, 0.0, -np.inf)
    with np.errstate(
        over="ignore"
    ):  # minus infinity, below the greatest by more than any number, is rightly impossible
        numbers -= highest
    return numbers


def penalise(
    logits: NDArray[Any],
    sampling: Sampling,
    prompt_tokens: Sequence[int],
    generated_tokens: Sequence[int],
    ids: Ids | None = None,
) -> Numbers:
    """Return the logits after penalties. They are those of the tokens `ids`, which ascend; None stands for all."""
    numbers = logits.astype(np.float64)
    tokens = np.arange(numbers.size) if ids is None else ids
    if sampling.repetition_penalty != 1:
        before, _ = _counted((*prompt_tokens, *generated_tokens), tokens)
        there = numbers[before]
        factor = sampling.repetition_penalty
        numbers[before] = np.where(there > 0, there / factor, there * factor)
    if sampling.presence_penalty != 0 or sampling.frequency_penalty != 0:
        made, counts = _counted(generated_tokens, tokens)
        numbers[made] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    return numbers


def _counted(tokens: Sequence[int], known: Ids) -> tuple[Ids, Ids]:
    """Return where in `known` the tokens are, once each, and how often each occurs. Tokens that are not there cannot be
    chosen anyway."""
    ids, counts = np.unique(np.asarray(tokens, np.int64), return_counts=True)
    places = np.minimum(np.searchsorted(known, ids), known.size - 1)
    found = known[places] == ids
    return places[found], counts[found]


def _draw(relative: Numbers, sampling: Sampling, chance: float) -> int:
    """Return the token at which the sum of the probabilities of the tokens left, in the order of their ids, first exceeds
    `chance` times their whole sum."""
    with np.errstate(over="ignore"):  # minus infinity, at very low temperatures, is a probability of 0
        scaled = relative / sampling.temperature
    ids: Ids | None = None
    if 0 < sampling.top_k < scaled.size:
        ids = np.sort(greatest(scaled, sampling.top_k))
        scaled = scaled[ids]
    weights = np.exp(scaled)
    place = draw_place(limit(weights, sampling, wanted_weight(weights, sampling)), chance)
    return place if ids is None else int(ids[place])


def wanted_weight(weights: Numbers, sampling: Sampling) -> float:
    """Return the weight that the most likely tokens must have together to be chosen from by top-p; inf without top-p."""
    return sampling.top_p * float(weights.sum()) if sampling.top_p < 1 else math.inf


def limit(weights: Numbers, sampling: Sampling, wanted: float) -> Numbers:
    """Return the weights, with 0 for tokens that top-p or min-p rules out. The greatest of all weights is 1."""
    if sampling.top_p < 1:
        nucleus = _nucleus(weights, wanted)
        left = np.zeros_like(weights)
        left[nucleus] = weights[nucleus]
        weights = left
    return np.where(weights < sampling.min_p, 0.0, weights) if sampling.min_p > 0 else weights


def draw_place(weights: Numbers, chance: float) -> int:
    """Return the place at which the sum of the weights first exceeds `chance` times their whole sum."""
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, chance * sums[-1], side="right"))
    if place == sums.size:  # The product was rounded up to the whole sum.
        place = int(np.flatnonzero(weights)[-1])
    return place


def _nucleus(weights: Numbers, wanted: float) -> Ids:
    """Return the fewest most likely tokens, at least one, that together have this weight."""
    size = weights.size
    for count in (min(FIRST_LIKELY, size), size):
        descending = np.sort(np.partition(weights, size - count)[size - count :])[::-1]
        sums = np.cumsum(descending)
        if sums[-1] >= wanted:
            return greatest(weights, int(np.searchsorted(sums, wanted, side="left")) + 1)
    return np.arange(size)  # a share of nearly 1, beyond what the sum, as it is rounded, comes to


def greatest(numbers: Numbers, count: int) -> Ids:
    """Return where the `count` greatest numbers are, in no order; of equal ones those at the first places."""
    count = min(count, numbers.size)
    least = np.partition(numbers, numbers.size - count)[numbers.size - count]
    above = np.flatnonzero(numbers > least)
    return np.concatenate((above, np.flatnonzero(numbers == least)[: count - above.size]))
