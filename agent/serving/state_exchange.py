"""State exchange: what this device sends to others, and takes from them, of states. Rules: no thread, no clock.

Two things are carried. A device that mirrors another one gets the rows that the other's states grow by, late and a few at a
time, so that they are not in the way of requests. And when a gateway goes on with a sequence by another plan than before
(ResumeSequence), the devices of that plan ask all others what they have, and get the rows that they need from those that
have them: the devices of the plan before, and the ones that mirror them (row_offers.py). Whatever is missing is made again
from the gateway's tokens.

A sequence makes no steps while its states are read, because its gateway waits; and if it does not wait any more, what comes
late is of no use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgepart.agent.execution.carried_states import CarriedStates, PlanId
from edgepart.agent.execution.tasks import gateway_of
from edgepart.agent.serving.carried_rows import (
    FoundRows,
    PieceRows,
    check_rows,
    crop_to,
    gather_rows,
    usable_rows,
)
from edgepart.agent.serving.known_plans import FindPlan, known, program_of
from edgepart.agent.serving.mirrors import Mirrors, SendStates, try_to_send
from edgepart.agent.serving.row_offers import RowOffer, choose_offers, reach, rows_by_node
from edgepart.agent.wire.inference import (
    MirroredRows,
    ResumeSequence,
    RowsOf,
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
    """A sequence that this device is about to go on with. First all others say what they have; then those that were chosen
    send their rows."""

    asked: ResumeSequence
    wanted: Sequence[KeptPiece]
    begun_s: float
    here: dict[tuple[PlanId, str], FoundRows] = field(default_factory=dict)
    """What this device has itself, by the plan and the device whose states they are."""
    offers: list[RowOffer] = field(default_factory=list)
    chosen: tuple[RowOffer, ...] | None = None
    """The offers that are taken; None while others say what they have."""
    question: int = 0
    """The number of the question that was asked last."""
    missing: set[str] = field(default_factory=set)
    """Nodes whose answers to it have not come."""
    found: list[PieceRows] = field(default_factory=list)

    def fill(self, pieces: Sequence[KeptPiece], arrays: Sequence[Array]) -> int:
        """Copy what was found into the arrays; returns the number of rows."""
        return gather_rows(pieces, arrays, self.found, self.asked.position)


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
        self._questions = 0
        """The number of questions that were asked."""

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
        for one in [*self._resumptions.values()]:
            self._lose_source(one, node)

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
        self._states.expect(plan, asked.sequence)
        one = self._resumptions[plan, asked.sequence] = _Resumption(asked, (), now)
        try:
            self._take_stock(one)
        except EdgepartError:
            self._go_on(one)
            raise
        if reach(one.wanted, one.offers, asked.position) < asked.position:
            self._ask(one, {node: None for node in asked.sources if node not in (self._node, *self._lost)})
        self._go_on(one)

    def _take_stock(self, one: _Resumption) -> None:
        """Note what this device needs, and what of it is here."""
        want = self._want(one, None)
        plan = want.deployment, want.epoch
        one.wanted = program_of(known(self._find, plan), plan, self._node)[1].kept
        for found in self._rows_here(want, self._node):
            one.here[found.plan, found.device] = found
            one.offers.append(
                RowOffer(found.plan, found.device, self._node, found.position, [*found.needed().values()])
            )

    def _want(self, one: _Resumption, rows_of: RowsOf | None) -> WantRows:
        asked = one.asked
        about = asked.deployment, asked.epoch, asked.sequence, asked.revision, asked.position, asked.since
        return WantRows(*about, one.question, rows_of)

    def _ask(self, one: _Resumption, nodes: Mapping[str, RowsOf | None]) -> None:
        """Ask nodes what they have, or for these rows."""
        self._questions += 1
        one.question = self._questions
        one.missing = {
            node
            for node, rows_of in sorted(nodes.items())
            if try_to_send(self._send, node, self._want(one, rows_of))
        }

    def _rows_here(self, want: WantRows, asker: str) -> Iterator[FoundRows]:
        """Yield what this device has of a sequence, as far as `asker` needs it: its own states, and copies of others'."""
        asked = want.deployment, want.epoch
        needed = program_of(known(self._find, asked), asked, asker)[1].kept
        for plan, rows in self._states.rows_of(want.sequence).items():
            if position := usable_rows(want, rows.revision, rows.position):
                device, program = program_of(known(self._find, plan), plan, self._node)
                yield FoundRows(plan, device, position, program.kept, rows.values, needed)
        for key, copy in self.mirrors.copies_of(want.sequence).items():
            if position := usable_rows(want, copy.revision, copy.position):
                yield FoundRows(key.plan, key.device, position, copy.program.kept, copy.arrays, needed)

    def _answer(self, want: WantRows, asker: str) -> None:
        """Tell another device what of the rows that it needs is here, or send it those that it has chosen."""
        about, wanted = (want.sequence, want.revision), want.rows_of
        try:
            for found in self._rows_here(want, asker):
                head = SentRows(
                    *found.plan, *about, found.device, found.position, last=False, question=want.question
                )
                if wanted is None:
                    self._send(asker, replace(head, pieces=tuple(found.needed())), ())
                elif found.plan == (wanted.deployment, wanted.epoch) and found.device in wanted.devices:
                    for numbers, rows in found.parts(SENT_BYTES):
                        self._send(asker, replace(head, pieces=numbers), rows)
        finally:
            end = SentRows(want.deployment, want.epoch, *about, "", 0, question=want.question)
            try_to_send(self._send, asker, end)

    def _collect(self, message: SentRows, values: Sequence[Value], source: str) -> None:
        for one in [one for key, one in self._resumptions.items() if key[1] == message.sequence]:
            if source not in one.missing or message.question != one.question:
                continue
            try:
                if message.pieces:
                    self._add(one, message, values, source)
            finally:
                if message.last:
                    one.missing.discard(source)
                    self._go_on(one)

    def _add(self, one: _Resumption, message: SentRows, values: Sequence[Value], source: str) -> None:
        plan = message.deployment, message.epoch
        program = known(self._find, plan).plan.programs.get(message.device)
        kept = program.kept if program is not None else ()
        parts = [crop_to(kept[n], one.wanted) if n < len(kept) else None for n in message.pieces]
        pieces = [part for part in parts if part is not None]
        if len(pieces) < len(parts):
            raise FrameError(
                f"rows came of pieces that {message.device!r} does not keep by plan {plan[1]}, or that are not needed"
            )
        offer = RowOffer(plan, message.device, source, message.position, pieces)
        if one.chosen is None:
            one.offers.append(offer)
        elif any(other.plan == plan for other in one.chosen):
            arrays = check_rows(pieces, values, 0, message.position)
            one.found += [
                PieceRows(piece.read, array, message.position)
                for piece, array in zip(pieces, arrays, strict=True)
            ]

    def _lose_source(self, one: _Resumption, node: str) -> None:
        """Go on without what a lost node would have sent."""
        one.offers = [offer for offer in one.offers if offer.node != node]
        if node in one.missing and one.chosen is not None:
            one.chosen, one.missing = None, set()  # Others may have the same rows.
        one.missing.discard(node)
        self._go_on(one)

    def _go_on(self, one: _Resumption) -> None:
        """Once all answers are here: ask for the rows that are to be taken, or put them together."""
        plan = one.asked.deployment, one.asked.epoch
        if one.missing or self._resumptions.get((plan, one.asked.sequence)) is not one:
            return
        if one.chosen is None:
            one.chosen = choose_offers(one.wanted, one.offers, self._node, one.asked.position)
            mine = [offer for offer in one.chosen if offer.node == self._node]
            one.found = [rows for offer in mine for rows in one.here[offer.plan, offer.device].rows()]
            self._ask(one, rows_by_node(one.chosen, self._node))
        if not one.missing:
            self._finish(plan, one)

    def _finish(self, plan: PlanId, one: _Resumption) -> None:
        """Put the rows together, and tell the gateway how far they reach."""
        asked = one.asked
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
