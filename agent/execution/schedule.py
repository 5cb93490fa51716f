"""Schedule: the order in which one device does the steps of its program, and the progress of one request through them.
Rules: no thread, no socket, no ONNX Runtime.

A `DeviceSchedule` is computed once per program: which pieces each step reads, from where, and after which step each
piece is freed. A `Progress` leads one request through it: pieces arrive in any order, steps are done in the program's
order. Pieces that arrive or are sent are plain; those that stay on the device may be blocked (nchwc_array.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from edgepart.agent.execution.copies import CopyPlan, MakeEmpty, Scratch, plan_copy
from edgepart.agent.execution.nchwc_array import PLAIN, KeptBlocked
from edgepart.agent.wire.likely_entries import LikelyEntries
from edgepart.agent.wire.reduced_precision import Rounded, restore_array
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.plans.plan import KeptPiece, Piece, Program, Receive, Run, Send, Step, Transfer

_Form = tuple[tuple[int, ...] | None, np.dtype[Any] | None]
"""The shape and the type that a piece has; None for one that is not known."""


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A Run or a Send, with all that is the same for it in every request."""

    step: Run | Send | None
    """None stands for the end of the program."""
    awaits: frozenset[int]
    """The numbers of the transfers that have to come before it, but not before the work that precedes it."""
    recipes: tuple[CopyPlan, ...] = ()
    reads: tuple[int, ...] = ()
    """The slots that it reads."""
    held: tuple[int, ...] | None = None
    """The slots of the values that it takes if they are all taken as they are held; otherwise None."""
    overwrites: tuple[tuple[int, int], ...] = ()
    """The numbers of a Run's inputs over which an output may be written, each with the output's number."""
    passing: bool = False
    """Whether nothing needs the values after the step: true for a Run whose outputs are all arrays of their own."""
    made: tuple[int, ...] = ()
    """The slots of a Run's outputs."""
    forms: tuple[_Form, ...] | None = None
    """The forms of a Run's outputs; None for a Send."""
    frees: tuple[int, ...] = ()
    """The slots that no later step reads."""


@dataclass(frozen=True)
class DeviceSchedule:
    """The pieces that each step of a program reads, makes and frees. They are the same for every request."""

    program: Program
    incoming: Mapping[int, Transfer]
    """The transfers that this device receives, by number."""
    outgoing: Mapping[int, Transfer]
    """The transfers that this device sends, by number."""
    slots: tuple[Piece, ...]
    """Every piece that is kept from the last step of the sequence, received or computed here; its index is its slot. Those
    that are kept come first."""
    received: Mapping[int, tuple[int, ...]]
    """The slots of a transfer's pieces, by the number of the incoming transfer."""
    computed: Mapping[int, tuple[int, ...]]
    """The slots of a Run's outputs, by step."""
    recipes: tuple[tuple[CopyPlan, ...], ...]
    """The recipes for a Run's inputs or a Send's pieces, by step; () for a Receive."""
    frees: tuple[tuple[int, ...], ...]
    """The slots that no later step reads, by step."""
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """The dtype that an arriving piece must have, by tensor; tensors that are not named are not checked."""
    keeping: tuple[CopyPlan, ...] = ()
    """The recipes for the pieces that the device keeps for the next step of the sequence."""
    overwrites: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """The outputs of a Run that may be written over one of its inputs, a kept piece: the numbers of the input and of the
    output, by step."""

    @cached_property
    def works(self) -> tuple[ScheduledStep, ...]:
        """What is done, in order: the program's Runs and Sends, and at last its end."""
        found: list[ScheduledStep] = []
        awaits, frees = frozenset[int](), list[int]()
        for index, step in enumerate(self.program.steps):
            frees += self.frees[index]
            if isinstance(step, Receive):
                awaits |= {step.transfer}
                continue
            recipes = self.recipes[index]
            reads = tuple({slot: None for one in recipes for slot in one.slots})
            held = (
                tuple(one.slots[0] for one in recipes) if all(one.is_held_piece for one in recipes) else None
            )
            made = self.computed.get(index)
            forms = None if made is None else self._forms_of_outputs(made)
            is_passing, overwrites = self._passes(step), self.overwrites.get(index, ())
            found.append(
                ScheduledStep(
                    step,
                    awaits,
                    recipes,
                    reads,
                    held,
                    overwrites,
                    is_passing,
                    made or (),
                    forms,
                    tuple(frees),
                )
            )
            awaits, frees = frozenset(), []
        return (*found, ScheduledStep(None, awaits, frees=tuple(frees)))

    @cached_property
    def arriving(self) -> Mapping[int, tuple[_Form, ...]]:
        """The forms of a transfer's pieces, by the number of the incoming transfer."""
        return {number: self._forms(one.pieces) for number, one in self.incoming.items()}

    def _forms_of_outputs(self, slots: Sequence[int]) -> tuple[_Form, ...]:
        """The forms of a Run's outputs. Their types are the segment's own."""
        return tuple((shape, None) for shape, _ in self._forms([self.slots[slot] for slot in slots]))

    def _forms(self, pieces: Iterable[Piece]) -> tuple[_Form, ...]:
        return tuple(
            (one.region.shape if one.region.spans else None, self.dtypes.get(one.tensor)) for one in pieces
        )

    def _passes(self, step: Run | Send) -> bool:
        """Whether the inputs of a step can be overwritten after it: those of a Run whose outputs are all arrays. A sequence
        or an optional may refer to the values that it was made from."""
        outputs = self.program.segments[step.segment].outputs if isinstance(step, Run) else ()
        return isinstance(step, Run) and all(port.piece.region.rank > 0 for port in outputs)

    @cached_property
    def may_be_short(self) -> bool:
        """Whether a step may add fewer rows than it computes."""
        return any(piece.longer for piece in self.program.kept)

    @cached_property
    def of_sequence(self) -> frozenset[int]:
        """The slots of what is kept from the last step, or for the next one."""
        kept = (slot for one in self.keeping for slot in one.slots)
        return frozenset((*range(len(self.program.kept)), *kept))


def make_schedule(
    program: Program,
    transfers: Iterable[Transfer],
    dtypes: Mapping[str, np.dtype[Any]] | None = None,
    kept: KeptBlocked = PLAIN,
) -> DeviceSchedule:
    """The schedule of `program`, whose segments keep `kept` blocked; `transfers` are all of the plan's. Raises
    InternalError if a step names a segment or transfer that the program does not have, if a step reads a piece that no
    earlier step gives, or if no step does one of the device's transfers."""
    by_number = {t.number: t for t in transfers if program.device in (t.source, t.target)}
    slots: list[Piece] = [one.read for one in program.kept]
    blocks: dict[int, int] = {}
    received: dict[int, tuple[int, ...]] = {}
    computed: dict[int, tuple[int, ...]] = {}
    recipes: list[tuple[CopyPlan, ...]] = []
    for index, step in enumerate(program.steps):
        inside = kept if isinstance(step, Run) else PLAIN
        where = f"step {index} of {program.device}'s program"
        wanted = _read_pieces(program, step, by_number, where)
        held = dict(enumerate(slots))
        recipes.append(
            tuple(_must_have(one, held, blocks, inside.block_of(one.tensor), where) for one in wanted)
        )
        given: tuple[Piece, ...] = ()
        if isinstance(step, Run):
            given = tuple(port.piece for port in program.segments[step.segment].outputs)
            computed[index] = tuple(range(len(slots), len(slots) + len(given)))
            blocks.update(
                (slot, kept.block_of(one.tensor)) for slot, one in zip(computed[index], given, strict=True)
            )
        elif isinstance(step, Receive):
            given = by_number[step.transfer].pieces
            received[step.transfer] = tuple(range(len(slots), len(slots) + len(given)))
        slots += given
    incoming = {number: by_number[number] for number in received}
    sent = {step.transfer: by_number[step.transfer] for step in program.steps if isinstance(step, Send)}
    if idle := set(by_number) - set(incoming) - set(sent):
        raise InternalError(f"{program.device}'s program never does transfers {sorted(idle)}")
    where = f"the end of {program.device}'s program"
    made = dict(enumerate(slots))
    keeping = tuple(_must_have(one.written, made, blocks, 0, where) for one in program.kept)
    frees = _frees(program, recipes, received, computed, keeping)
    return DeviceSchedule(
        program,
        incoming,
        sent,
        tuple(slots),
        received,
        computed,
        tuple(recipes),
        frees,
        dict(dtypes or {}),
        keeping,
        dict(_overwrites(program, recipes)),
    )


def _overwrites(
    program: Program, recipes: Sequence[Sequence[CopyPlan]]
) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """Yields the steps with outputs that may be written over a kept piece, which the step reads as it is held."""
    kept = {slot: one for slot, one in enumerate(program.kept) if one.in_place}
    for index, step in enumerate(program.steps):
        if isinstance(step, Run) and kept:
            outputs = [port.piece for port in program.segments[step.segment].outputs]
            pairs = tuple(
                (number, outputs.index(kept[recipe.slots[0]].written))
                for number, recipe in enumerate(recipes[index])
                if recipe.is_held_piece and recipe.slots[0] in kept
                if kept[recipe.slots[0]].written in outputs
            )
            if pairs:
                yield index, pairs


def _read_pieces(
    program: Program, step: Step, transfers: Mapping[int, Transfer], where: str
) -> tuple[Piece, ...]:
    """The pieces that a step reads; `transfers` are this device's. Raises InternalError if the step names none of its
    segments or transfers."""
    if isinstance(step, Run):
        if not 0 <= step.segment < len(program.segments):
            raise InternalError(f"{where} runs segment {step.segment} of {len(program.segments)}")
        return tuple(port.piece for port in program.segments[step.segment].inputs)
    if step.transfer not in transfers:
        raise InternalError(f"{where} names transfer {step.transfer}, which is none of that device's")
    return transfers[step.transfer].pieces if isinstance(step, Send) else ()


def _must_have(
    want: Piece, slots: Mapping[int, Piece], blocks: Mapping[int, int], block: int, where: str
) -> CopyPlan:
    found = plan_copy(want, slots, blocks, block)
    if found is None:
        raise InternalError(
            f"{where} needs {want.tensor}[{want.region}]; nothing before it gives all of that"
        )
    return found


def _frees(
    program: Program,
    recipes: Sequence[tuple[CopyPlan, ...]],
    received: Mapping[int, tuple[int, ...]],
    computed: Mapping[int, tuple[int, ...]],
    keeping: Sequence[CopyPlan],
) -> tuple[tuple[int, ...], ...]:
    """The slots that each step is the last to use; a piece that no step reads is freed by the step that gave it. What is
    kept for the next step is not freed."""
    last: dict[int, int] = {}
    for index, step in enumerate(program.steps):
        made = received[step.transfer] if isinstance(step, Receive) else computed.get(index, ())
        last.update(dict.fromkeys(made, index))
        last.update((slot, index) for one in recipes[index] for slot in one.slots)
    frees: list[list[int]] = [[] for _ in program.steps]
    kept = {slot for one in keeping for slot in one.slots}
    for slot, index in last.items():
        if slot not in kept:
            frees[index].append(slot)
    return tuple(map(tuple, frees))


class ReadyStep(NamedTuple):
    """A step that can be done now. `values()` needs no lock, as it reads only what the ReadyStep itself holds."""

    work: ScheduledStep
    step: Run | Send
    held: Mapping[int, Value]
    """The values that the recipes read, by slot."""

    @property
    def overwrites(self) -> tuple[tuple[int, int], ...]:
        return self.work.overwrites

    def values(self, scratch: Scratch | None = None) -> list[Value]:
        """A Run's inputs, or a Send's pieces, in order. A Run's inputs may lie in `scratch` until the next step."""
        work, held = self.work, self.held
        if work.held is not None:
            return [held[slot] for slot in work.held]
        if scratch is None or not work.passing:
            return [one.make(held) for one in work.recipes]
        scratch.clear()
        return [one.make(held, scratch.empty) for one in work.recipes]


class Progress:
    """One request on one device. The caller hands pieces to `keep_pieces`, does the steps that `next_work` returns and
    reports each with `done`, until `finished`. If the program keeps pieces of states, `begin` has to come first."""

    def __init__(self, schedule: DeviceSchedule) -> None:
        self.schedule = schedule
        self._held: dict[int, Value] = {}
        self._arrived: set[int] = set()
        self._works = schedule.works
        self._next = 0
        self._working = False
        self.begun = not schedule.program.kept
        """Whether the steps can begin: the states that they read are here."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the pieces held now; strings, values that are no tensors, and what is kept of a sequence count 0."""
        apart = self.schedule.of_sequence
        return sum(value_bytes(value) for slot, value in self._held.items() if slot not in apart)

    def begin(self, kept: Sequence[Value]) -> None:
        """Let the steps begin with these kept pieces, as the last step of the sequence left them, in the program's
        order. Raises InternalError if they do not fit."""
        pieces = self.schedule.program.kept
        if len(kept) != len(pieces):
            raise InternalError(f"a step of a sequence began with {len(kept)} pieces of {len(pieces)}")
        for piece, value in zip(pieces, kept, strict=True):
            if fault := _misfit(piece.read, value, {}):
                raise InternalError(f"a step of a sequence began with {fault}")
        self._held.update(enumerate(kept))
        self.begun = True

    @property
    def finished(self) -> bool:
        work = self._works[self._next]
        return work.step is None and work.awaits <= self._arrived

    @property
    def ready(self) -> bool:
        """Whether `next_work` would return a step, or find that all steps are done, without waiting for anything."""
        return self.begun and not self._working and self._works[self._next].awaits <= self._arrived

    @property
    def missing(self) -> frozenset[int]:
        """The numbers of the transfers that have to come before the next Run or Send."""
        return self._works[self._next].awaits - self._arrived

    def keep_pieces(self, transfer: int, values: Sequence[Value]) -> bool:
        """Keep a transfer's pieces. Returns False, and keeps nothing, if that transfer arrived before.

        Raises FrameError if this device receives no such transfer, or a piece is not what the plan says."""
        schedule = self.schedule
        if not _have_forms(values, schedule.arriving.get(transfer)):
            check_pieces(schedule.incoming.get(transfer), transfer, values, schedule.dtypes)
            values = [restore_array(value) for value in values]
        if transfer in self._arrived:
            return False
        self._arrived.add(transfer)
        self._held.update(zip(schedule.received[transfer], values, strict=True))
        return True

    def next_work(self) -> ReadyStep | None:
        """The next step, if it can be done now; None while a step is being done or waits for a transfer, and when all
        steps are done."""
        work = self._works[self._next]
        step, awaits = work.step, work.awaits
        if self._working or not self.begun or (awaits and not awaits <= self._arrived):
            return None
        held = self._held
        if step is None:
            for slot in work.frees:
                held.pop(slot, None)
            return None
        self._working = True
        return ReadyStep(work, step, {slot: held[slot] for slot in work.reads})

    def next_send(self) -> ReadyStep | None:
        """The next step, if it is a Send for which nothing has to come."""
        work = self._works[self._next]
        return self.next_work() if type(work.step) is Send and not work.awaits else None

    def done(self, outputs: Sequence[Value] = ()) -> None:
        """Report that the step returned last is done; `outputs` are a Run's, in its ports' order. Raises InternalError
        if their shapes are not the plan's."""
        work, held = self._works[self._next], self._held
        if work.forms is not None:
            if not _have_forms(outputs, work.forms):
                self._check_outputs(work, outputs)
            held.update(zip(work.made, outputs, strict=True))
        for slot in work.frees:
            del held[slot]
        self._working = False
        self._next += 1

    def _check_outputs(self, work: ScheduledStep, outputs: Sequence[Value]) -> None:
        """Raises InternalError if the shapes of the outputs are not the plan's."""
        for slot, value in zip(work.made, outputs, strict=True):
            if isinstance(work.step, Run) and (fault := _misfit(self.schedule.slots[slot], value, {})):
                raise InternalError(
                    f"segment {work.step.segment} of {self.schedule.program.device} gave {fault}"
                )

    def keep_state(self, empty: MakeEmpty = np.empty, rows: int = 1) -> list[Value]:
        """The pieces for the next step of the sequence, once all steps are done. What has to be put together lies in arrays
        that `empty(shape, dtype)` makes. `rows` is the number of rows that the step has added, if it may be short."""
        made = [one.make(self._held, empty) for one in self.schedule.keeping]
        if not self.schedule.may_be_short:
            return made
        pieces = self.schedule.program.kept
        return [_keep_rows(piece, value, rows, empty) for piece, value in zip(pieces, made, strict=True)]


def _keep_rows(piece: KeptPiece, written: Value, rows: int, empty: MakeEmpty) -> Value:
    """What is kept of `written` after a step that has added so many rows."""
    if not piece.longer or not isinstance(written, np.ndarray):
        return written
    newest = piece.after(rows).written.region.within(piece.written.region).crop(written)
    kept = empty(newest.shape, newest.dtype)
    np.copyto(kept, newest)
    return kept


def _have_forms(values: Sequence[Value], forms: tuple[_Form, ...] | None) -> bool:
    """Whether the values are arrays in forms that are fully known. If they are not, they may fit all the same."""
    if forms is None or len(values) != len(forms):
        return False
    for value, (shape, dtype) in zip(values, forms, strict=True):
        if type(value) is not np.ndarray or value.shape != shape:
            return False
        if dtype is not None and dtype != value.dtype:
            return False
    return True


def check_pieces(
    transfer: Transfer | None,
    number: int,
    values: Sequence[Value],
    dtypes: Mapping[str, np.dtype[Any]],
    likely: int = 0,
) -> tuple[Piece, ...]:
    """The transfer's pieces, if `values` match them; raises FrameError otherwise. So many likely entries may come in place
    of a piece."""
    if transfer is None:
        raise FrameError(f"transfer {number} does not come to this device in this plan")
    if len(values) != len(transfer.pieces):
        raise FrameError(f"transfer {number} has {len(transfer.pieces)} pieces, {len(values)} came")
    for n, (piece, value) in enumerate(zip(transfer.pieces, values, strict=True)):
        if isinstance(value, Rounded) and transfer.dtypes[n : n + 1] != (value.kind,):
            raise FrameError(f"transfer {number} brought {piece.tensor} as {value.kind}, not as planned")
        if isinstance(value, LikelyEntries):
            if value.count != likely or value.shape != piece.region.shape:
                raise FrameError(
                    f"transfer {number} brought {value.count} likely entries of {value.shape} for {piece.tensor}"
                    f"[{piece.region}], not {likely}"
                )
            continue
        if fault := _misfit(piece, restore_array(value), dtypes):
            raise FrameError(f"transfer {number} brought {fault}")
    return transfer.pieces


def _misfit(piece: Piece, value: Value, dtypes: Mapping[str, np.dtype[Any]]) -> str | None:
    """The reason why `value` cannot be `piece`; None if it can. `Region(())` matches any shape, as its shape is not known
    before the run."""
    region = piece.region
    known = bool(region.spans)
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} for {piece.tensor}[{region}], a tensor" if known else None
    if known and value.shape != region.shape:
        return f"{piece.tensor}[{region}] in shape {value.shape}, not {region.shape}"
    dtype = dtypes.get(piece.tensor)
    if dtype is not None and dtype != value.dtype:
        return f"{piece.tensor} as {value.dtype}, not {dtype}"
    return None
