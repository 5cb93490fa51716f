"""Contingency plans: for each device that the serving plan needs, a plan without it, loaded in advance. Pure rules.

A loss then takes one message. Contingency plans give way to serving ones: where memory is short, there are fewer. When
another plan serves they are made anew, and the parts that they share with it stay loaded. Until then the old ones and the
plan that served before are used: they may be slower, but they are loaded.

Two members may also lose each other while others still reach both. A loss of a device is settled in tenths of a second; a
cut between two devices lasts longer, and a plan that needs both cannot answer although all of its devices are members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import RIGHT
from edgepart.agent.wire.control import Prepare


class Spares:
    """One deployment's."""

    def __init__(self, serving: Prepare | None = None, held: Iterable[Prepare] = ()) -> None:
        """`held`: plans that this device keeps beside the one that serves; a new leader goes on with those."""
        self._kept: dict[str, PlanRollout] = {}
        self._vain: set[str] = set()
        """Devices for which there is none, as it could not be loaded or there was no room."""
        self._borrowed: set[str] = set()
        """Devices for whose loss there is one that was not made for it."""
        nodes = {node for _, node in serving.names} if serving else set()
        for order in held:
            without = nodes - {node for _, node in order.names}
            if serving is not None and order.version == serving.version and without:
                self._kept.setdefault(min(without), PlanRollout(order, verdict=RIGHT))

    def __contains__(self, lost: str) -> bool:
        """Whether the loss of that device is seen to, as far as it can be."""
        return lost in self._vain or any(lost not in placement.nodes for placement in self._kept.values())

    def __iter__(self) -> Iterator[PlanRollout]:
        return iter(self._kept.values())

    def add(self, lost: str, placement: PlanRollout) -> None:
        self._kept[lost] = placement
        self._borrowed.discard(lost)

    def borrowed(self, lost: str) -> PlanRollout | None:
        """What was not made for the loss of that device, but would do."""
        return self._kept.get(lost) if lost in self._borrowed else None

    def suffices(self, lost: str) -> None:
        """What is borrowed for it is about as good as what would be made."""
        self._borrowed.discard(lost)

    def serves(self, serving: PlanRollout, others: Iterable[PlanRollout]) -> None:
        """Another plan serves from now on. `others`, which the members have loaded, are kept where they would do for a
        loss: those that a device was missing in, until one is made for just that."""
        self.clear()
        for placement in sorted(others, key=lambda other: (other.order.latency_s, other.epoch)):
            lost = [
                node for node in sorted(serving.nodes) if node not in placement.nodes and node not in self
            ]
            if lost:
                self._kept[lost[0]] = placement
                self._borrowed.add(lost[0])

    def pending(self, world: LeaderView) -> bool:
        """Whether any is still on its way: they are prepared one after the other, as requests are served meanwhile."""
        return any(not placement.is_ready(world) for placement in self)

    def give_up(self, world: LeaderView) -> None:
        """Those that cannot run, or that another leader's plan has left behind."""
        for lost, placement in list(self._kept.items()):
            if not placement.can_run(world) or placement.is_overtaken(world):
                self.drop(lost)

    def drop(self, lost: str | None = None) -> None:
        """Do without one, or without the newest, until another plan serves."""
        lost = lost or next(reversed(self._kept))
        del self._kept[lost]
        self._borrowed.discard(lost)
        self._vain.add(lost)

    def refuse(self, placement: PlanRollout) -> None:
        """It was tried in vain; another one may be made."""
        for lost in [lost for lost, kept in self._kept.items() if kept is placement]:
            del self._kept[lost]
            self._borrowed.discard(lost)

    def clear(self) -> None:
        """There are none."""
        self._kept, self._vain, self._borrowed = {}, set(), set()

    def best(self, world: LeaderView) -> PlanRollout | None:
        """What could serve now, or soon."""
        fine = [p for p in self if p.can_run(world) and not p.loses(world)]
        return min(fine, key=lambda p: (not p.is_ready(world), p.order.latency_s, p.epoch), default=None)


Pair = tuple[str, str]

LASTING_S = 1.0
"""Less moves away from plans for a box that died, or for a link that is back at once; more makes requests wait longer."""


class Apart:
    """As one leader sees it."""

    def __init__(self) -> None:
        self._since: dict[Pair, float] = {}

    def look(self, broken: Iterable[Pair], now: float) -> frozenset[Pair]:
        """Those that have been broken for long enough. `broken`: all that are."""
        self._since = {pair: self._since.get(pair, now) for pair in broken}
        return frozenset(pair for pair, since in self._since.items() if now >= since + LASTING_S)

    def wake_at(self, now: float) -> float:
        """When another one may have lasted."""
        return min(
            (at for since in self._since.values() if (at := since + LASTING_S) > now), default=math.inf
        )
