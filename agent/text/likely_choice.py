"""Likely choice: chooses the next token from the most likely entries of the logits, where that is the choice from all of
them. Pure functions.

Nothing is known of any other token but that it comes after these entries, and what the exponentials of all tokens come to.
Where the choice depends on more, it is not made, and whoever asked has to get whole logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgepart.agent.text.decoder import Logits
from edgepart.agent.text.generation import Sampling
from edgepart.agent.text.sampling import (
    ChosenToken,
    Ids,
    Numbers,
    choose,
    describe_choice,
    draw_place,
    greatest,
    limit,
    penalise,
    uniform,
    wanted_weight,
)
from edgepart.agent.wire.likely_entries import SUM_ERROR, LikelyEntries

FOR_SHARE = 128
"""The number of entries that are asked for if tokens are chosen from by their share of the probability. With more, more
bytes travel with each token; with fewer, more steps have to be made again."""
SPARE = 8
"""Entries that are asked for beyond those that are chosen from: one more is needed to see that none is as likely."""
MOST = 1024
"""Where more entries are needed, whole logits are asked for."""
MORE = 4
"""After each step of a text that had too few entries, so many times as many are asked for."""
ROUNDING = 1e-9
"""A share of a weight that is more than what rounding can make of it."""

LARGEST_LOGIT = 1e9
"""Of larger logarithms the last digits, which say what the rest comes to, are lost."""


def count_likely(
    sampling: Sampling,
    logprobs: int | None,
    prompt_tokens: Sequence[int],
    generated_tokens: Sequence[int],
    shortfalls: int = 0,
) -> int:
    """Return how many of the most likely entries to ask for to choose the next token; 0 for whole logits. `logprobs` is the
    number of most likely tokens that are told with it, and `shortfalls` how often there were too few in this text."""
    if _raises(sampling):
        return 0
    penalised = _penalised_tokens(sampling, prompt_tokens, generated_tokens).size
    if sampling.temperature == 0:
        count = SPARE if penalised else 1
    elif sampling.top_k > 0:
        count = sampling.top_k + SPARE
    elif sampling.min_p > 0 or (sampling.top_p < 1 and sampling.temperature <= 1):
        count = FOR_SHARE
    else:
        return 0
    count = max(count + min(penalised, FOR_SHARE), logprobs or 0) * MORE**shortfalls
    return count if count <= MOST else 0


def choose_from(
    logits: Logits, sampling: Sampling, prompt_tokens: Sequence[int], generated_tokens: Sequence[int]
) -> int | None:
    """Return the token that `choose` chooses from whole logits; None if the entries do not say which one that is. Raises
    what `choose` raises."""
    if isinstance(logits, np.ndarray):
        return choose(logits, sampling, prompt_tokens, generated_tokens)
    if not np.isfinite(logits.log_sums[0]):
        return None
    if sampling.temperature == 0 and not _penalises(sampling):
        return int(logits.ids[0, 0])
    order = np.argsort(logits.ids[0])
    ids, raw = logits.ids[0, order].astype(np.int64), logits.values[0, order].astype(np.float64)
    if ids.size == logits.shape[-1]:
        return choose(raw, sampling, prompt_tokens, generated_tokens)
    least = float(raw.min())
    if _raises(sampling) or least == -np.inf:
        return None
    numbers = penalise(raw, sampling, prompt_tokens, generated_tokens, ids)
    if numbers.max() <= least:
        return None
    if sampling.temperature == 0:
        return int(ids[numbers.argmax()])
    outside = np.setdiff1d(_penalised_tokens(sampling, prompt_tokens, generated_tokens), ids).size
    place = _draw(logits, numbers, sampling, uniform(sampling.seed, len(generated_tokens)), outside)
    return int(ids[place]) if place is not None else None


def describe_from(logits: Logits, token: int, likely: int | None) -> ChosenToken:
    """Return a token that `choose_from` has chosen from these logits as `describe_choice` does. Of the most likely tokens
    no more are told than there are entries."""
    if isinstance(logits, np.ndarray):
        return describe_choice(logits, token, likely)
    ids, values, total = logits.ids[0], logits.values[0].astype(np.float64), float(logits.log_sums[0])
    told = [
        (int(n), float(value) - total)
        for n, value in zip(ids[: likely or 0], values, strict=False)
        if value > -np.inf
    ]
    return ChosenToken(token, float(values[ids == token][0]) - total, told)


def _penalises(sampling: Sampling) -> bool:
    given = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
    return given != (1, 0, 0)


def _raises(sampling: Sampling) -> bool:
    """Whether penalties can raise logits, so that tokens that are not among the most likely ones may come before them."""
    return sampling.repetition_penalty < 1 or min(sampling.presence_penalty, sampling.frequency_penalty) < 0


def _penalised_tokens(
    sampling: Sampling, prompt_tokens: Sequence[int], generated_tokens: Sequence[int]
) -> Ids:
    """The tokens whose logits the penalties change, once each."""
    if not _penalises(sampling):
        return np.empty(0, np.int64)
    prompt = prompt_tokens if sampling.repetition_penalty != 1 else ()
    return np.unique(np.array((*prompt, *generated_tokens), np.int64))


def _draw(
    logits: LikelyEntries, numbers: Numbers, sampling: Sampling, chance: float, outside: int
) -> int | None:
    """Return the place of the token that is drawn; None if it is not known. `numbers` are the entries after penalties, in
    the order of their ids, and `outside` is how many other tokens have penalties."""
    least, highest = float(logits.values[0, -1]), float(numbers.max())
    with np.errstate(over="ignore"):
        scaled = (numbers - highest) / sampling.temperature
    others = (least - highest) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        left = np.sort(greatest(scaled, sampling.top_k))
        if left.size < sampling.top_k or scaled[left].min() <= others:
            return None
        weights = np.exp(scaled[left])
        kept = limit(weights, sampling, wanted_weight(weights, sampling))
        return int(left[draw_place(kept, chance)])
    rest = _rest(logits, highest, sampling.temperature, outside)
    found = _limit(np.exp(scaled), sampling, rest, math.exp(others))
    return draw_place(found, chance) if found is not None else None


def _limit(weights: Numbers, sampling: Sampling, rest: tuple[float, float], others: float) -> Numbers | None:
    """Return the weights as `limit` does; None if these are not known from the bounds of the rest of the weight, and
    of the weight of each other token."""
    total, wanted = float(weights.sum()), (math.inf, math.inf)
    if sampling.top_p < 1:
        low, high = (total + rest[0]) * (1 - ROUNDING), (total + rest[1]) * (1 + ROUNDING)
        wanted = sampling.top_p * low, sampling.top_p * high
    # As if another token had the greatest weight that one can have: if it is left, or one that is as likely, others may be.
    shown = np.append(weights, others * (1 + ROUNDING))
    fewest, most = (limit(shown, sampling, one) for one in wanted)
    if not np.array_equal(fewest, most) or most[-1] > 0 or most[most > 0].min() <= shown[-1]:
        return None
    return most[:-1]


def _rest(logits: LikelyEntries, highest: float, temperature: float, penalised: int) -> tuple[float, float]:
    """Return bounds of what the weights of all other tokens come to, relative to the weight of a token with the logit
    `highest`, which is above theirs. So many of them have penalties, which lower their logits."""
    others, sharpness = logits.shape[-1] - logits.count, 1 / temperature
    relative = logits.values[0].astype(np.float64) - highest
    with np.errstate(over="ignore", under="ignore"):
        each = float(np.exp(relative[-1] * sharpness))
        total = float(np.exp(logits.log_sums[0] - highest))
        if not math.isfinite(total) or abs(logits.log_sums[0]) > LARGEST_LOGIT:
            return 0.0, others * each
        # The sum of the others' weights without temperature and penalties.
        plain = max(total - float(np.exp(relative).sum()), 0.0)
        low, high = max(plain - SUM_ERROR * total, 0.0), plain + SUM_ERROR * total
        # A temperature raises each weight to a power. Of equal sums of weights, even ones have the least sum of powers
        # above 1, and the greatest sum of powers below 1. Each weight is below 1 and no more than that of the last entry.
        even_low, even_high = (others * float(np.float64(one / others) ** sharpness) for one in (low, high))
        if temperature <= 1:
            low, high = even_low, high * float(np.exp(relative[-1] * (sharpness - 1)))
        else:
            high = even_high
    return max(low - penalised * each, 0.0), min(high, others * each)
