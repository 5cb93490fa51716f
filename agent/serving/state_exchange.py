"""State exchange: what this device sends to others, and takes from them, of states. Rules: no thread, no clock.

Two things are carried. A device that mirrors another one gets the rows that the other's states grow by, late and a few at a
time, so that they are not in the way of requests. And when a gateway goes on with a sequence by another plan than before
(ResumeSequence), the devices of that plan get the rows that they need from those that have them: the devices of the plan
before, and for those that are lost the ones that mirror them. Whatever is missing is made again from the gateway's tokens.

A sequence makes no steps while its states are read, because its gateway waits; and if it does not wait any more, what comes
late is of no use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgepart.agent.execution.carried_states import CarriedStates, PlanId
from edgepart.agent.execution.tasks import gateway_of
from edgepart.agent.serving.carried_rows import FoundRows, PieceRows, check_rows, gather_rows, usable_rows
from edgepart.agent.serving.known_plans import FindPlan, known, program_of
from edgepart.agent.serving.mirrors import Mirrors, SendStates, try_to_send
from edgepart.agent.wire.inference import (
    MirroredRows,
    ResumeSequence,
    SentRows,
    SequenceResumed,
    StateMessage,
    WantRows,
)
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, FrameError
from edgepart.planner.plans.plan import KeptPiece
from edgepart.planner.region import Array

SENT_BYTES = 32 << 20
"""About the most bytes of one of the messages in which rows are sent that were asked for."""
GIVEN_UP_S = 20.0
"""Seconds after which a device no longer waits for the rows that it asked for. The gateway waits for less."""


@dataclass(eq=False)
class _Resumption:
    """A sequence that this device is about to go on with."""

    asked: ResumeSequence
    missing: set[str]
    """Nodes whose answers have not come."""
    begun_s: float
    found: dict[PlanId, list[PieceRows]] = field(default_factory=dict)
    """What was found so far, by the plans by which it was made."""

    def fill(self, pieces: Sequence[KeptPiece], arrays: Sequence[Array]) -> int:
        """Copy what was found into the arrays; returns the number of rows. What was made by one plan is not mixed with what
        was made by another, and the latest plan of which there is enough is taken."""
        for _, found in sorted(self.found.items(), key=lambda item: item[0][1], reverse=True):
            if position := gather_rows(pieces, arrays, found, self.asked.position):
                return position
        return 0


class StateExchange:
    """The states that are on their way to and from this device. For one thread."""

    def __init__(self, node: str, send: SendStates, states: CarriedStates, find: FindPlan) -> None:
        self._node = node
        self._send = send
        self._states = states
        self._find = find
        self.mirrors = Mirrors(node, send, states, find)
        self._lost: set[str] = set()
        self._resumptions: dict[tuple[PlanId, str], _Resumption] = {}

    def retire(self, plan: PlanId) -> None:
        """Drop the copies of a plan that this device leaves, and wait for no states by it."""
        for key in [key for key in self._resumptions if key[0] == plan]:
            self._tell_resumed(self._resumptions.pop(key).asked, 0)
        self.mirrors.retire(plan)

    def end(self, sequence: str) -> None:
        """Drop the copies of a sequence that has no further steps, and wait for no states of it."""
        for key in [key for key in self._resumptions if key[1] == sequence]:
            del self._resumptions[key]
        self.mirrors.end(sequence)

    def found(self, node: str) -> None:
        """Handle a new connection with a node."""
        self._lost.discard(node)

    def take(self, message: StateMessage, values: Sequence[Value], source: str, now: float) -> None:
        """Take a message of another device, or of this one's gateway. Raises FrameError if it does not fit the plan that it
        is of, and other EdgepartErrors if states cannot be carried now."""
        match message:
            case ResumeSequence():
                if source == gateway_of(message.sequence):
                    self._resume(message, now)
            case WantRows():
                self._answer(message, source)
            case SentRows():
                self._collect(message, values, source)
            case MirroredRows():
                self.mirrors.keep(message, values, source)

    def lose(self, node: str) -> None:
        """Handle a broken connection with a node."""
        self._lost.add(node)
        self.mirrors.lose(node)
        for key in [key for key in self._resumptions if gateway_of(key[1]) == node]:
            del self._resumptions[key]
        for one in [one for one in self._resumptions.values() if node in one.missing]:
            one.missing.discard(node)
            self._finish_if_whole(one)

    def send_grown(self) -> bool:
        """Send some of what has grown to the mirrors. Returns whether there is more."""
        return self.mirrors.send_grown(self._lost)

    # Resumptions

    def _keeps_nothing(self, plan: PlanId) -> bool:
        """Whether this device takes part in a plan without keeping states."""
        held = self._find(*plan)
        programs = held.plan.programs.items() if held is not None else ()
        mine = [program for device, program in programs if held and held.nodes.get(device) == self._node]
        return bool(mine) and not any(program.kept for program in mine)

    def _resume(self, asked: ResumeSequence, now: float) -> None:
        plan = asked.deployment, asked.epoch
        here = self._states.rows_of(asked.sequence).get(plan)
        if here is not None and usable_rows(asked, here.revision, here.position) == asked.position:
            self._tell_resumed(asked, asked.position)
            return
        if self._keeps_nothing(plan):
            self._tell_resumed(asked, asked.position)
            return
        for key in [key for key, one in self._resumptions.items() if one.begun_s < now - GIVEN_UP_S]:
            del self._resumptions[key]
        others = [node for node in asked.sources if node != self._node and node not in self._lost]
        self._states.expect(plan, asked.sequence)
        one = self._resumptions[plan, asked.sequence] = _Resumption(asked, set(), now)
        want = WantRows(*plan, asked.sequence, asked.revision, asked.position, asked.since)
        try:
            for found in self._rows_here(want, self._node):
                one.found.setdefault(found.plan, []).extend(found.rows())
        except EdgepartError:
            self._finish_if_whole(one)
            raise
        one.missing.update(node for node in others if try_to_send(self._send, node, want))
        self._finish_if_whole(one)

    def _rows_here(self, want: WantRows, asker: str) -> Iterator[FoundRows]:
        """Yield what this device has of a sequence, as far as `asker` needs it, from its own states and from the copies of
        those whose devices are lost, or ask."""
        asked = want.deployment, want.epoch
        needed = program_of(known(self._find, asked), asked, asker)[1].kept
        for plan, rows in self._states.rows_of(want.sequence).items():
            if position := usable_rows(want, rows.revision, rows.position):
                device, program = program_of(known(self._find, plan), plan, self._node)
                yield FoundRows(plan, device, position, program.kept, rows.values, needed)
        for key, copy in self.mirrors.copies_of(want.sequence).items():
            position = usable_rows(want, copy.revision, copy.position)
            if position and copy.owner in (*self._lost, asker):
                yield FoundRows(key.plan, key.device, position, copy.program.kept, copy.arrays, needed)

    def _answer(self, want: WantRows, asker: str) -> None:
        """Send another device what it needs and is here; an empty answer if that is nothing."""
        about = want.sequence, want.revision
        try:
            for found in self._rows_here(want, asker):
                for numbers, rows in found.parts(SENT_BYTES):
                    sent = SentRows(*found.plan, *about, found.device, found.position, numbers, last=False)
                    self._send(asker, sent, rows)
        finally:
            try_to_send(self._send, asker, SentRows(want.deployment, want.epoch, *about, "", 0))

    def _collect(self, message: SentRows, values: Sequence[Value], source: str) -> None:
        for one in [one for key, one in self._resumptions.items() if key[1] == message.sequence]:
            if source not in one.missing or message.revision != one.asked.revision:
                continue
            try:
                if message.pieces:
                    self._add(one, message, values)
            finally:
                if message.last:
                    one.missing.discard(source)
                    self._finish_if_whole(one)

    def _add(self, one: _Resumption, message: SentRows, values: Sequence[Value]) -> None:
        plan = message.deployment, message.epoch
        program = known(self._find, plan).plan.programs.get(message.device)
        if program is None or any(number >= len(program.kept) for number in message.pieces):
            raise FrameError(f"rows came of pieces that {message.device!r} does not keep by plan {plan[1]}")
        pieces = [program.kept[number] for number in message.pieces]
        arrays = check_rows(pieces, values, 0, message.position)
        one.found.setdefault(plan, []).extend(
            PieceRows(piece.read, array, message.position)
            for piece, array in zip(pieces, arrays, strict=True)
        )

    def _finish_if_whole(self, one: _Resumption) -> None:
        """Put the rows together once all answers are here, and tell the gateway how far they reach."""
        asked = one.asked
        plan = asked.deployment, asked.epoch
        if one.missing or self._resumptions.get((plan, asked.sequence)) is not one:
            return
        del self._resumptions[plan, asked.sequence]
        position = 0
        try:
            if one.found:
                position = self._states.adopt(plan, asked.sequence, asked.revision, one.fill)
        finally:
            self._tell_resumed(asked, position)

    def _tell_resumed(self, asked: ResumeSequence, position: int) -> None:
        resumed = SequenceResumed(asked.deployment, asked.epoch, asked.sequence, position)
        try_to_send(self._send, gateway_of(asked.sequence), resumed)
