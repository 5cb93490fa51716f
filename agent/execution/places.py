"""Places: the arrays that hold the states of sequences, alone and side by side. Rules: no thread, no clock.

Sequences of which one request may make steps together lie side by side: each has a place in a row of arrays that as many
sequences share as the programs of a batch take. Their names say which, as all devices have to agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import Unavailable
from edgepart.planner.plans.plan import KeptPiece
from edgepart.planner.region import Array


def place_of(sequence: str) -> tuple[str, int] | None:
    """The name of a sequence's row and its place there; None if it lies by itself.

    >>> place_of("00ff00ff00ff00ff/5e8f10a2/row-9c01d3be/5f7a2260.2")
    ('00ff00ff00ff00ff/5e8f10a2/row-9c01d3be', 2)
    """
    row, _, name = sequence.rpartition("/")
    _, dot, place = name.rpartition(".")
    return (row, int(place)) if dot and place.isascii() and place.isdecimal() and len(place) < 5 else None


def home_of(sequence: str) -> str:
    """What a sequence and those beside it are called together; its own name if it lies by itself."""
    place = place_of(sequence)
    return place[0] if place is not None else sequence


@dataclass(eq=False)
class RowArrays:
    """The arrays of the sequences that lie side by side, in the order of the batch's kept pieces."""

    arrays: Sequence[Array]

    def states_at(self, place: int) -> list[Array]:
        """The states of the sequence that has this place."""
        return [array[place : place + 1] for array in self.arrays]


def join_states(states: Mapping[int, Sequence[Value]], batch: RunnableProgram) -> list[Array]:
    """Arrays for the pieces that the programs of a batch keep, with these states at their places, and zeros elsewhere.
    Raises Unavailable if there is no memory for them."""
    made = make_states(batch.program.kept, batch)
    for number, array in enumerate(made):
        for place in range(len(array)):
            array[place : place + 1] = states[place][number] if place in states else 0
    return made


def copy_states(values: Sequence[Value], prepared: RunnableProgram) -> list[Value] | None:
    """Copies of kept pieces, where the worker finds them; None if there is no memory for them."""
    made: list[Value] = []
    for value in values:
        assert isinstance(value, np.ndarray)
        try:
            made.append(prepared.empty(value.shape, value.dtype))
        except MemoryError:
            return None
        np.copyto(made[-1], value)
    return made


def make_first_states(prepared: RunnableProgram) -> list[Value]:
    """The kept pieces before the first step of a sequence: zeros. Raises Unavailable if there is no memory for them."""
    made: list[Value] = []
    for value in make_states(prepared.program.kept, prepared):
        value.fill(0)
        made.append(value)
    return made


def make_states(pieces: Sequence[KeptPiece], prepared: RunnableProgram) -> list[Array]:
    """Arrays for these pieces, with whatever was in that memory. Raises Unavailable if there is none."""
    try:
        return [
            prepared.empty(piece.read.region.shape, np.dtype(element_dtype(piece.dtype))) for piece in pieces
        ]
    except MemoryError as error:
        raise Unavailable(f"this device has no memory for the states of another sequence: {error}") from error
