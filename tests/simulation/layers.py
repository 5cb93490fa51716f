"""A model with states, as far as the simulation needs one: four layers, each of which makes a number from a number.

A device of a plan has some of them, and its kept pieces are the states of these. A layer's result depends on all that its
state was made from, so that a step that begins with wrong states gives a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import KeptPiece, Piece, Program
from edgepart.planner.region import Array, Region

ROWS = 32
"""The most steps of a sequence."""
ROOM = 2
"""The most sequences whose states a device keeps."""
BUFFER, SUM, PLAIN = "buffer", "sum", "plain"
"""A layer whose state has a row for each step and is written in place, one whose state is replaced in each step, and one
without a state."""
LAYERS = (BUFFER, SUM, PLAIN, SUM)


@dataclass(frozen=True)
class Part:
    """The layers of one device: as much of a RunnableProgram as keeping states takes."""

    layers: tuple[str, ...]
    program: Program

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.empty(shape, dtype)

    def compute(self, began: Sequence[Value], position: int, value: int) -> tuple[int, list[Value]]:
        """What these layers make of `value` in the step at `position`, and their states after it."""
        states, ended = iter(began), list[Value]()
        for layer in self.layers:
            if layer == PLAIN:
                value = mix(value, 1)
                continue
            state: Any = next(states)
            if layer == BUFFER:
                state[position] = value
                value = fold(state[: position + 1].tolist())
            else:
                value = mix(int(state[0]), value)
                state = np.array([value])
            ended.append(state)
        return value, ended


@cache
def part(number: int, count: int) -> Any:
    """The layers of device `number` of `count`."""
    layers = LAYERS[len(LAYERS) * number // count : len(LAYERS) * (number + 1) // count]
    kept = []
    for layer in layers:
        if layer != PLAIN:
            region = Region.full((ROWS if layer == BUFFER else 1,))
            read, written = Piece(f"past {layer}", region), Piece(layer, region)
            kept.append(KeptPiece(read, written, "int64", 8 * region.shape[0], layer == BUFFER))
    return Part(layers, Program("", (), (), 0, 0, kept=tuple(kept), sequences=ROOM))


def undisturbed(inputs: Sequence[int], layers: Sequence[str] = LAYERS) -> int:
    """The answer of the last of the steps with these inputs if nothing happens meanwhile: a plain twin."""
    values = list(inputs)
    for layer in layers:
        if layer == PLAIN:
            values = [mix(value, 1) for value in values]
        else:
            made = [fold(values[: n + 1]) for n in range(len(values))]
            values = made
    return values[-1]


def fold(values: Sequence[int]) -> int:
    folded = 0
    for value in values:
        folded = mix(folded, value)
    return folded


def mix(before: int, value: int) -> int:
    return (before * 48_271 + value + 1) % 2_147_483_647
