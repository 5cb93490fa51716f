"""Mirrors: sends the rows by which this device's states grow to the devices that mirror it, and keeps those of devices that
it mirrors. Rules: no thread, no clock.

Rows go late and a few at a time, so that they are not in the way of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from edgepart.agent.execution.carried_states import CarriedStates, PlanId
from edgepart.agent.execution.sequences import GrownRows
from edgepart.agent.serving.carried_rows import check_rows
from edgepart.agent.serving.known_plans import FindPlan, known, program_of
from edgepart.agent.serving.mirrored_states import MirroredKey, MirroredSequence, MirroredStates
from edgepart.agent.wire.inference import MirroredRows, StateMessage
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ClusterError, FrameError

log = logging.getLogger(__name__)

SendStates = Callable[[str, StateMessage, Sequence[Value]], None]
"""send(node id, message, values) sends to a member or to this device itself, as outgoing.SendValues does."""

MIRRORED_BYTES = 128 << 10
"""About the most bytes of a message to a mirror. Tensors of requests wait behind it, for 1 ms at 1 Gbit/s."""


def try_to_send(send: SendStates, node: str, message: StateMessage, values: Sequence[Value] = ()) -> bool:
    """Send a message; returns whether that can be. What does not arrive is made again from a gateway's tokens."""
    try:
        send(node, message, values)
    except ClusterError as error:
        log.debug("node %s is not told %s of %s: %s", node, type(message).__name__, message.sequence, error)
        return False
    return True


class Mirrors:
    """The devices that mirror this one, and the copies of those that it mirrors. For one thread."""

    def __init__(self, node: str, send: SendStates, states: CarriedStates, find: FindPlan) -> None:
        self._node = node
        self._send = send
        self._states = states
        self._find = find
        self._copies = MirroredStates()
        self._mirrors: dict[PlanId, str] = {}
        """The node that mirrors this device, by plan."""
        self._told: dict[PlanId, set[str]] = {}
        """The sequences of which mirrors have something."""

    @property
    def nbytes(self) -> int:
        """Bytes that are set aside here for copies of other devices' states."""
        return self._copies.nbytes

    def __bool__(self) -> bool:
        """Whether another device has copies of what this one keeps."""
        return bool(self._mirrors)

    def copies_of(self, sequence: str) -> Mapping[MirroredKey, MirroredSequence]:
        """The copies of a sequence that are here."""
        return self._copies.of(sequence)

    def begin(self, plan: PlanId, node: str) -> None:
        """Let this node have a copy of what this device keeps by a plan."""
        self._mirrors[plan] = node

    def retire(self, plan: PlanId) -> None:
        """Drop the copies of a plan that this device leaves."""
        self._copies.retire(plan)
        self._mirrors.pop(plan, None)
        self._told.pop(plan, None)

    def end(self, sequence: str) -> None:
        """Drop the copies of a sequence that has no further steps."""
        self._copies.end(sequence)

    def lose(self, node: str) -> None:
        """Handle a broken connection with a node: as a gateway, and as a mirror."""
        self._copies.lose(node)
        for plan in [plan for plan, mirror in self._mirrors.items() if mirror == node]:
            self._states.mirror_anew(plan)
            self._told.pop(plan, None)

    def send_grown(self, lost: set[str]) -> bool:
        """Send some of what has grown to the mirrors that are not lost. Returns whether there is more."""
        more = False
        for plan, mirror in self._mirrors.items():
            if mirror in lost:
                continue
            sent = [self._send_rows(plan, mirror, one) for one in self._states.grown(plan, MIRRORED_BYTES)]
            more |= bool(sent) and all(sent)
            for sequence in sorted(self._told.get(plan, set()) - self._states.names(plan)):
                self._told[plan].discard(sequence)
                try_to_send(self._send, mirror, MirroredRows(*plan, sequence, 0, 0, 0))
        return more

    def _send_rows(self, plan: PlanId, mirror: str, rows: GrownRows) -> bool:
        """Send rows to the mirror; returns whether that can be."""
        message = MirroredRows(*plan, rows.sequence, rows.revision, rows.begin, rows.end)
        self._told.setdefault(plan, set()).add(rows.sequence)
        sent = try_to_send(self._send, mirror, message, rows.arrays)
        if not sent:
            self._states.mirror_anew(plan, rows.sequence)
        return sent

    def keep(self, message: MirroredRows, values: Sequence[Value], source: str) -> None:
        """Keep rows of which this device is the mirror. Raises FrameError if they do not fit the plan, and StateLost if the
        plan is not held here."""
        plan = message.deployment, message.epoch
        held = known(self._find, plan)
        device, program = program_of(held, plan, source)
        key = MirroredKey(plan, device, message.sequence)
        if not message.position:
            self._copies.drop(key)
            return
        if held.nodes.get(held.plan.mirrors.get(device, "")) != self._node:
            raise FrameError(f"node {source} sent states of {plan[0]}, and this device is not its mirror")
        arrays = check_rows(program.kept, values, message.begin, message.position)
        why = self._copies.take(key, program, source, message.revision, message.begin, arrays)
        if why:
            log.info("rows of %s are not mirrored: %s", message.sequence, why)
