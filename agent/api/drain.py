"""Drains: lets users drain and remove members and take them back. Door: the event loop; the core decides.

Once a request is accepted, the cluster carries it out, also if the user does not wait for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from edgepart.agent.api.stages import Progress
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.roster import replace_node_ids
from edgepart.agent.cluster.state import events
from edgepart.agent.measure.starvation import describe_starvation
from edgepart.agent.wire.control import (
    ALIVE,
    DEAD,
    DRAINED,
    DRAINS,
    FLAPPING,
    IN,
    LEFT,
    REMOVED,
    REMOVING,
    Drain,
)
from edgepart.agent.wire.versions import bare, understands
from edgepart.planner.errors import ClusterError, Unavailable, UsageError

SignEntry = Callable[[Drain], Awaitable[Drain]]
"""Returns the entry, signed with the CA's key. Raises UsageError or Unavailable if no signature can be
had."""
POLL_S = 0.1
"""The interval at which the progress of a drain is checked: people do not notice such a delay."""
_NODE = re.compile(r"[0-9a-f]{16}")


class DrainService:
    """Drains, removals and their state, for the event loop's thread only."""

    def __init__(self, core: Core, post: Callable[[events.Event], None], sealed: SignEntry) -> None:
        self._core = core
        self._sealed = sealed
        self._post = post

    async def drain(self, name: str, progress: Progress, *, remove: bool) -> dict[str, Any]:
        """Drain or remove a device. Returns when nothing needs the device any more; with `remove`, when it is
        no member any more.

        Raises UsageError if there is no such device, if it is the last one that serves, or if the member with
        the CA's key does not sign; Unavailable if the leader's version is too old, or if no member with that
        key is here; ClusterError if a user wanted something else meanwhile."""
        node, called = self._find(name)
        self._check_leader()
        await self._ask(node, called, REMOVING if remove else DRAINED)
        told = ""
        while True:
            entry = self._core.draining.map.get(node)
            if entry is None or entry.state == IN or (remove and entry.state == DRAINED):
                raise ClusterError(f"{called} is not to be {'removed' if remove else 'drained'} any more")
            if self._done(entry, remove):
                return {"name": called, "node": node, "state": entry.state}
            if (text := self._text(entry)) != told:
                progress(told := text, 0, 0)
            await asyncio.sleep(POLL_S)

    async def _ask(self, node: str, called: str, state: str) -> None:
        core = self._core
        entry = core.draining.propose(node, called, state, core.membership.members())
        if entry is not None:
            self._post(events.DrainRequested(await self._sealed(entry)))

    async def undrain(self, name: str) -> dict[str, Any]:
        node, called = self._find(name)
        await self._ask(node, called, IN)
        return {"name": called, "node": node, "state": IN}

    def state(self, member: events.Member) -> str:
        """The member's state as people see it: its status or, if it is alive but drained, the state of its
        drain."""
        state = self._core.draining.map.state(member.node)
        return member.status if state == IN or member.status not in (ALIVE, FLAPPING) else state

    def drains(self) -> list[dict[str, Any]]:
        """The devices that are drained or being removed."""
        entries = [e for e in self._core.draining.map if e.state in (DRAINED, REMOVING)]
        return [
            {"name": e.name, "node": e.node, "state": e.state, "done": self._is_out(e), "text": self._text(e)}
            for e in entries
        ]

    def lost_devices(self) -> list[dict[str, Any]]:
        """The devices that were members lately and are not any more, the one lost last first. They are listed
        until they are back or forgotten (forget_s in agent/cluster/membership/failure_detector.py). If a
        device was starved, its note says so, because the device may be alive."""
        now = asyncio.get_running_loop().time()
        here = {member.name for member in self._core.membership.members()}
        gone = [
            peer
            for peer in self._core.membership.peers.values()
            if peer.status in (DEAD, LEFT)
            and peer.hello.name
            and peer.hello.name not in here
            and not self._core.draining.is_removed(peer.node)
        ]
        return [
            {
                "name": peer.hello.name,
                "node": peer.node,
                "state": "lost" if peer.status == DEAD else "left",
                "seconds_ago": now - peer.since,
                "note": describe_starvation(peer.starvation_at(peer.since)) or None,
            }
            for peer in sorted(gone, key=lambda peer: (-peer.since, peer.node))
        ]

    def refused_devices(self) -> list[dict[str, str]]:
        """The devices that said Hello lately and were not taken in."""
        found = self._core.membership.refusals.recent_refusals(asyncio.get_running_loop().time())
        return [{"name": r.name, "node": r.node, "version": bare(r.version), "why": r.why} for r in found]

    def _find(self, name: str) -> tuple[str, str]:
        """The node id and name of a member, of a device that is gone, or of any node by its id."""
        members = self._core.membership.members()
        known = {member.name: member.node for member in members}
        for entry in self._core.draining.map:
            if entry.state != REMOVED:
                known.setdefault(entry.name, entry.node)
        lost = [p for p in self._core.membership.peers.values() if p.hello.name]
        for peer in lost:
            known.setdefault(peer.hello.name, peer.node)
        if name in known:
            return known[name], name
        if _NODE.fullmatch(name):
            return name, next((called for called, node in known.items() if node == name), name)
        raise UsageError(
            f"there is no device {name[:64]!r}. Known: {', '.join(sorted(known))}, by name or node id. Nothing was changed"
        )

    def _check_leader(self) -> None:
        leader = next((m for m in self._core.membership.members() if m.node == self._core.leader), None)
        if leader is None:
            raise Unavailable("no leader is elected yet; nothing was changed")
        if not understands(leader.version, DRAINS):
            raise Unavailable(
                f"the leader, {leader.name}, runs edgepart {bare(leader.version)}, which cannot drain devices: update it. "
                "Nothing was changed",
                retry_after_s=60.0,
            )

    def _done(self, entry: Drain, remove: bool) -> bool:
        if not remove:
            return entry.state == REMOVED or self._is_out(entry)
        members = {member.node for member in self._core.membership.members()} - {self._core.node}
        return entry.state == REMOVED and entry.node not in members

    def _is_out(self, entry: Drain) -> bool:
        standing = self._core.draining.standings.get(entry.node)
        return standing is not None and standing.version == entry.version and standing.done

    def _text(self, entry: Drain) -> str:
        if entry.state == REMOVED:
            return "it is stopping"
        standing = self._core.draining.standings.get(entry.node)
        known = standing is not None and standing.version == entry.version
        if standing is None or not known:
            return "waiting for the leader"
        names = {member.node: member.name for member in self._core.membership.members()}
        return replace_node_ids(standing.text, names)
