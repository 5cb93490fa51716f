"""What is measured of text generation, judged by what was aimed at, and the table of it. Rules.

A figure that misses its aim stands in the table like any other, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from edgepart.agent.text.decoder import common_start
from edgepart.planner.region import Array

PARTS_OF_CASES = frozenset(["same-answer", "quantised", "speed"])
"""Parts of which the options choose cases: how many hosts, how they are slowed, by which strategy."""
HEADS = ("part", "case", "found", "aim", "reached", "commit")


@dataclass(frozen=True)
class Figure:
    """One thing that was measured."""

    part: str
    """The part of the benchmark, as --only names it."""
    case: str
    found: str
    """The figure as people read it."""
    aim: str
    """What it should be; "" if nothing was aimed at."""
    reached: bool | None
    """Whether it is what it should be; None if nothing was aimed at."""
    commit: str = ""
    """The commit that it was measured with."""


@dataclass(frozen=True)
class Told:
    """What a client was told of one answer. Times are on the machine's monotonic clock."""

    tokens: tuple[str, ...]
    """The text of each token."""
    at_s: tuple[float, ...]
    """When each of them came."""
    began_s: float
    reason: str
    """Why the answer ended; "" if it did not."""
    replays: int
    cached_tokens: int
    error: str

    @property
    def first_s(self) -> float:
        """Seconds from the request to the first token."""
        return self.at_s[0] - self.began_s if self.at_s else float("inf")

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first one."""
        lasted_s = self.at_s[-1] - self.at_s[0] if self.at_s else 0.0
        return (len(self.at_s) - 1) / lasted_s if lasted_s > 0 else 0.0

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between two tokens."""
        return [later - sooner for sooner, later in pairwise(self.at_s)]

    @property
    def median_gap_s(self) -> float:
        return median(self.gaps_s) if len(self.at_s) > 1 else 0.0


def at_least(part: str, case: str, value: float, least: float, form: str = "{:.2f}x") -> Figure:
    """Judge a figure that should not be less.

    >>> at_least("speed", "2 hosts", 1.5, 1.65).reached
    False
    """
    return Figure(part, case, form.format(value), f"at least {form.format(least)}", value >= least)


def at_most(part: str, case: str, value: float, most: float, form: str) -> Figure:
    """Judge a figure that should not be more."""
    return Figure(part, case, form.format(value), f"at most {form.format(most)}", value <= most)


def known(part: str, case: str, found: str) -> Figure:
    """A figure for which nothing was aimed at."""
    return Figure(part, case, found, "", None)


def judge_texts(part: str, case: str, got: Sequence[Told], wanted: Sequence[Sequence[str]]) -> Figure:
    """Judge whether all answers are the wanted tokens. Names the first difference."""
    faults = [told.error for told in got if told.error]
    different = [
        f"prompt {number} differs from token {common_start(told.tokens, tokens)}"
        for number, (told, tokens) in enumerate(zip(got, wanted, strict=True))
        if tuple(told.tokens) != tuple(tokens)
    ]
    count = sum(len(tokens) for tokens in wanted)
    same = sum(common_start(told.tokens, tokens) for told, tokens in zip(got, wanted, strict=True))
    found = f"{same} of {count} tokens, {len(wanted) - len(different)} of {len(wanted)} texts"
    if faults or different:
        found += f" ({(faults or different)[0][:120]})"
    return Figure(part, case, found, "all equal", not faults and not different)


@dataclass(frozen=True)
class Likeness:
    """How far the logits of texts are those of one session that read the same tokens."""

    largest_difference: float
    """Relative to the largest logit of the same text."""
    same_share: float
    """The share of all tokens after which both find the same token most likely."""
    least_share: float
    """The same, of the text in which it is least."""


def likeness(got: Sequence[Array], wanted: Sequence[Array]) -> Likeness:
    """Compare the logits after each token, [tokens, vocabulary] for each text.

    >>> likeness([np.array([[1.0, 4.0], [2.0, 3.0]])], [np.array([[1.0, 4.0], [3.0, 2.0]])])
    Likeness(largest_difference=0.25, same_share=0.5, least_share=0.5)
    """
    pairs = list(zip(got, wanted, strict=True))
    same = [one.argmax(1) == other.argmax(1) for one, other in pairs]
    return Likeness(
        max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs),
        float(np.concatenate(same).mean()),
        min(float(texts.mean()) for texts in same),
    )


@dataclass(frozen=True)
class Loss:
    """One kill in the middle of a text."""

    kind: str
    """Who was killed: the leader, or another device."""
    told: Told
    wanted: tuple[str, ...]
    killed_s: float

    @property
    def pause_s(self) -> float:
        """The longest time between two tokens that ended after the kill."""
        after = [
            gap for gap, at in zip(self.told.gaps_s, self.told.at_s[1:], strict=True) if at > self.killed_s
        ]
        return max(after, default=float("inf"))

    @property
    def history(self) -> int:
        """How many tokens had come when the pause began."""
        return sum(at <= self.killed_s for at in self.told.at_s)


def judge_mirrored(part: str, losses: Sequence[Loss], history: int) -> list[Figure]:
    """Judge kills of hosts whose states others have copies of: the pause has a bound that does not depend on the length of
    the history."""
    pauses = sorted(loss.pause_s for loss in losses)
    found, case = _at(pauses, 0.95), f"{len(losses)} kills after {history} tokens"
    return [
        *_judge_texts(part, case, losses),
        known(part, f"{case}: pause, median", f"{_at(pauses, 0.5):.2f} s"),
        Figure(part, f"{case}: pause, 95th percentile", f"{found:.2f} s", "at most 1 s", found <= 1),
    ]


def _judge_texts(part: str, case: str, losses: Sequence[Loss]) -> list[Figure]:
    """Judge that no text broke, and that no token was lost, doubled or changed."""
    broken = sum(bool(loss.told.error) or not loss.told.reason for loss in losses)
    changed = sum(loss.told.tokens != loss.wanted and not loss.told.error for loss in losses)
    replays = sum(loss.told.replays > 0 for loss in losses)
    return [
        Figure(part, f"{case}: texts broken", str(broken), "0", broken == 0),
        Figure(part, f"{case}: texts with tokens lost, doubled or changed", str(changed), "0", changed == 0),
        known(part, f"{case}: texts whose history was read again, at least in part", str(replays)),
    ]


def judge_losses(part: str, losses: Sequence[Loss], prompt_tokens: int, step_s: float) -> list[Figure]:
    """Judge kills: no text may break, no token be lost, doubled or changed, and the pause is bounded by the time that
    reading the history takes. `step_s` is the time of a step without trouble."""
    pauses = sorted(loss.pause_s for loss in losses)
    share = sorted(loss.pause_s / (0.5 + 1.3 * step_s * (prompt_tokens + loss.history)) for loss in losses)
    case = f"{len(losses)} kills ({', '.join(f'{n} of the {k}' for k, n in counted(losses).items())})"
    bound = "0.5 s + 1.3 times reading the history"
    return [
        *_judge_texts(part, case, losses),
        known(part, f"{case}: pause, median and 95th percentile", f"{_at(pauses, 0.5):.2f} s, {_at(pauses, 0.95):.2f} s"),
        Figure(
            part,
            f"{case}: pause, as a share of {bound}, median and 95th percentile",
            f"{_at(share, 0.5):.2f}, {_at(share, 0.95):.2f}",
            "at most 1",
            _at(share, 0.95) <= 1,
        ),
    ]  # fmt: skip


def counted(losses: Iterable[Loss]) -> dict[str, int]:
    """Return how many kills there were of each kind."""
    found: dict[str, int] = {}
    for loss in losses:
        found[loss.kind] = found.get(loss.kind, 0) + 1
    return found


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] if ordered else float("inf")


def merged(old: Iterable[Mapping[str, Any]], new: Iterable[Figure], parts: Sequence[str]) -> list[Figure]:
    """Return the figures of all parts in order: the new ones in place of older ones of the same part, or of the same case
    where the options can choose cases."""
    fresh = list(new)
    again = {_subject(figure) for figure in fresh}
    kept = [one for one in (Figure(**each) for each in old) if _subject(one) not in again]
    return sorted((*kept, *fresh), key=lambda figure: parts.index(figure.part))


def _subject(figure: Figure) -> tuple[str, str]:
    """The part, and what of it is measured at once."""
    if figure.part not in PARTS_OF_CASES:
        return figure.part, ""
    return figure.part, re.sub(r" \(\d+ used[^)]*\)", "", figure.case.split(":")[0])


def documents(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    return [asdict(figure) for figure in figures]


def tabled(figures: Iterable[Figure]) -> Table:
    """Return the table of all figures."""
    found = Table(*HEADS)
    words = {True: "yes", False: "**no**", None: "-"}
    for one in figures:
        found.add_row(one.part, one.case, one.found, one.aim or "-", words[one.reached], one.commit)
    return found
