"""Refining: with which drifts a deployment is planned, and when a serving deployment is planned anew because
of measurements. Rules, without I/O.

A drift that devices tell is taken over when it has settled, after a wait that grows each time, so that plans
do not flap. A device that drifted and is left out runs nothing, and so cannot tell that it has recovered: its
drift is dropped after a while. A plan that uses the device again is timed there before it serves, so the
drift is measured again if it is still there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.wire.control import Version

Drifts = tuple[tuple[str, float], ...]
"""(node, drift) of each node whose drift is not 1, sorted."""


@dataclass(frozen=True, slots=True)
class DriftPolicyTiming:
    """Damping: with longer waits the leader searches and moves less often, and helps later."""

    settle_s: float = 4.0
    """The wait after the first news. The devices that ran the same requests tell their drifts within this
    time, because each tells what it found only with its next look, two seconds later."""
    wait_s: float = 60.0
    """The least time between two refinements, doubled each time: 60, 120, 240 s. A member that dies or joins
    is planned for at once all the same."""
    rounds: int = 4
    """The number of refinements after which the wait is `most_wait_s`."""
    most_wait_s: float = 600.0
    """The longest wait: a drift that lasts is worth a search every ten minutes."""
    calm: float = 4.0
    """If nothing had to be refined for this many times the last wait, the next wait is the shortest again."""
    patience_s: float = 60.0
    """A device that drifted and runs nothing gets another chance after this time, which doubles with each
    chance in vain."""
    most_patience_s: float = 3600.0
    """The longest wait for another chance: a device that stays slow costs one search an hour."""


class DriftPolicy:
    """The drifts that one deployment is planned with."""

    def __init__(self, timing: DriftPolicyTiming | None = None) -> None:
        self._timing = timing or DriftPolicyTiming()
        self._version: Version | None = None
        self._used: dict[str, float] = {}
        """The drift that each node is planned with."""
        self._news_at = math.inf
        self._round = 0
        self._refined_at = -math.inf
        self._idle_since: dict[str, float] = {}
        self._patience_s: dict[str, float] = {}
        self._dropped_at: dict[str, float] = {}

    def drifts(self, nodes: Iterable[str]) -> Drifts:
        """The drifts to plan with on these nodes."""
        used = ((node, self._used.get(node, 1.0)) for node in sorted(nodes))
        return tuple((node, drift) for node, drift in used if drift != 1.0)

    def known_drift(self, book: DriftBook, node: str, deployment: str) -> float:
        """The drift that a device told last; 1 if that was dropped."""
        let_go = book.told_at(node, deployment) <= self._dropped_at.get(node, -math.inf)
        return 1.0 if let_go else book.factor(node, deployment)

    def look(
        self,
        book: DriftBook,
        deployment: str,
        version: Version,
        nodes: Collection[str],
        serving: Collection[str] | None,
        now: float,
    ) -> None:
        """Take over drifts that are due. `nodes`: the nodes that may be planned with. `serving`: the nodes of
        the serving plan; None if no plan serves or another one is on its way. The drift of a new node counts
        at once, that of other nodes when it has settled."""
        if version != self._version:
            self._version, self._used = version, {}
        known = {node: self.known_drift(book, node, deployment) for node in nodes}
        self._used = {node: self._used.get(node, known[node]) for node in nodes}
        if serving is None:
            return
        self._forgive({node for node in serving if known.get(node) == 1.0}, book, deployment)
        self._drop_idle(set(serving), known, now)
        known = {node: self.known_drift(book, node, deployment) for node in nodes}
        if known == self._used:
            self._news_at = math.inf
            return
        self._news_at = min(self._news_at, now)
        if now >= self._due_at():
            self._take_over(known, now)

    def _forgive(self, steady: Iterable[str], book: DriftBook, deployment: str) -> None:
        """Give devices the shortest wait again that have since told that they compute as calibrated."""
        for node in steady:
            if book.told_at(node, deployment) > self._dropped_at.get(node, -math.inf):
                self._patience_s.pop(node, None)

    def _drop_idle(self, serving: Collection[str], known: Mapping[str, float], now: float) -> None:
        """Drop the drifts of devices that are left out, with a damping of their own."""
        for node, drift in known.items():
            if drift == 1.0 or node in serving:
                self._idle_since.pop(node, None)
            elif now >= self._idle_since.setdefault(node, now) + self._patience(node):
                self._dropped_at[node], self._used[node] = now, 1.0
                self._patience_s[node] = min(2 * self._patience(node), self._timing.most_patience_s)
                del self._idle_since[node]
        for kept in (self._idle_since, self._patience_s, self._dropped_at):
            for node in kept.keys() - known.keys():
                del kept[node]

    def _patience(self, node: str) -> float:
        return self._patience_s.get(node, self._timing.patience_s)

    def _take_over(self, known: dict[str, float], now: float) -> None:
        calm = now >= self._refined_at + self._timing.calm * self._wait_s()
        self._round = 1 if calm else self._round + 1
        self._used, self._refined_at, self._news_at = dict(known), now, math.inf

    def _wait_s(self) -> float:
        """The wait after the last refinement, in seconds."""
        if self._round == 0:
            return 0.0
        if self._round >= self._timing.rounds:
            return self._timing.most_wait_s
        return float(min(self._timing.wait_s * 2 ** (self._round - 1), self._timing.most_wait_s))

    def _due_at(self) -> float:
        return max(self._news_at + self._timing.settle_s, self._refined_at + self._wait_s())

    def wake_at(self, now: float) -> float:
        """The next time when something may become due without an event; inf if nothing may."""
        times = [at + self._patience(node) for node, at in self._idle_since.items()]
        if self._news_at < math.inf:
            times.append(self._due_at())
        return min((time for time in times if time > now), default=math.inf)
