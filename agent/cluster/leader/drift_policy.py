"""Refining: with which drifts a deployment is planned, and when a serving one is planned anew for what was measured.
Rules, without I/O.

What devices tell is taken over when it has settled, with longer waits each time, so that plans do not flap. A device
that drifted and is left out has nothing to run and cannot tell that it has recovered: after a while its drift is let
go. A plan that uses it again is timed there before it serves, which tells the drift anew where it has not passed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.wire.control import Version

Drifts = tuple[tuple[str, float], ...]
"""(node, drift) where that is not 1, sorted."""


@dataclass(frozen=True, slots=True)
class RefiningTiming:
    """Damping: longer waits search and move less often, and are later to help."""

    settle_s: float = 4.0
    """From the first news on: what devices that ran the same requests tell comes together."""
    wait_s: float = 60.0
    """Between two refinements at least; doubles each time. Whoever dies or comes is planned for at once all the same."""
    rounds: int = 4
    """After so many, `most_wait_s`."""
    most_wait_s: float = 600.0
    calm: float = 4.0
    """When nothing was to be refined for so many times the last wait, the next one is the shortest again."""
    patience_s: float = 60.0
    """A device that drifted and has nothing to run is given another chance after this; doubles each time in vain."""
    most_patience_s: float = 3600.0


class Refining:
    """One deployment's."""

    def __init__(self, timing: RefiningTiming | None = None) -> None:
        self._timing = timing or RefiningTiming()
        self._version: Version | None = None
        self._used: dict[str, float] = {}
        """By node, the drift that it is planned with."""
        self._news_at = math.inf
        self._round = 0
        self._refined_at = -math.inf
        self._idle_since: dict[str, float] = {}
        self._patience_s: dict[str, float] = {}
        self._let_go_at: dict[str, float] = {}

    def drifts(self, nodes: Iterable[str]) -> Drifts:
        """What to plan with on these."""
        used = ((node, self._used.get(node, 1.0)) for node in sorted(nodes))
        return tuple((node, drift) for node, drift in used if drift != 1.0)

    def known(self, book: DriftBook, node: str, deployment: str) -> float:
        """What the device told last, unless that was let go."""
        let_go = book.told_at(node, deployment) <= self._let_go_at.get(node, -math.inf)
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
        """`nodes` may be planned with; `serving` are those of the plan that serves, None where none does or another one
        is on its way already. Those that come new count as they drift; the others as settled."""
        if version != self._version:
            self._version, self._used = version, {}
        known = {node: self.known(book, node, deployment) for node in nodes}
        self._used = {node: self._used.get(node, known[node]) for node in nodes}
        if serving is None:
            return
        self._forgive({node for node in serving if known.get(node) == 1.0}, book, deployment)
        self._let_go(set(serving), known, now)
        known = {node: self.known(book, node, deployment) for node in nodes}
        if known == self._used:
            self._news_at = math.inf
            return
        self._news_at = min(self._news_at, now)
        if now >= self._due_at():
            self._take(known, now)

    def _forgive(self, steady: Iterable[str], book: DriftBook, deployment: str) -> None:
        """Devices that have told since that they do as calibrated."""
        for node in steady:
            if book.told_at(node, deployment) > self._let_go_at.get(node, -math.inf):
                self._patience_s.pop(node, None)

    def _let_go(self, serving: Collection[str], known: Mapping[str, float], now: float) -> None:
        """Drifts of devices that are left out; they have a damping of their own."""
        for node, drift in known.items():
            if drift == 1.0 or node in serving:
                self._idle_since.pop(node, None)
            elif now >= self._idle_since.setdefault(node, now) + self._patience(node):
                self._let_go_at[node], self._used[node] = now, 1.0
                self._patience_s[node] = min(2 * self._patience(node), self._timing.most_patience_s)
                del self._idle_since[node]
        for kept in (self._idle_since, self._patience_s, self._let_go_at):
            for node in kept.keys() - known.keys():
                del kept[node]

    def _patience(self, node: str) -> float:
        return self._patience_s.get(node, self._timing.patience_s)

    def _take(self, known: dict[str, float], now: float) -> None:
        calm = now >= self._refined_at + self._timing.calm * self._wait_s()
        self._round = 1 if calm else self._round + 1
        self._used, self._refined_at, self._news_at = dict(known), now, math.inf

    def _wait_s(self) -> float:
        """After the last one."""
        if self._round == 0:
            return 0.0
        if self._round >= self._timing.rounds:
            return self._timing.most_wait_s
        return float(min(self._timing.wait_s * 2 ** (self._round - 1), self._timing.most_wait_s))

    def _due_at(self) -> float:
        return max(self._news_at + self._timing.settle_s, self._refined_at + self._wait_s())

    def wake_at(self, now: float) -> float:
        """When something may become due only because time passes."""
        times = [at + self._patience(node) for node, at in self._idle_since.items()]
        if self._news_at < math.inf:
            times.append(self._due_at())
        return min((time for time in times if time > now), default=math.inf)
