"""Contingency plans: for each device that the serving plan needs, a plan without it, loaded in advance.
Rules.

A loss then takes one message. Contingency plans give way to serving ones: if memory is short, there are
fewer. When another plan begins to serve, contingency plans are made anew, and the parts that they share with
that plan stay loaded. Until then the old ones, and the plan that served before, are used: they may be slower,
but they are loaded.

A plan for a loss takes seconds to find, and longer to load, and each device needs one. Before that there are
**refuges**: plans on one device alone. They take no search and compile nothing, and two of them cover the
loss of any device. They are dropped when a plan is loaded for each loss.

Two members may also lose each other while other members reach both. The loss of a device is settled in tenths
of a second. A cut between two devices lasts longer, and a plan that needs both cannot answer, although all of
its devices are members.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import RIGHT
from edgepart.agent.wire.control import Prepare
from edgepart.agent.wire.inference import Epoch


class ContingencyPlans:
    """The contingency plans of one deployment."""

    def __init__(self, serving: Prepare | None = None, held: Iterable[Prepare] = ()) -> None:
        """`held`: plans that this device keeps beside the serving one; a new leader goes on with them."""
        self._kept: dict[str, PlanRollout] = {}
        self._unavailable: set[str] = set()
        """Devices without a contingency plan, because it could not be loaded or there was no room."""
        self._borrowed: set[str] = set()
        """Devices whose loss is covered by a plan that was not made for it."""
        self._refuges: dict[str, PlanRollout] = {}
        """Plans on one device alone, by the device without which each was made."""
        self._unsheltered: set[str] = set()
        """Devices without which no refuge could be loaded, or had room."""
        nodes = {node for _, node in serving.names} if serving else set()
        for order in held:
            placement = PlanRollout(order, verdict=RIGHT)
            without = sorted(nodes.difference(placement.nodes))
            if serving is None or order.version != serving.version:
                continue
            if _is_refuge(placement, nodes):
                self._shelter(placement, without)
            elif lost := [node for node in without if node not in self]:
                self._kept[lost[0]] = placement

    def __contains__(self, lost: str) -> bool:
        """Whether the loss of that device is covered, or cannot be."""
        return lost in self._unavailable or any(
            lost not in placement.nodes for placement in self._kept.values()
        )

    def __iter__(self) -> Iterator[PlanRollout]:
        """All of them; those that give way last, first."""
        yield from self._kept.values()
        yield from self._refuges.values()

    def __len__(self) -> int:
        """The number of plans that are no refuges."""
        return len(self._kept)

    def shelters(self, lost: str) -> bool:
        """Whether the loss of that device is covered by any plan, or no refuge can cover it."""
        return lost in self._unsheltered or any(lost not in placement.nodes for placement in self)

    def add_refuge(self, lost: str, placement: PlanRollout) -> None:
        self._refuges[lost] = placement

    def _shelter(self, refuge: PlanRollout, without: Iterable[str]) -> None:
        """Keep a refuge that was made by another leader, or for a plan before, if it covers a loss that no plan covers."""
        lost = [node for node in without if not self.shelters(node)]
        if lost:
            self._refuges[lost[0]] = refuge

    def are_complete(self, serving: PlanRollout, world: LeaderView) -> bool:
        """Whether a plan that is no refuge is ready for the loss of each device that serves."""
        ready = [placement for placement in self._kept.values() if placement.is_ready(world)]
        return all(any(node not in placement.nodes for placement in ready) for node in serving.nodes)

    def drop_refuges(self) -> None:
        """Do without refuges, as other plans cover all losses that are to be covered."""
        self._refuges.clear()

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
            without = [node for node in sorted(serving.nodes) if node not in placement.nodes]
            lost = [node for node in without if node not in self]
            if _is_refuge(placement, serving.nodes):
                self._shelter(placement, without)
            elif lost:
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
        """Give up plans that cannot run, or that a later plan of another leader has overtaken. Where only a device of
        theirs is gone, others may be made."""

        def is_over(placement: PlanRollout) -> bool:
            return not placement.can_run(world) or placement.is_overtaken(world)

        here = {*world.nodes}
        for placement in [one for one in self if not here.issuperset(one.nodes)]:
            self._remove(placement)
        for lost in [lost for lost, placement in self._refuges.items() if is_over(placement)]:
            self._drop_refuge(lost)
        for lost in [lost for lost, placement in self._kept.items() if is_over(placement)]:
            self._drop(lost)

    def drop(self) -> None:
        """Do without the newest plan, refuges first, until another plan serves."""
        if self._refuges:
            self._drop_refuge(next(reversed(self._refuges)))
        else:
            self._drop(next(reversed(self._kept)))

    def _drop_refuge(self, lost: str) -> None:
        del self._refuges[lost]
        self._unsheltered.add(lost)

    def _drop(self, lost: str) -> None:
        del self._kept[lost]
        self._borrowed.discard(lost)
        self._unavailable.add(lost)

    def refuse(self, placement: PlanRollout) -> None:
        """Drop a plan that did not pass its trial; another one may be made."""
        self._unsheltered.update(lost for lost, refuge in self._refuges.items() if refuge is placement)
        self._remove(placement)

    def _remove(self, placement: PlanRollout) -> None:
        """Forget a plan; another one may be made for the same loss."""
        self._refuges = {lost: one for lost, one in self._refuges.items() if one is not placement}
        self._kept = {lost: one for lost, one in self._kept.items() if one is not placement}
        self._borrowed &= self._kept.keys()

    def clear(self) -> None:
        """Forget all contingency plans."""
        self._kept, self._unavailable, self._borrowed = {}, set(), set()
        self._refuges, self._unsheltered = {}, set()

    def best(self, world: LeaderView, *, waiting: bool) -> PlanRollout | None:
        """The plan to serve after a loss, now or soon; None if there is none. Of those that are ready it is the quickest;
        of others a refuge, which is loaded soonest, and then the quickest. Refuges are only for requests that are
        `waiting`: others are answered by a plan that does without its devices a little later."""

        def rank(placement: PlanRollout) -> tuple[bool, bool, float, Epoch]:
            loading = not placement.is_ready(world)
            slow_to_load = loading and placement not in refuges
            return loading, slow_to_load, placement.order.latency_s, placement.epoch

        refuges = [*self._refuges.values()]
        usable = self if waiting else self._kept.values()
        fine = [placement for placement in usable if placement.can_run(world) and not placement.loses(world)]
        return min(fine, key=rank, default=None)


def _is_refuge(placement: PlanRollout, serving: Collection[str]) -> bool:
    """Whether the plan runs on one device although two or more of those that serve are left after a loss."""
    return len(placement.nodes) == 1 and len(serving) > 2


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
