"""The own view: what this device tells members that it sees, and when. Rules; time is an argument.

Each change makes as many views as the square of the number of members. So a view shows all that changed within a
moment, and the more members there are, the more slowly views follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from edgepart.agent.cluster.membership.failure_detector import DetectorTiming
from edgepart.agent.cluster.membership.peer_table import PeerTable
from edgepart.agent.cluster.state.events import SendMessage
from edgepart.agent.wire.control import Sighting, View


def visible_state(sightings: Iterable[Sighting]) -> list[tuple[str, str]]:
    """The part of a view in which a change counts: the node and the status of each sighting."""
    return [(sighting.node, sighting.status) for sighting in sightings]


class OwnView:
    """The views that one device sends."""

    def __init__(self, table: PeerTable, timing: DetectorTiming, now: float) -> None:
        self._table = table
        self._timing = timing
        self._due_at = now + timing.view_s
        """The time when a view is sent even if nothing changes."""
        self._changed = False
        """Whether any device's status has changed since members were last told."""
        self._not_before = now
        """No view of changes is sent before this."""
        self._newest: View | None = None
        self._newest_at = now
        self._told: tuple[Sighting, ...] = table.sightings()

    def note_change(self, now: float) -> None:
        """Note that a device's status has changed."""
        if not self._changed:
            self._changed = True
            self._not_before = max(self._not_before, now + self._wait_s())

    def _wait_s(self) -> float:
        return self._timing.view_wait_each_s * len(self._table.by_node)

    def for_newcomer(self, now: float) -> View:
        """The view for newcomers. Newcomers that come together get the same view, because later changes
        follow soon."""
        if self._newest is None or now >= self._newest_at + self._wait_s():
            self._newest, self._newest_at = View(self._table.sightings()), now
        return self._newest

    def wake_at(self) -> float:
        """The time when `wake` has to be called."""
        return min(self._due_at, self._not_before if self._changed else math.inf)

    def wake(self, now: float) -> Iterator[SendMessage]:
        """Tell all members what this device sees, if that is due."""
        due = now >= self._due_at
        if not due and not (self._changed and now >= self._not_before):
            return
        self._changed = False
        sightings = self._table.sightings()
        if due or visible_state(sightings) != visible_state(self._told):
            timing, members = self._timing, len(self._table.members())
            self._told = sightings
            self._not_before = now + max(timing.view_gap_s, timing.view_gap_each_s * members)
            self._due_at = now + max(timing.view_s, timing.view_each_s * members)
            view = self._newest = View(sightings)
            self._newest_at = now
            for node in self._table.alive():
                yield SendMessage(node, view)
