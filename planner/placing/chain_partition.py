"""Balance: place a chain of parts on devices in consecutive stages, so that the busiest device is the least
busy. Pure; knows nothing of models.

The chain has places 0..n before, between and after its parts; a stage is the parts between two places.
`loads[d][i, j]` is how long device d is busy with the stage from place i to place j, or inf if it cannot take
the stage. For a few devices, dynamic programming over the set of devices that are used and the place that is
reached covers all orders of the devices: the result is exact, after devices * 2^devices * places^2 steps. For
many devices one order is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Loads = np.ndarray[Any, np.dtype[np.float64]]
"""The loads of one device, [from place, to place]."""

MOST_DEVICES = 8
"""The most devices that are tried in all orders, as steps double with each device. Of more devices, the first
`MOST_DEVICES` are tried in all orders, and all devices in the given order."""


@dataclass(frozen=True)
class Stages:
    """The stages of a division, in order, each with its device."""

    busiest: float
    """The largest load of a device, or the sum of all loads if `balance` was called with np.add."""
    stages: tuple[tuple[int, int, int], ...]
    """Consecutive (device, from place, to place), from place 0 to the last place."""


def balance(loads: Sequence[Loads], whole: np.ufunc = np.maximum) -> Iterator[Stages]:
    """Yield, for 1, 2, 3 ... devices, the division whose busiest device is the least busy, if there is one.
    If `whole` is np.add, the sum of the loads is least: the time of a sample that passes through all stages
    one after another."""
    few = [_stages_only(load) for load in loads[:MOST_DEVICES]]
    yield from _in_any_order(few, whole)
    if len(loads) > len(few):
        yield from balance_in_order([_stages_only(load) for load in loads], whole)


def _stages_only(load: Loads) -> Loads:
    """Return the loads, with inf for stages that go backwards or are empty."""
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
    """Yield the division whose busiest device is the least busy when devices come in the given order, some of
    them left out. Yields nothing if there is no division."""
    places = loads[0].shape[0]
    least = np.where(np.arange(places) == 0, 0.0, np.inf)
    begins = []  # By device and place, where the device's stage begins; the place itself if it has no stage.
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
