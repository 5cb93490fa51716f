"""Silence: when another device has been silent for too long. Rules; time is an argument.

A device that was woken late, or that is starved of the CPU, hears others late, so it is more patient with them
(Lifeguard's doubt about oneself). What another device's own frames and words allow it, peer.py knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from edgepart.agent.cluster.membership.failure_detector import DetectorTiming
from edgepart.agent.cluster.membership.own_state import OwnState
from edgepart.agent.cluster.membership.peer import Peer
from edgepart.agent.wire.control import ALIVE, SUSPECT


class SilenceWatch:
    """How long one device lets others be silent."""

    def __init__(self, own: OwnState, timing: DetectorTiming) -> None:
        self._own = own
        self._timing = timing
        self._slack_s = 0.0
        """By how much this device's own lateness extends the time for which others may be silent."""
        self.due_at = math.inf
        """No device can have been silent for too long before this."""

    def doubt_self(self, late_s: float, peers: Iterable[Peer], now: float) -> None:
        """Do not count the time that this device slept through as silence of others, and be more patient with
        them."""
        if late_s > self._timing.late_s:
            for peer in peers:
                peer.heard_at = min(now, peer.heard_at + late_s)
                if peer.status == SUSPECT:
                    peer.since = min(now, peer.since + late_s)
            self._slack_s = min(max(self._slack_s, late_s), self._timing.most_slack_s)

    def forget_lateness(self) -> None:
        """Forget a little of this device's own lateness, once for each heartbeat."""
        self._slack_s *= 0.97  # 3 % per heartbeat of 0.5 s: a stall is forgotten in about a minute.

    def look_soon(self, now: float) -> None:
        """Note that a device has another bound from now on."""
        self.due_at = min(self.due_at, now + min(self._timing.silence.least_s, self._timing.hello_s))

    def plan_next(self, peers: Iterable[Peer], now: float) -> None:
        """Set the time when the next device will have been silent for too long."""
        self.due_at = min((self._ends_at(peer, now) for peer in peers), default=math.inf)

    def is_too_long(self, peer: Peer, now: float) -> bool:
        """Whether a device has been silent for too long: a member, or one that has to say Hello first."""
        return now >= self._ends_at(peer, now)

    def _ends_at(self, peer: Peer, now: float) -> float:
        """The time from which the device has been silent for too long; inf if it need not say anything. If this
        device is starved, every other one has the longest bound."""
        if peer.status == ALIVE:
            bound_s = self._timing.silence.most_s if self._own.starved.share else peer.bound_s(now)
            return peer.heard_at + (bound_s + self._slack_s)
        if peer.status == "":
            return peer.heard_at + self._timing.hello_s + self._slack_s
        return math.inf

    def hears(self, peer: Peer, now: float) -> bool:
        """Whether a device was heard so lately that this one vouches for it."""
        return peer.linked and now - peer.heard_at < self._timing.fresh_s + self._slack_s
