"""Balance: a chain of parts placed on devices one after another, so that the busiest device is the least busy. Pure;
knows nothing of models.

The chain has places 0..n between and around its parts; a stage is what lies between two of them. `loads[d][i, j]` is how
long device d is busy with the stage from place i to place j; inf where it cannot take it. All orders of the devices
are tried at once, by what is placed already and who has placed it: exact, in 2^devices * places^2 steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Loads = np.ndarray[Any, np.dtype[np.float64]]
"""[from, to], of one device."""

MOST_DEVICES = 10
"""With so many, all orders are tried; of more, the first so many."""


@dataclass(frozen=True)
class Stages:
    """Who does what, in order."""

    busiest: float
    """The largest load."""
    stages: tuple[tuple[int, int, int], ...]
    """(device, from, to); consecutive, from place 0 to the last."""


def balance(loads: Sequence[Loads]) -> Iterator[Stages]:
    """For 1, 2, 3 ... devices, the division with the least busiest device; those that cannot be are left out."""
    loads = loads[:MOST_DEVICES]
    places = loads[0].shape[0]
    least = np.full((1 << len(loads), places), np.inf)
    least[0, 0] = 0.0
    came = np.zeros((1 << len(loads), places, 2), dtype=int)  # The last device, and where its stage begins.
    inner = [np.where(np.triu(np.ones((places, places), dtype=bool), 1), load, np.inf) for load in loads]
    for taken in range(1 << len(loads)):
        for device, load in enumerate(inner):
            if taken >> device & 1:
                continue
            reached = np.maximum(least[taken][:, None], load)
            begins = reached.argmin(axis=0)
            found, then = reached.min(axis=0), taken | 1 << device
            better = found < least[then]
            least[then][better] = found[better]
            came[then][better, 0] = device
            came[then][better, 1] = begins[better]
    for count in range(1, len(loads) + 1):
        sets = [taken for taken in range(1 << len(loads)) if taken.bit_count() == count]
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
