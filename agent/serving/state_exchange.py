"""State exchange: what this device sends to others, and takes from them, of states. Rules: no thread, no clock.

Two things are carried. A device that mirrors another one gets the rows that the other's states grow by, late and a few at a
time, so that they are not in the way of requests. And when a gateway goes on with a sequence by another plan than before
(ResumeSequence), the devices of that plan get the rows that they need from those that have them: the devices of the plan
before, and for those that are lost the ones that mirror them. Whatever is missing is made again from the gateway's tokens.

A sequence makes no steps while its states are read, because its gateway waits; and if it does not wait any more, what comes
late is of no use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgepart.agent.execution.carried_states import CarriedStates, PlanKey
from edgepart.agent.execution.sequences import GrownRows, first_rows
from edgepart.agent.execution.tasks import gateway_of
from edgepart.agent.serving.carried_rows import PieceRows, check_rows, gather_rows, parts_of
from edgepart.agent.serving.mirrored_states import MirroredKey, MirroredStates
from edgepart.agent.wire.inference import (
    Epoch,
    MirroredRows,
    ResumeSequence,
    SentRows,
    SequenceResumed,
    StateMessage,
    WantRows,
)
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ClusterError, EdgepartError, FrameError, StateLost
from edgepart.planner.plans.plan import KeptPiece, Plan
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

SendStates = Callable[[str, StateMessage, Sequence[Value]], None]
"""send(node id, message, values) sends to a member or to this device itself, as executor.Send does."""

MIRRORED_BYTES = 128 << 10
"""About the most bytes of a message to a mirror. Tensors of requests wait behind it, for 1 ms at 1 Gbit/s."""
SENT_BYTES = 32 << 20
"""About the most bytes of one of the messages in which rows are sent that were asked for."""
GIVEN_UP_S = 20.0
"""Seconds after which a device no longer waits for the rows that it asked for. The gateway waits for less."""


class KnownPlan(Protocol):
    """A plan that this device holds (HeldPlan)."""

    @property
    def plan(self) -> Plan: ...

    @property
    def nodes(self) -> Mapping[str, str]:
        """Node ids by device name."""


@dataclass(eq=False)
class _Resumption:
    """A sequence that this device is about to go on with."""

    asked: ResumeSequence
    missing: set[str]
    """Nodes whose answers have not come."""
    begun_s: float
    found: dict[PlanKey, list[PieceRows]] = field(default_factory=dict)
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

    def __init__(
        self,
        node: str,
        send: SendStates,
        states: CarriedStates,
        plan: Callable[[str, Epoch], KnownPlan | None],
    ) -> None:
        """`plan(deployment, epoch)` is a plan that this device holds; None if it does not."""
        self._node = node
        self._send = send
        self._states = states
        self._plan = plan
        self._mirrored = MirroredStates()
        self._mirrors: dict[PlanKey, str] = {}
        """The node that mirrors this device, by plan."""
        self._told: dict[PlanKey, set[str]] = {}
        """The sequences of which mirrors have something."""
        self._lost: set[str] = set()
        self._resumptions: dict[tuple[PlanKey, str], _Resumption] = {}

    @property
    def mirrored_bytes(self) -> int:
        """Bytes that are set aside here for copies of other devices' states."""
        return self._mirrored.nbytes

    @property
    def is_mirrored(self) -> bool:
        """Whether another device has copies of what this one keeps."""
        return bool(self._mirrors)

    def mirror(self, plan: PlanKey, node: str) -> None:
        """Let this node have a copy of what this device keeps by a plan."""
        self._mirrors[plan] = node

    def retire(self, plan: PlanKey) -> None:
        """Drop the copies of a plan that this device leaves, and wait for no states by it."""
        for key in [key for key in self._resumptions if key[0] == plan]:
            self._tell_resumed(self._resumptions.pop(key).asked, 0)
        self._mirrored.retire(plan)
        self._mirrors.pop(plan, None)
        self._told.pop(plan, None)

    def end(self, sequence: str) -> None:
        """Drop the copies of a sequence that has no further steps, and wait for no states of it."""
        for key in [key for key in self._resumptions if key[1] == sequence]:
            del self._resumptions[key]
        self._mirrored.end(sequence)

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
                self._keep(message, values, source)

    def lose(self, node: str) -> None:
        """Handle a broken connection with a node."""
        self._lost.add(node)
        self._mirrored.lose(node)
        for key in [key for key in self._resumptions if gateway_of(key[1]) == node]:
            del self._resumptions[key]
        for plan in [plan for plan, mirror in self._mirrors.items() if mirror == node]:
            self._states.mirror_anew(plan)
            self._told.pop(plan, None)
        for one in [one for one in self._resumptions.values() if node in one.missing]:
            one.missing.discard(node)
            self._finish_if_whole(one)

    # Mirrors

    def send_grown(self) -> bool:
        """Send some of what has grown to the mirrors. Returns whether there is more."""
        more = False
        for plan, mirror in self._mirrors.items():
            if mirror in self._lost:
                continue
            sent = [self._send_grown(plan, mirror, one) for one in self._states.grown(plan, MIRRORED_BYTES)]
            more |= bool(sent) and all(sent)
            for sequence in sorted(self._told.get(plan, set()) - self._states.names(plan)):
                self._told[plan].discard(sequence)
                self._tell(mirror, MirroredRows(*plan, sequence, 0, 0, 0))
        return more

    def _send_grown(self, plan: PlanKey, mirror: str, rows: GrownRows) -> bool:
        """Send rows to the mirror; returns whether that can be."""
        message = MirroredRows(*plan, rows.sequence, rows.revision, rows.begin, rows.end)
        self._told.setdefault(plan, set()).add(rows.sequence)
        try:
            self._send(mirror, message, rows.arrays)
        except ClusterError as error:
            log.debug("node %s gets no rows of %s: %s", mirror, rows.sequence, error)
            self._states.mirror_anew(plan, rows.sequence)
            return False
        return True

    def _keep(self, message: MirroredRows, values: Sequence[Value], source: str) -> None:
        """Keep rows of which this device is the mirror."""
        plan = message.deployment, message.epoch
        device, pieces = self._kept_by(plan, source)
        key = MirroredKey(plan, device, message.sequence)
        if not message.position:
            self._mirrored.drop(key)
            return
        held = self._plan(*plan)
        if held is None or held.nodes.get(held.plan.mirrors.get(device, "")) != self._node:
            raise FrameError(f"node {source} sent states of {plan[0]}, and this device is not its mirror")
        arrays = check_rows(pieces, values, message.begin, message.position)
        program = held.plan.programs[device]
        why = self._mirrored.take(key, program, source, message.revision, message.begin, arrays)
        if why:
            log.info("rows of %s are not mirrored: %s", message.sequence, why)

    def _kept_by(self, plan: PlanKey, node: str) -> tuple[str, Sequence[KeptPiece]]:
        """The name and the kept pieces of a node in a plan. Raises StateLost if this device does not hold that plan (any
        more), and FrameError if the node has none there."""
        held = self._plan(*plan)
        if held is None:
            raise StateLost(f"plan {plan[1]} of {plan[0]} is not held here")
        for device, program in held.plan.programs.items():
            if held.nodes.get(device) == node and program.kept:
                return device, program.kept
        raise FrameError(f"node {node} keeps no states by plan {plan[1]} of {plan[0]}")

    def _keeps_nothing(self, plan: PlanKey) -> bool:
        """Whether this device takes part in a plan without keeping states."""
        held = self._plan(*plan)
        programs = held.plan.programs.items() if held is not None else ()
        mine = [program for device, program in programs if held and held.nodes.get(device) == self._node]
        return bool(mine) and not any(program.kept for program in mine)

    # Resumptions

    def _resume(self, asked: ResumeSequence, now: float) -> None:
        plan = asked.deployment, asked.epoch
        here = self._states.rows_of(asked.sequence).get(plan)
        if here is not None and here.revision == asked.revision and here.position >= asked.position:
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
        want = WantRows(*plan, asked.sequence, asked.revision, asked.position)
        try:
            for found in self._rows_here(want, self._node):
                one.found.setdefault(found.plan, []).extend(found.rows())
        except EdgepartError:
            self._finish_if_whole(one)
            raise
        one.missing.update(node for node in others if self._tell(node, want))
        self._finish_if_whole(one)

    def _rows_here(self, want: WantRows, asker: str) -> Iterator[_Found]:
        """Yield what this device has of a sequence, as far as `asker` needs it, from its own states and from the copies of
        those whose devices are lost, or ask."""
        needed = self._needs(want, asker)
        for plan, rows in self._states.rows_of(want.sequence).items():
            if rows.revision == want.revision and rows.position:
                device, pieces = self._kept_by(plan, self._node)
                yield _Found(plan, device, rows.position, pieces, rows.values, needed)
        for key, copy in self._mirrored.of(want.sequence).items():
            if copy.revision == want.revision and copy.position and copy.owner in (*self._lost, asker):
                pieces = copy.program.kept
                yield _Found(key.plan, key.device, copy.position, pieces, copy.arrays, needed)

    def _needs(self, want: WantRows, node: str) -> Sequence[KeptPiece]:
        return self._kept_by((want.deployment, want.epoch), node)[1]

    def _answer(self, want: WantRows, asker: str) -> None:
        """Send another device what it needs and is here; an empty answer if that is nothing."""
        try:
            for found in self._rows_here(want, asker):
                for message, arrays in found.messages(want):
                    self._send(asker, message, arrays)
        finally:
            about = want.deployment, want.epoch, want.sequence, want.revision
            self._tell(asker, SentRows(*about, "", 0))

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
        held = self._plan(*plan)
        if held is None:
            raise StateLost(f"plan {plan[1]} of {plan[0]} is not held here")
        program = held.plan.programs.get(message.device)
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
        self._tell(gateway_of(asked.sequence), resumed)

    def _tell(self, node: str, message: StateMessage) -> bool:
        """Send a message without a payload; returns whether that can be."""
        try:
            self._send(node, message, ())
        except ClusterError as error:
            log.debug("node %s is not told %s: %s", node, message, error)
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows of a device's pieces, as far as another device needs them."""

    plan: PlanKey
    device: str
    position: int
    pieces: Sequence[KeptPiece]
    arrays: Sequence[Value]
    needed: Sequence[KeptPiece]

    def rows(self) -> list[PieceRows]:
        every = (
            PieceRows(piece.read, array, self.position)
            for piece, array in zip(self.pieces, self.arrays, strict=True)
        )
        return [one for one in every if one.overlaps(self.needed)]

    def messages(self, want: WantRows) -> Iterator[tuple[SentRows, list[Value]]]:
        """Yield the messages that bring them, none of which is the last one of the answer."""
        every = enumerate(zip(self.pieces, self.arrays, strict=True))
        position = min(self.position, want.position)
        rows = {
            number: first_rows(array, position)
            for number, (piece, array) in every
            if PieceRows(piece.read, array, position).overlaps(self.needed)
        }
        numbers = list(rows)
        for part in parts_of([rows[number].nbytes for number in numbers], SENT_BYTES):
            some = tuple(numbers[n] for n in part)
            message = SentRows(
                *self.plan, want.sequence, want.revision, self.device, position, some, last=False
            )
            yield message, [rows[number] for number in some]
