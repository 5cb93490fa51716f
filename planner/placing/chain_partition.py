"""Balance: a chain of parts placed on devices one after another, so that the busiest device is the least busy. Pure;
knows nothing of models.

The chain has places 0..n between and around its parts; a stage is what lies between two of them. `loads[d][i, j]` is
how long device d is busy with the stage from place i to place j; inf where it cannot take it. All orders of a few
devices are tried at once, by how far the chain is placed and on whom: exact, in 2^devices * places^2 steps. Of many
devices one order is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Loads = np.ndarray[Any, np.dtype[np.float64]]
"""[from, to], of one device."""

MOST_DEVICES = 8
"""Up to so many are tried in all orders; of more, the first so many in all, and all in the order given."""


@dataclass(frozen=True)
class Stages:
    """The stages of a division, in order, each with its device."""

    busiest: float
    """The largest load; their sum where that was asked for."""
    stages: tuple[tuple[int, int, int], ...]
    """(device, from, to); consecutive, from place 0 to the last."""


def balance(loads: Sequence[Loads], whole: np.ufunc = np.maximum) -> Iterator[Stages]:
    """Yield the division with the least busiest device, for 1, 2, 3 ... devices, if there is one. With `whole` np.add
    it is the sum of the loads that is least: that of a sample that goes through them one after the other."""
    few = [_stages_only(load) for load in loads[:MOST_DEVICES]]
    yield from _in_any_order(few, whole)
    if len(loads) > len(few):
        yield from balance_in_order([_stages_only(load) for load in loads], whole)


def _stages_only(load: Loads) -> Loads:
    """Without what goes backwards, or nowhere."""
    return np.where(np.triu(np.ones(load.shape, dtype=bool), 1), load, np.inf)


def _in_any_order(loads: Sequence[Loads], whole: np.ufunc) -> Iterator[Stages]:
    places, everybody = loads[0].shape[0], 1 << len(loads)
    least = np.full((everybody, places), np.inf)
    least[0, 0] = 0.0
    came = np.zeros((everybody, places, 2), dtype=int)  # The last device, and where its stage begins.
    for taken in range(everybody):
        for device, load in enumerate(loads):
            if taken >> device & 1:
                continue
            reached = whole(least[taken][:, None], load)
            found, then = reached.min(axis=0), taken | 1 << device
            better = found < least[then]
            least[then][better] = found[better]
            came[then][better, 0] = device
            came[then][better, 1] = reached.argmin(axis=0)[better]
    for count in range(1, len(loads) + 1):
        sets = [taken for taken in range(everybody) if taken.bit_count() == count]
        best = min(sets, key=lambda taken: least[taken, -1])
        if np.isfinite(least[best, -1]):
            yield Stages(float(least[best, -1]), tuple(_back(came, best)))


def _back(came: np.ndarray[Any, np.dtype[np.int_]], taken: int) -> list[tuple[int, int, int]]:
    stages: list[tuple[int, int, int]] = []
    place = came.shape[1] - 1
    while place > 0:
        device, begin = (int(x) for x in came[taken, place])
        stages.append((device, begin, place))
        taken, place = taken & ~(1 << device), begin
    return stages[::-1]


def balance_in_order(loads: Sequence[Loads], whole: np.ufunc = np.maximum) -> Iterator[Stages]:
    """The division with the least busiest device where devices come in the order given, some left out; none where there
    is none."""
    places = loads[0].shape[0]
    least = np.where(np.arange(places) == 0, 0.0, np.inf)
    begins = []  # By device and place, where its stage begins; the place itself where it has none.
    for load in loads:
        reached = whole(least[:, None], load)
        better = reached.min(axis=0) < least
        begins.append(np.where(better, reached.argmin(axis=0), np.arange(places)))
        least = np.where(better, reached.min(axis=0), least)
    stages, place = [], places - 1
    for device in reversed(range(len(loads))):
        begin = int(begins[device][place])
        if begin != place:
            stages.append((device, begin, place))
            place = begin
    if np.isfinite(least[-1]):
        yield Stages(float(least[-1]), tuple(reversed(stages)))
