"""Mirrored states: the copies that this device keeps of other devices' states, row by row. Rules: no door."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.execution.sequences import first_rows
from edgepart.agent.serving.carried_rows import PieceRows
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.planner.plans.plan import IN_PLACE_ROWS, Program
from edgepart.planner.region import Array


@dataclass(frozen=True, slots=True)
class MirroredKey:
    """The sequence of a plan on a device."""

    plan: PlanId
    device: str
    sequence: str


@dataclass(slots=True)
class MirroredSequence:
    """A copy of what a device keeps of a sequence."""

    program: Program
    owner: str
    """The node id of the device."""
    arrays: Sequence[Array]
    revision: int = 0
    position: int = 0

    def rows(self, numbers: Sequence[int]) -> Iterator[PieceRows]:
        """Yield the rows of the pieces with these numbers."""
        for number in numbers:
            yield PieceRows(self.program.kept[number].read, self.arrays[number], self.position)


class MirroredStates:
    """All copies on this device. For one thread."""

    def __init__(self) -> None:
        self._mirrored: dict[MirroredKey, MirroredSequence] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, of which rows that were not written yet take no memory. Any thread may ask."""
        return sum(array.nbytes for one in tuple(self._mirrored.values()) for array in one.arrays)

    def __len__(self) -> int:
        return len(self._mirrored)

    def take(
        self, key: MirroredKey, program: Program, owner: str, revision: int, begin: int, rows: Sequence[Array]
    ) -> str:
        """Take the rows of all pieces from `begin` on. Returns why not; "" if they are taken. `rows` fit the program."""
        known = self._mirrored.get(key)
        if begin > (known.position if known is not None else 0):
            return f"the rows before row {begin} are not here"
        if known is None:
            mine = sum(other.plan == key.plan and other.device == key.device for other in self._mirrored)
            if mine >= program.sequences:
                return f"{mine} sequences of {key.device} are mirrored here, as many as there may be"
            known = self._mirrored[key] = MirroredSequence(program, owner, _make_arrays(program))
        end = begin + rows[0].shape[IN_PLACE_ROWS]
        for array, more in zip(known.arrays, rows, strict=True):
            first_rows(array, end)[(*(slice(None),) * IN_PLACE_ROWS, slice(begin, end))] = more
        known.revision, known.position, known.owner = revision, end, owner
        return ""

    def of(self, sequence: str) -> Mapping[MirroredKey, MirroredSequence]:
        """The copies of a sequence."""
        return {key: one for key, one in self._mirrored.items() if key.sequence == sequence}

    def drop(self, key: MirroredKey) -> None:
        self._mirrored.pop(key, None)

    def end(self, sequence: str) -> None:
        """Drop a sequence that has no further steps."""
        self._drop([key for key in self._mirrored if key.sequence == sequence])

    def retire(self, plan: PlanId) -> None:
        """Drop the sequences of a plan."""
        self._drop([key for key in self._mirrored if key.plan == plan])

    def lose(self, gateway: str) -> None:
        """Drop the sequences of a gateway, whose node id is the first part of their names."""
        self._drop([key for key in self._mirrored if key.sequence.startswith(f"{gateway}/")])

    def _drop(self, keys: Sequence[MirroredKey]) -> None:
        for key in keys:
            del self._mirrored[key]


def _make_arrays(program: Program) -> list[Array]:
    return [np.zeros(piece.read.region.shape, np.dtype(element_dtype(piece.dtype))) for piece in program.kept]
