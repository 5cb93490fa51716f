"""Sequences: keeps the states of sequences on this device between their steps. Rules: no thread, no clock.

What is kept is a cache: the gateway of a sequence can make every step again. So a sequence may be dropped at any time, and
the next step is then answered with StateLost.

A step begins with the states that the step before it has left. It may also be a step that was made already, since its
answer may have been lost: states that are written in place still have the rows before any earlier step, and of others the
values before the last step are kept too.

Sequences of which one request may make steps together have places in a row (places.py). States that are written in place
lie there from their first step on. Others do so after such a request, which leaves them side by side for the next one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from edgepart.agent.execution.places import (
    RowArrays,
    copy_states,
    home_of,
    join_states,
    make_first_states,
    make_states,
    place_of,
)
from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import StateLost, Unavailable
from edgepart.planner.plans.plan import IN_PLACE_ROWS, Program
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


@dataclass(frozen=True, slots=True)
class _Before:
    """A sequence before its last step, as in _Kept."""

    position: int
    values: Sequence[Value]
    row: RowArrays | None = None


@dataclass(slots=True)
class _Kept:
    position: int
    """What its steps have brought the sequence to."""
    values: Sequence[Value]
    """The kept pieces, in the program's order."""
    before: _Before | None
    """What there was before the last step; None if all pieces are written in place."""
    used_at_s: float
    row: RowArrays | None = None
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
        self._rows: WeakValueDictionary[SequenceKey, RowArrays] = WeakValueDictionary()
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
        every = (
            value
            for one in self._kept.values()
            for value in (*one.values, *(one.before.values if one.before is not None else ()))
        )
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
        row = self._row_of(key, batch, prepared) if batch is not None and batch.in_place else None
        place = place_of(key[2])
        if row is None or place is None:
            return None
        values = row.states_at(place[1])
        for value in values:
            value.fill(0)
        made = self._kept[key] = _Kept(0, values, None, now, row)
        return made

    def begin_batch(
        self, steps: Mapping[SequenceKey, SequenceStep], batch: RunnableProgram, now: float
    ) -> Sequence[Value]:
        """The kept pieces of the row in which these sequences lie, with which a step in each of them begins. Raises
        StateLost if one is not here, or they do not lie side by side."""
        self._adopting.difference_update(steps)
        in_place, found = batch.program.in_place, list[_Kept]()
        for key, step in steps.items():
            known = self._kept.get(key)
            if known is None or (in_place and known.row is None):
                raise StateLost(f"sequence {step.sequence} is not kept here (any more)")
            _continue(known, step, None, now, in_place=in_place)
            found.append(known)
        row = found[0].row if found else None
        if row is not None and all(one.row is row for one in found):
            return row.arrays
        states = {place: one.values for place, one in zip(_places_of(steps), found, strict=False)}
        if in_place or not states or len(states) < len(steps) or max(states) >= _rows_of(batch):
            raise StateLost("the sequences of one request do not lie side by side here")
        try:
            row = RowArrays(join_states(states, batch))
        except Unavailable as error:  # Single steps need no such arrays.
            raise StateLost(f"the sequences of one request cannot lie side by side here: {error}") from error
        # They lie side by side from now on, and so does what will have been before this step.
        for place, one in zip(states, found, strict=True):
            one.values, one.row = row.states_at(place), row
        return row.arrays

    def finish_batch(
        self,
        steps: Mapping[SequenceKey, SequenceStep],
        batch: RunnableProgram,
        ended: Sequence[Value],
        now: float,
    ) -> None:
        """Note that a step was made in each of these sequences, as far as they are kept. It left `ended`, unless states are
        written in place."""
        row = None if batch.program.in_place else RowArrays(ended)
        for key, step in steps.items():
            known, place = self._kept.get(key), place_of(key[2])
            if known is None or (row is not None and known.position != step.position):
                continue
            if row is not None and place is not None:
                known.before = _Before(known.position, known.values, known.row)
                known.values, known.row = row.states_at(place[1]), row
            known.position, known.used_at_s = step.after, now
        if row is not None:
            self._let_go(steps, batch)

    def _let_go(self, steps: Collection[SequenceKey], batch: RunnableProgram) -> None:
        """Let sequences that took no part in these steps have arrays of their own, so that they do not keep those of whole
        rows in memory."""
        rows = {(*key[:2], home_of(key[2])) for key in steps}
        for key, known in self._kept.items():
            if key in steps or (*key[:2], home_of(key[2])) not in rows:
                continue
            if known.before is not None and known.before.row is not None:
                known.before = _by_itself(known.before, batch)
            if known.row is not None and (own := copy_states(known.values, batch)) is not None:
                known.values, known.row = own, None

    def _row_of(self, key: SequenceKey, batch: Program, prepared: RunnableProgram) -> RowArrays | None:
        """The row in which a new sequence has its place; None if its name does not say so, or there is no memory for a
        whole row."""
        place, pieces = place_of(key[2]), batch.kept
        if place is None or not pieces or place[1] >= pieces[0].read.region.shape[0]:
            return None
        name = (*key[:2], place[0])
        row = self._rows.get(name)
        if row is None:
            try:
                row = self._rows[name] = RowArrays(make_states(pieces, prepared))
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
        known, in_place = self._kept.get(key), prepared.program.in_place
        if known is not None and known.row is not None and in_place:
            known.position, known.used_at_s = step.after, now
            return
        before = None if in_place else _Before(step.position, began, known.row if known is not None else None)
        if before is not None and before.row is not None:  # It was left in a row, and has just gone on alone.
            before = _by_itself(before, prepared)
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
        sequence is at position 0 until `adopted`. Raises StateLost if it has ended, a step came since it was expected or
        is under way, and Unavailable if there is no room."""
        if key in busy:
            raise StateLost(f"a step of sequence {key[2]} is under way")
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


def _places_of(steps: Collection[SequenceKey]) -> list[int]:
    """The places of these sequences; none if they are not all of one row."""
    places = [place_of(key[2]) for key in steps]
    homes = {place[0] for place in places if place is not None}
    return (
        [place[1] for place in places if place is not None] if len(homes) == 1 and None not in places else []
    )


def _rows_of(batch: RunnableProgram) -> int:
    """The number of places of a row."""
    return batch.program.kept[0].read.region.shape[0]


def _by_itself(before: _Before, prepared: RunnableProgram) -> _Before | None:
    """What was before a step, in arrays of its own; None if there is no memory for them: the step cannot be made again
    then, and its sequence has to begin once more."""
    own = copy_states(before.values, prepared)
    return None if own is None else _Before(before.position, own)


def _continue(
    known: _Kept, step: SequenceStep, prepared: RunnableProgram | None, now: float, *, in_place: bool
) -> None:
    """Let the sequence go on with this step. Raises StateLost if it has not come to the step's position, or what is kept
    here may be of steps that were given up since. Only with `prepared` can it begin once more."""
    known.used_at_s = now
    same = step.since if step.revision == known.revision + 1 else 0
    if step.revision != known.revision and step.position > min(same, known.position):
        raise StateLost(
            f"sequence {step.sequence} is kept here in revision {known.revision}, and the step is of {step.revision}"
        )
    if step.position != known.position:
        _go_back(known, step, prepared, in_place=in_place)
    known.revision = step.revision


def _go_back(known: _Kept, step: SequenceStep, prepared: RunnableProgram | None, *, in_place: bool) -> None:
    """Undo the steps from this one's position on: it may have other inputs than they had. Raises StateLost if that cannot
    be done."""
    if step.position < known.position and in_place:
        known.position = step.position
        # Rows from here on will be others, and the mirror has to get them again.
        known.mirrored = known.mirrored[0], min(known.mirrored[1], step.position)
    elif known.before is not None and step.position == known.before.position:
        known.position, known.values, known.row = known.before.position, known.before.values, known.before.row
        known.before = None
    elif step.position == 0 and prepared is not None:
        known.position, known.values, known.before, known.row = 0, make_first_states(prepared), None, None
    else:
        raise StateLost(
            f"sequence {step.sequence} is kept here up to {known.position}, and the step begins at {step.position}"
        )
