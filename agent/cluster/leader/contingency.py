"""Contingency plans: for each device that the serving plan needs, a plan without it, loaded in advance.
Rules.

A loss then takes one message. Contingency plans give way to serving ones: if memory is short, there are
fewer. When another plan begins to serve, contingency plans are made anew, and the parts that they share with
that plan stay loaded. Until then the old ones, and the plan that served before, are used: they may be slower,
but they are loaded.

Two members may also lose each other while other members reach both. The loss of a device is settled in tenths
of a second. A cut between two devices lasts longer, and a plan that needs both cannot answer, although all of
its devices are members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import RIGHT
from edgepart.agent.wire.control import Prepare


class ContingencyPlans:
    """The contingency plans of one deployment."""

    def __init__(self, serving: Prepare | None = None, held: Iterable[Prepare] = ()) -> None:
        """`held`: plans that this device keeps beside the serving one; a new leader goes on with them."""
        self._kept: dict[str, PlanRollout] = {}
        self._unavailable: set[str] = set()
        """Devices without a contingency plan, because it could not be loaded or there was no room."""
        self._borrowed: set[str] = set()
        """Devices whose loss is covered by a plan that was not made for it."""
        nodes = {node for _, node in serving.names} if serving else set()
        for order in held:
            without = nodes - {node for _, node in order.names}
            if serving is not None and order.version == serving.version and without:
                self._kept.setdefault(min(without), PlanRollout(order, verdict=RIGHT))

    def __contains__(self, lost: str) -> bool:
        """Whether the loss of that device is covered, or cannot be."""
        return lost in self._unavailable or any(
            lost not in placement.nodes for placement in self._kept.values()
        )

    def __iter__(self) -> Iterator[PlanRollout]:
        return iter(self._kept.values())

    def add(self, lost: str, placement: PlanRollout) -> None:
        self._kept[lost] = placement
        self._borrowed.discard(lost)

    def borrow(self, lost: str) -> PlanRollout | None:
        """The plan that covers the loss of that device but was not made for it; None if there is none."""
        return self._kept.get(lost) if lost in self._borrowed else None

    def suffices(self, lost: str) -> None:
        """Keep the borrowed plan for that loss, because it is about as good as one made for the loss."""
        self._borrowed.discard(lost)

    def serves(self, serving: PlanRollout, others: Iterable[PlanRollout]) -> None:
        """Note that another plan serves from now on. Of `others`, which the members have loaded, a plan that
        does without one of its devices is borrowed for that device's loss, until a plan is made for just that
        loss."""
        self.clear()
        for placement in sorted(others, key=lambda other: (other.order.latency_s, other.epoch)):
            lost = [
                node for node in sorted(serving.nodes) if node not in placement.nodes and node not in self
            ]
            if lost:
                self._kept[lost[0]] = placement
                self._borrowed.add(lost[0])

    def has_pending(self, world: LeaderView) -> bool:
        """Whether any contingency plan is not ready yet. Contingency plans are prepared one after another,
        because requests are served meanwhile."""
        return any(not placement.is_ready(world) for placement in self)

    def covers(self, serving: PlanRollout, world: LeaderView, *, tried: bool) -> tuple[str, ...]:
        """The names of the serving plan's devices for whose loss another plan is loaded, and was tried if `tried`."""
        ready = [p for p in self if p.is_ready(world) and (p.verdict or not tried)]
        return tuple(name for name, node in serving.order.names if any(node not in p.nodes for p in ready))

    def give_up(self, world: LeaderView) -> None:
        """Give up plans that cannot run, or that a later plan of another leader has overtaken."""
        for lost, placement in list(self._kept.items()):
            if not placement.can_run(world) or placement.is_overtaken(world):
                self.drop(lost)

    def drop(self, lost: str | None = None) -> None:
        """Do without the plan for one loss, or without the newest, until another plan serves."""
        lost = lost or next(reversed(self._kept))
        del self._kept[lost]
        self._borrowed.discard(lost)
        self._unavailable.add(lost)

    def refuse(self, placement: PlanRollout) -> None:
        """Drop a plan that did not pass its trial; another one may be made."""
        for lost in [lost for lost, kept in self._kept.items() if kept is placement]:
            del self._kept[lost]
            self._borrowed.discard(lost)

    def clear(self) -> None:
        """Forget all contingency plans."""
        self._kept, self._unavailable, self._borrowed = {}, set(), set()

    def best(self, world: LeaderView) -> PlanRollout | None:
        """The plan to serve after a loss, now or soon: a ready one before others, then the quickest; None if
        there is none."""
        fine = [p for p in self if p.can_run(world) and not p.loses(world)]
        return min(fine, key=lambda p: (not p.is_ready(world), p.order.latency_s, p.epoch), default=None)


Pair = tuple[str, str]

MIN_CUT_S = 1.0
"""How long a link between two members has to be broken before it counts. A shorter time would count boxes
that died and links that are back at once; a longer one would make requests wait for longer."""


class LastingCuts:
    """Pairs of members that cannot reach each other, as one leader sees them."""

    def __init__(self) -> None:
        self._since: dict[Pair, float] = {}

    def look(self, broken: Iterable[Pair], now: float) -> frozenset[Pair]:
        """The pairs that have been broken for long enough. `broken`: all broken pairs."""
        self._since = {pair: self._since.get(pair, now) for pair in broken}
        return frozenset(pair for pair, since in self._since.items() if now >= since + MIN_CUT_S)

    def wake_at(self, now: float) -> float:
        """The time when the next pair will have been broken for long enough; inf if there is none."""
        return min(
            (at for since in self._since.values() if (at := since + MIN_CUT_S) > now), default=math.inf
        )
