"""Sequences: keeps the states of sequences on this device between their steps. Rules: no thread, no clock.

What is kept is a cache: the gateway of a sequence can make every step again. So a sequence may be dropped at any time, and
the next step is then answered with StateLost.

A step begins with the states that the step before it has left. It may also be a step that was made already, since its
answer may have been lost: states that are written in place still have the rows before any earlier step, and of others the
values before the last step are kept too.

Sequences of which one request may make steps together lie side by side: each has a place in a row of arrays that as many
sequences share as the programs of a batch take. Their names say which, as all devices have to agree.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import StateLost, Unavailable
from edgepart.planner.plans.plan import IN_PLACE_ROWS, KeptPiece, Program
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

SequenceKey = tuple[str, Epoch, str]
"""Deployment, epoch and the sequence's name."""

SPARED_S = 20.0
"""A sequence that had a step within this time, in seconds, is not dropped for another one. With a shorter time two clients
could take turns in dropping each other's sequence at every step, for example after a pause in which the plan changed; with
a longer one a new client waits longer. It is well below the minute that requests wait."""

REMEMBERED = 4096
"""The number of ended sequences whose names are remembered. With fewer, the states of one whose last step is slow on this
device could be kept for nothing; more take memory."""


@dataclass(eq=False)
class _Row:
    """The arrays of the sequences that lie side by side, in the order of the batch's kept pieces."""

    arrays: Sequence[Array]


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


@dataclass(slots=True)
class _Kept:
    position: int
    """What its steps have brought the sequence to."""
    values: Sequence[Value]
    """The kept pieces, in the program's order."""
    before: tuple[int, Sequence[Value]] | None
    """The position and the pieces before the last step; None if all pieces are written in place."""
    used_at_s: float
    row: _Row | None = None
    """The arrays of which its pieces are parts; None if they are by themselves."""
    revision: int = 0
    """The revision of the step that came last (SequenceStep.revision)."""
    mirrored: tuple[int, int] = (0, 0)
    """The revision and the position to which the device that mirrors this one has its rows."""

    @property
    def carried(self) -> KeptRows | None:
        """Its rows, if they may be carried to another device."""
        return KeptRows(self.revision, self.position, self.values) if self.revision else None


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The states of a sequence that are written in place: of each piece, the first `position` rows are what its steps
    left."""

    revision: int
    position: int
    values: Sequence[Array]
    """The kept pieces, in the program's order. A later step may write behind their first rows."""


@dataclass(frozen=True, slots=True)
class GrownRows:
    """Copies of the rows from `begin` to `end` of all pieces of a sequence."""

    sequence: str
    revision: int
    begin: int
    end: int
    arrays: Sequence[Array]


def first_rows(value: Array, count: int) -> Array:
    """The first rows of a kept piece that is written in place."""
    found: Array = value[_between(0, count)]
    return found


def _between(begin: int, end: int) -> tuple[slice, ...]:
    """The index of these rows of a kept piece that is written in place."""
    return (*(slice(None),) * IN_PLACE_ROWS, slice(begin, end))


class KeptSequences:
    """The states of all sequences on this device."""

    def __init__(self) -> None:
        self._kept: dict[SequenceKey, _Kept] = {}
        self._rows: WeakValueDictionary[SequenceKey, _Row] = WeakValueDictionary()
        """Rows of places, which are freed with the last sequence in them."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Names of sequences that have ended. A gateway may have the last answer, and end the sequence, before this device
        is done with the step."""
        self._adopting: set[SequenceKey] = set()
        """The sequences that may come from other devices. One of which a step comes before is not among them any more."""
        self.evictions = 0
        """The number of sequences that were dropped to make room for others."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all states; those that a step may still need from before the last one included."""
        every = (value for one in self._kept.values() for value in (*one.values, *(one.before or (0, ()))[1]))
        # A piece that is written in place is the same array before and after a step.
        arrays = {id(value): value for value in every if isinstance(value, np.ndarray)}
        return sum(value.nbytes for value in arrays.values())

    def continued(self, since_s: float) -> dict[tuple[str, Epoch], int]:
        """The deployments and epochs of sequences that have made a step since then, each with the furthest position."""
        found: dict[tuple[str, Epoch], int] = {}
        for key, one in self._kept.items():
            if one.used_at_s >= since_s:
                found[key[:2]] = max(found.get(key[:2], 0), one.position)
        return found

    def begin(
        self,
        key: SequenceKey,
        step: SequenceStep,
        prepared: RunnableProgram,
        now: float,
        busy: Collection[SequenceKey] = (),
        batch: Program | None = None,
    ) -> Sequence[Value]:
        """The kept pieces with which the step begins. `busy` sequences are not dropped to make room for a new one. `batch`
        is the program that makes steps of several sequences.

        Raises StateLost if they are not here, and Unavailable if there is no room for another sequence now."""
        self._adopting.discard(key)
        known, in_place = self._kept.get(key), prepared.program.in_place
        # What was on its way when the sequence ended may come late, when its place is another one's already.
        if known is None and (step.position or step.sequence in self._ended):
            raise StateLost(f"sequence {step.sequence} is not kept here (any more)")
        if known is None:
            self._make_room(key, prepared, now, busy)
            made = self._place(key, batch, prepared, now)
            if made is None:
                return make_first_states(prepared)
            made.revision = step.revision
            return made.values
        _continue(known, step, prepared, now, in_place=in_place)
        return known.values

    def _place(
        self, key: SequenceKey, batch: Program | None, prepared: RunnableProgram, now: float
    ) -> _Kept | None:
        """Keep a new sequence at its place in a row; None if it has to lie by itself."""
        row = self._row_of(key, batch, prepared) if batch is not None else None
        place = place_of(key[2])
        if row is None or place is None:
            return None
        values = [array[place[1] : place[1] + 1] for array in row.arrays]
        for value in values:
            value.fill(0)
        made = self._kept[key] = _Kept(0, values, None, now, row)
        return made

    def begin_batch(
        self, steps: Mapping[SequenceKey, SequenceStep], batch: RunnableProgram, now: float
    ) -> Sequence[Value]:
        """The kept pieces of the row in which these sequences lie, with which a step in each of them begins. Raises
        StateLost if one is not here, or they do not lie side by side."""
        rows: list[_Row] = []
        self._adopting.difference_update(steps)
        for key, step in steps.items():
            known = self._kept.get(key)
            if known is None or known.row is None:
                raise StateLost(f"sequence {step.sequence} is not kept here (any more)")
            _continue(known, step, batch, now, in_place=True)
            rows.append(known.row)
        if not rows or any(row is not rows[0] for row in rows):
            raise StateLost("the sequences of one request do not lie side by side here")
        return rows[0].arrays

    def finish_batch(self, steps: Mapping[SequenceKey, SequenceStep], now: float) -> None:
        """Note that a step was made in each of these sequences, as far as they are kept."""
        for key, step in steps.items():
            if (known := self._kept.get(key)) is not None:
                known.position, known.used_at_s = step.after, now

    def _row_of(self, key: SequenceKey, batch: Program, prepared: RunnableProgram) -> _Row | None:
        """The row in which a new sequence has its place; None if its name does not say so, or there is no memory for a
        whole row."""
        place, pieces = place_of(key[2]), batch.kept
        if place is None or not pieces or place[1] >= pieces[0].read.region.shape[0]:
            return None
        name = (*key[:2], place[0])
        row = self._rows.get(name)
        if row is None:
            try:
                row = self._rows[name] = _Row(_make_states(pieces, prepared))
            except Unavailable as error:
                log.info("sequence %s lies by itself: %s", key[2], error)
        return row

    def finish(
        self,
        key: SequenceKey,
        step: SequenceStep,
        prepared: RunnableProgram,
        began: Sequence[Value],
        ended: Sequence[Value],
        now: float,
    ) -> None:
        """Keep what the step left, unless its sequence has ended. `began` are the pieces with which it began."""
        if step.sequence in self._ended:
            return
        if (known := self._kept.get(key)) is not None and known.row is not None:
            known.position, known.used_at_s = step.after, now
            return
        before = None if prepared.program.in_place else (step.position, began)
        mirrored = known.mirrored if known is not None else (0, 0)
        self._kept[key] = _Kept(step.after, ended, before, now, None, step.revision, mirrored)

    def rows(self, sequence: str) -> dict[tuple[str, Epoch], KeptRows]:
        """What is kept of a sequence that may be carried to other devices, by deployment and epoch."""
        found = {key[:2]: one.carried for key, one in self._kept.items() if key[2] == sequence}
        return {plan: rows for plan, rows in found.items() if rows is not None}

    def expect(self, key: SequenceKey) -> None:
        """The sequence may come from other devices."""
        self._adopting.add(key)

    def adopt(
        self,
        key: SequenceKey,
        prepared: RunnableProgram,
        now: float,
        busy: Collection[SequenceKey] = (),
        batch: Program | None = None,
    ) -> Sequence[Value]:
        """Arrays for the pieces of a sequence that comes from other devices, as `begin` makes them for its first step. The
        sequence is at position 0 until `adopted`. Raises StateLost if it has ended, or a step came since it was expected,
        and Unavailable if there is no room."""
        if key not in self._adopting or key[2] in self._ended:
            raise StateLost(f"sequence {key[2]} has ended, or goes on already")
        self._adopting.discard(key)
        known = self._kept.get(key)
        if known is None:
            self._make_room(key, prepared, now, busy)
            known = self._place(key, batch, prepared, now)
        if known is None:
            known = self._kept[key] = _Kept(0, make_first_states(prepared), None, now)
        known.position, known.mirrored, known.used_at_s = 0, (0, 0), now
        return known.values

    def adopted(self, key: SequenceKey, revision: int, position: int) -> None:
        """Note that the arrays of `adopt` have this many rows now."""
        if (known := self._kept.get(key)) is not None:
            known.revision, known.position = revision, position

    def grown(self, plan: tuple[str, Epoch], most_bytes: int) -> Iterator[GrownRows]:
        """Yield the rows of a plan's sequences that the device that mirrors this one does not have yet, of each at most as
        many as are of `most_bytes`. It counts as having them from now on."""
        for key, one in self._kept.items():
            rows = one.carried if key[:2] == plan else None
            if rows is None or one.mirrored == (rows.revision, rows.position):
                continue
            begin = min(one.mirrored[1], rows.position)
            row_bytes = sum(value[_between(0, 1)].nbytes for value in rows.values)
            end = min(rows.position, begin + max(1, most_bytes // max(1, row_bytes)))
            one.mirrored = rows.revision, end
            yield GrownRows(
                key[2],
                rows.revision,
                begin,
                end,
                [value[_between(begin, end)].copy() for value in rows.values],
            )

    def mirror_anew(self, plan: tuple[str, Epoch], sequence: str | None = None) -> None:
        """The device that mirrors this one has nothing of a plan's sequences, or of one of them."""
        for key, one in self._kept.items():
            if key[:2] == plan and sequence in (None, key[2]):
                one.mirrored = 0, 0

    def names(self, plan: tuple[str, Epoch]) -> set[str]:
        """The names of the plan's sequences."""
        return {key[2] for key in self._kept if key[:2] == plan}

    def _make_room(
        self, key: SequenceKey, prepared: RunnableProgram, now: float, busy: Collection[SequenceKey]
    ) -> None:
        """Drop the sequence of this program that was idle longest if there are as many as there may be."""
        here = [other for other in self._kept if other[:2] == key[:2]]
        others = {*here, *(other for other in busy if other[:2] == key[:2])} - {key}
        if len(others) < prepared.program.sequences:
            return
        idle = [one for one in here if one not in busy and now >= self._kept[one].used_at_s + SPARED_S]
        if not idle:
            raise Unavailable(
                f"this device keeps states of {prepared.program.sequences} sequences (--sequences), and all are in use"
            )
        del self._kept[min(idle, key=lambda one: self._kept[one].used_at_s)]
        self.evictions += 1

    def end(self, sequence: str) -> None:
        """Drop the sequence, in whatever epoch. Steps of it that are under way leave nothing."""
        self._ended[sequence] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._adopting = {key for key in self._adopting if key[2] != sequence}
        self._drop([key for key in self._kept if key[2] == sequence])

    def retire(self, deployment: str, epoch: Epoch) -> None:
        """Drop the sequences of an epoch that this device leaves."""
        self._adopting = {key for key in self._adopting if key[:2] != (deployment, epoch)}
        self._drop([key for key in self._kept if key[:2] == (deployment, epoch)])

    def lose(self, gateway: str) -> None:
        """Drop the sequences of a gateway, whose node id is the first part of their names; those too that have yet to come
        from other devices."""
        self._adopting = {key for key in self._adopting if not key[2].startswith(f"{gateway}/")}
        self._drop([key for key in self._kept if key[2].startswith(f"{gateway}/")])

    def _drop(self, keys: Sequence[SequenceKey]) -> None:
        for key in keys:
            del self._kept[key]


def _continue(
    known: _Kept, step: SequenceStep, prepared: RunnableProgram, now: float, *, in_place: bool
) -> None:
    """Let the sequence go on with this step. Raises StateLost if it has not come to the step's position, or what is kept
    here may be of steps that were given up since."""
    known.used_at_s = now
    same = step.since if step.revision == known.revision + 1 else 0
    if step.revision != known.revision and step.position > min(same, known.position):
        raise StateLost(
            f"sequence {step.sequence} is kept here in revision {known.revision}, and the step is of {step.revision}"
        )
    if step.position != known.position:
        _go_back(known, step, prepared, in_place=in_place)
    known.revision = step.revision


def _go_back(known: _Kept, step: SequenceStep, prepared: RunnableProgram, *, in_place: bool) -> None:
    """Undo the steps from this one's position on: it may have other inputs than they had. Raises StateLost if that cannot
    be done."""
    if step.position < known.position and in_place:
        known.position = step.position
        # Rows from here on will be others, and the mirror has to get them again.
        known.mirrored = known.mirrored[0], min(known.mirrored[1], step.position)
    elif known.before is not None and step.position == known.before[0]:
        known.position, known.values = known.before
        known.before = None
    elif step.position == 0:
        known.position, known.values, known.before = 0, make_first_states(prepared), None
    else:
        raise StateLost(
            f"sequence {step.sequence} is kept here up to {known.position}, and the step begins at {step.position}"
        )


def make_first_states(prepared: RunnableProgram) -> list[Value]:
    """The kept pieces before the first step of a sequence: zeros. Raises Unavailable if there is no memory for them."""
    made: list[Value] = []
    for value in _make_states(prepared.program.kept, prepared):
        value.fill(0)
        made.append(value)
    return made


def _make_states(pieces: Sequence[KeptPiece], prepared: RunnableProgram) -> list[Array]:
    """Arrays for these pieces, with whatever was in that memory. Raises Unavailable if there is none."""
    try:
        return [
            prepared.empty(piece.read.region.shape, np.dtype(element_dtype(piece.dtype))) for piece in pieces
        ]
    except MemoryError as error:
        raise Unavailable(f"this device has no memory for the states of another sequence: {error}") from error
