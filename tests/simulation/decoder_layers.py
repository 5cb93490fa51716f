"""A decoder, as far as the simulation needs one: layers as in layers.py, each with a cache that has a row for each token.

As in a real one, the rows that a step writes follow from the mask and not from what devices know of its sequence, a block
that is not full writes rows that nobody may read, and so does a request of several texts in the places that take no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from edgepart.agent.text.decoder import MASK, TOKENS, Decoder
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import KeptPiece, Piece, Program, ValueInfo, widen
from edgepart.planner.region import Array, Region
from tests.simulation.layers import BUFFER, PLAIN, fold, mix, undisturbed

CHAT = "chat"
"""The name under which the decoder is deployed."""
CONTEXT = 32
"""The most tokens of a text."""
BLOCK = 4
"""Tokens of a prompt that one step reads."""
PLACES = 3
"""Texts whose next tokens one request reads."""
SEQUENCES = 4
"""The most texts whose caches a device keeps, and that a gateway generates at the same time."""
VOCABULARY = 3
LOGITS = "logits"
CACHES = (BUFFER, PLAIN, BUFFER, BUFFER)


def _inputs(places: int, rows: int) -> tuple[ValueInfo, ...]:
    return ValueInfo(TOKENS, "int64", (places, rows)), ValueInfo(MASK, "int64", (places, CONTEXT))


DECODER = Decoder(
    "the decoder",
    _inputs(1, 1),
    LOGITS,
    VOCABULARY,
    CONTEXT,
    in_place=True,
    block_inputs=_inputs(1, BLOCK),
    batch_inputs=_inputs(PLACES, 1),
)


@dataclass(frozen=True)
class Rows:
    """What devices pass on: for each place a number for each row, and the number of its first row in the caches."""

    numbers: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]


def read_inputs(inputs: Mapping[str, Any]) -> Rows:
    """What the first device makes of the inputs of a step."""
    tokens, ends = inputs[TOKENS], inputs[MASK].sum(axis=1)
    starts = tuple(int(end) - tokens.shape[1] for end in ends)
    return Rows(tuple(tuple(row) for row in tokens.tolist()), starts)


def logits_of(number: int) -> list[int]:
    """What the decoder says, where its last layer says `number`."""
    return [number * (token + 2) % 1_000_003 for token in range(VOCABULARY)]


def outputs_of(rows: Rows) -> dict[str, Value]:
    """The outputs of a step that has an answer."""
    return {LOGITS: np.array([[logits_of(row[-1])] for row in rows.numbers])}


def undisturbed_logits(tokens: Sequence[int]) -> list[int]:
    """What the decoder says after these tokens if nothing happens meanwhile."""
    return logits_of(undisturbed(tokens, CACHES))


@dataclass(frozen=True)
class TextPart:
    """The layers of one device: as much of a RunnableProgram as keeping caches takes."""

    layers: tuple[str, ...]
    program: Program
    batch: Program
    """The program that makes steps in several sequences."""
    fits_rows: bool
    """Whether the device has memory for the caches of several texts side by side."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if shape[0] > 1 and not self.fits_rows:
            raise MemoryError("this device is small")
        return np.full(shape, -1, dtype)

    def compute(self, began: Sequence[Value], rows: Rows) -> Rows:
        """What these layers make of `rows`. They write into the caches with which the step began."""
        numbers, caches = [list(one) for one in rows.numbers], iter(began)
        for layer in self.layers:
            cache: Any = next(caches) if layer == BUFFER else None
            for place, (row, start) in enumerate(zip(numbers, rows.starts, strict=True)):
                if cache is None:
                    row[:] = [mix(value, 1) for value in row]
                    continue
                cache[place, 0, start : start + len(row), 0] = row
                read = cache[place, 0, : start + len(row), 0].tolist()
                row[:] = [fold(read[: start + n + 1]) for n in range(len(row))]
        return Rows(tuple(map(tuple, numbers)), rows.starts)


@cache
def text_part(number: int, count: int, *, fits_rows: bool = True) -> TextPart:
    """The layers of device `number` of `count`. Caches are called the same on whatever number of devices."""
    first = len(CACHES) * number // count
    layers = CACHES[first : len(CACHES) * (number + 1) // count]
    region = Region.full((1, 1, CONTEXT, 1))
    kept = tuple(
        KeptPiece(Piece(f"past {n}", region), Piece(f"cache {n}", region), "int64", 8 * CONTEXT, True)
        for n, layer in enumerate(layers, first)
        if layer == BUFFER
    )
    program = Program("", (), (), 0, 0, kept=kept, sequences=SEQUENCES)
    batch = Program("", (), (), 0, 0, kept=widen(kept, PLACES), sequences=SEQUENCES)
    return TextPart(layers, program, batch, fits_rows)
