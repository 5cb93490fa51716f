"""Draining: devices that users take out, for a while or for good. Rules, without I/O; the core asks.

Plans are made without a drained device, and what it stores is stored elsewhere; it stays a member and a
gateway. If no other device is left, it serves again. A device that is to be removed is drained first. Then,
or at once if it is no member any more, it is removed: it stops, and no member takes it in again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from edgepart.agent.cluster.core.device_uses import ServedPlans, describe_uses
from edgepart.agent.cluster.leader.rollout_state import LeaderView
from edgepart.agent.cluster.state.drains import DrainMap
from edgepart.agent.cluster.state.events import (
    DrainRequested,
    Effect,
    Member,
    PersistDrains,
    RemovedFromCluster,
    SendMessage,
)
from edgepart.agent.wire.control import (
    ALIVE,
    DRAINED,
    DRAINS,
    FLAPPING,
    IN,
    REMOVED,
    REMOVING,
    Drain,
    Drains,
    DrainStanding,
)
from edgepart.agent.wire.versions import understands
from edgepart.planner.errors import UsageError

EXPEL_S = 15.0
"""The time that a removed device has to stop by itself before its membership is ended."""

Members = Sequence[Member]


class Draining:
    """One device's part in draining."""

    def __init__(
        self,
        node: str,
        entries: Iterable[Drain] = (),
        genuine: Callable[[Drain], bool] = lambda entry: True,
    ) -> None:
        """`genuine` returns whether the CA has signed an entry. Entries from this device's disk are checked
        before they are sent to anybody."""
        self.map = DrainMap(entries)
        self._genuine = genuine
        self.standings: dict[str, DrainStanding] = {}
        """The standing of each drain that the leader last sent, by node."""
        self._node = node
        self._looked: dict[str, DrainStanding] = {}
        """The standing of each drain that this device last sent as the leader, by node."""
        self._expel_at: dict[str, float] = {}
        """The time when the membership of each removed member is ended, by node."""

    def is_removed(self, node: str) -> bool:
        return self.map.state(node) == REMOVED

    def mark_drained(self, members: Members) -> tuple[Member, ...]:
        """The members as planning has to see them: drained ones have the status DRAINED, unless all that are
        alive are drained."""

        def off(member: Member) -> bool:
            return self.map.state(member.node) != IN

        here = [member for member in members if member.status in (ALIVE, FLAPPING)]
        if all(map(off, here)):
            return tuple(members)
        drained = {member.node for member in here if off(member)}
        return tuple(replace(m, status=DRAINED) if m.node in drained else m for m in members)

    # What users want, and what other devices tell

    def propose(self, node: str, name: str, state: str, members: Members) -> Drain | None:
        """The entry for what a user wants, to be signed; None if that is so already. Raises UsageError if no
        device would be left to serve."""
        there = {member.node for member in members}
        rest = [n for n in there - {node} if self.map.state(n) == IN]
        if state != IN and node in there and not rest:
            raise UsageError(
                f"{name} is the only device that is not drained: nothing would be left to serve. Nothing was changed"
            )
        known = self.map.state(node)
        if known == state or (known == REMOVED and state == REMOVING):
            return None
        return self.map.next(self._node, node, name, state)

    def take_request(self, event: DrainRequested, members: Members) -> list[Effect]:
        """Take a user's signed request. Raises UsageError if the signature is wrong, or if something else was
        wanted meanwhile; nothing has changed then."""
        entry = event.entry
        changed = self.map.merge((entry,)) if self._genuine(entry) else ()
        if not changed and not self.map.has((entry,)):
            raise UsageError(
                f"{entry.name} was drained, removed or taken back elsewhere meanwhile. Nothing was changed"
            )
        return self._announce(changed, members) if changed else []

    def find_forged(self, entries: Iterable[Drain]) -> tuple[Drain, ...]:
        """The entries that the CA did not sign; known entries were checked when they came."""
        return tuple(entry for entry in entries if not self.map.has((entry,)) and not self._genuine(entry))

    def merge(self, entries: Sequence[Drain], members: Members, teller: str = "") -> list[Effect]:
        """Take the entries of another device, `teller`. That need not be a member, because the CA signed the
        entries; unsigned ones are left out. If it sent outdated entries it gets the newer ones, because it
        may be out only by an entry that was taken back."""
        forged = self.find_forged(entries)
        good = [entry for entry in entries if entry not in forged]
        changed = self.map.merge(good)
        effects = self._announce(changed, members) if changed else []
        known = [self.map.get(entry.node) for entry in good]
        newer = self._select_signed(k for k, e in zip(known, good, strict=True) if k is not None and k != e)
        return [*effects, SendMessage(teller, Drains(newer))] if newer and teller else effects

    def _select_signed(self, entries: Iterable[Drain]) -> tuple[Drain, ...]:
        """The entries that other devices will believe."""
        return tuple(filter(self._genuine, entries))

    def greet(self, member: Member) -> list[Effect]:
        """The messages that tell a newcomer all drains and how far they are."""
        entries = self._select_signed(self.map)
        if not entries or not understands(member.version, DRAINS):
            return []
        return [
            SendMessage(member.node, Drains(entries)),
            *(SendMessage(member.node, s) for s in self._looked.values()),
        ]

    def farewell(self, node: str, version: str) -> list[Effect]:
        """The message that tells a removed device that it was removed; nothing if the device was not."""
        entry = self.map.get(node)
        if entry is None or entry.state != REMOVED or not understands(version, DRAINS):
            return []
        if not self._genuine(entry):
            return []
        return [SendMessage(node, Drains((entry,)))]

    def _announce(self, changed: Sequence[Drain], members: Members) -> list[Effect]:
        effects: list[Effect] = [PersistDrains(tuple(self.map))]
        effects += _to_all(Drains(tuple(changed)), members, self._node)
        mine = next((entry for entry in changed if entry.node == self._node), None)
        if mine is not None and mine.state == REMOVED:
            effects.append(RemovedFromCluster(f"{mine.name} was removed from the cluster by a user"))
        return effects

    # Members that were removed

    def plan_expulsions(self, members: Members, now: float) -> None:
        """Set the time when members that were removed are expelled, if they are still members then."""
        for member in members:
            if member.node != self._node and self.is_removed(member.node):
                self._expel_at.setdefault(member.node, now + EXPEL_S)

    def wake_at(self) -> float:
        """The time when the next removed member is to be expelled; inf if there is none."""
        return min(self._expel_at.values(), default=math.inf)

    def take_expelled(self, now: float) -> list[str]:
        """The removed members that are to be expelled now; each is returned once."""
        due = [node for node, at in self._expel_at.items() if at <= now]
        for node in due:
            del self._expel_at[node]
        return due

    # What the leader does

    def look(self, world: LeaderView, served: ServedPlans, members: Members) -> list[Effect]:
        """Tell the members how far each drain is, and remove devices that are to be removed and that nothing
        needs any more."""
        effects: list[Effect] = []
        self._looked = {
            node: s for node, s in self._looked.items() if self.map.state(node) in (DRAINED, REMOVING)
        }
        for entry in list(self.map):
            if entry.state not in (DRAINED, REMOVING):
                continue
            gone = entry.node not in {member.node for member in members}
            left = [] if gone else list(describe_uses(entry.node, world, served))
            if entry.state == REMOVING and not left:
                effects += self._announce(self.map.merge((replace(entry, state=REMOVED),)), members)
                continue
            text = "; ".join(left) or ("it is no member now" if gone else "nothing needs it any more")
            now = DrainStanding(world.term, entry.node, entry.version, not left, text)
            if self._looked.get(entry.node) != now:
                self._looked[entry.node] = self.standings[entry.node] = now
                effects += _to_all(now, members, self._node)
        return effects

    def remind(self, members: Members) -> list[Effect]:
        """Tell all drains again, in case a member missed one."""
        entries = self._select_signed(self.map)
        return _to_all(Drains(entries), members, self._node) if entries else []

    def retell(self, members: Members) -> list[Effect]:
        """Tell all drains and how far they are, in case a message was lost."""
        return self.remind(members) + [
            e for s in self._looked.values() for e in _to_all(s, members, self._node)
        ]


def _to_all(message: Drains | DrainStanding, members: Members, me: str) -> list[Effect]:
    told = [m.node for m in members if m.node != me and understands(m.version, DRAINS)]
    return [SendMessage(node, message) for node in told]
