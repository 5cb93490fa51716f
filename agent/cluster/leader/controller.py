"""Controller: the leader's decisions. Deployments and members go in, orders come out. Rules, without I/O.
Every agent has this code, and uses it only while the agent leads. rollout.py takes one deployment from plan
to plan, and variants.py does so for the deployment's other bindings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from edgepart.agent.cluster.leader.contingency import LastingCuts
from edgepart.agent.cluster.leader.replan_policy import PlanningTiming
from edgepart.agent.cluster.leader.rollout import DeploymentRollout
from edgepart.agent.cluster.leader.rollout_state import RESEND_S, LeaderView, epochs
from edgepart.agent.cluster.leader.variants import Variants
from edgepart.agent.cluster.state.bindings import is_variant, parent_of
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.events import (
    Effect,
    PlanComputed,
    PlanFailed,
    PlanTried,
    RoundingMeasured,
    SendMessage,
)
from edgepart.agent.wire.control import Latency, Prepare, Retire, Standing, Want
from edgepart.agent.wire.inference import Epoch


class Controller:
    """The decisions of one leadership."""

    def __init__(
        self,
        term: int,
        adopt: Callable[[str], Prepare | None],
        timing: PlanningTiming | None = None,
        variants: Callable[[], Iterable[Prepare]] = tuple,
        spares: Callable[[str], Iterable[Prepare]] = lambda name: (),
        kept: Callable[[str], Prepare | None] = lambda name: None,
    ) -> None:
        """`adopt` returns the order of the plan by which this device serves a deployment already; that plan
        goes on if it can still run. `variants` returns the orders of all variants that this device serves.
        `spares` returns the orders of a deployment's plans that this device has ready beside the serving
        one. `kept` returns the order of the plan by which this device served a deployment last, also before its
        agent was started."""
        self.term = term
        self._adopt = adopt
        self._held_variants = variants
        self._held_spares = spares
        self._kept = kept
        self._timing = timing or PlanningTiming()
        self._epochs = epochs(term)
        self._cutovers: dict[str, DeploymentRollout] = {}
        self._variants: dict[str, Variants] = {}
        self._swept: dict[tuple[str, str, Epoch], float] = {}
        self._apart = LastingCuts()

    def step(self, deployments: DeploymentMap, world: LeaderView, now: float) -> list[Effect]:
        """Look at all deployments and give the orders that are missing."""
        world = replace(world, apart=self._apart.look(world.cluster.broken_links, now))
        living = {entry.name: entry for entry in deployments.in_use()}
        for name in self._cutovers.keys() - living.keys():
            del self._cutovers[name], self._variants[name]
        effects: list[Effect] = []
        for name, entry in living.items():
            if name not in self._cutovers:
                self._cutovers[name] = DeploymentRollout(
                    entry,
                    self._adopt(name),
                    self._timing,
                    held=self._held_spares(name),
                    kept=self._kept(name),
                )
                held = [order for order in self._held_variants() if parent_of(order.deployment) == name]
                self._variants[name] = Variants(entry, held, now, self._timing)
            cutover = self._cutovers[name]
            cutover.plans.deployment = entry
            world = replace(world, orders=tuple(self._orders()), spares=tuple(self._spares()))
            effects += cutover.step(world, self._epochs, now)
            world = replace(world, orders=tuple(self._orders()))
            effects += self._variants[name].step(cutover, world, self._epochs, now)
        return effects + list(self._sweep(world, now))

    @property
    def last_epoch(self) -> Epoch:
        """The latest epoch that this leadership has given to a plan."""
        return self._epochs.last

    @property
    def orders(self) -> list[Prepare]:
        """The orders of all plans that serve or are on their way."""
        return list(self._orders())

    def why_not(self, deployment: str) -> str:
        """Why a deployment has no plan for what is wanted now; "" if it has one, or if that is not known
        yet."""
        cutover = self._cutovers.get(deployment)
        error = cutover.plans.planning.error if cutover else None
        return error.error if error else ""

    def _orders(self) -> Iterator[Prepare]:
        variants = [v.cutover for kept in self._variants.values() for v in kept.kept.values()]
        for cutover in (*self._cutovers.values(), *variants):
            yield from (p.order for p in (cutover.plans.active, cutover.plans.next) if p is not None)

    def _spares(self) -> Iterator[Prepare]:
        for cutover in self._cutovers.values():
            yield from (placement.order for placement in cutover.plans.spares)

    def _sweep(self, world: LeaderView, now: float) -> Iterator[Effect]:
        """Retire variants that members hold and no leader keeps: they were given up here, or were made by a
        leader that is gone."""
        sent, self._swept = self._swept, {}
        for node, report in world.reports.items():
            for holding in report.holdings:
                name, key = holding.deployment, (node, holding.deployment, holding.epoch)
                if not is_variant(name) or self._cutover_of(name) is not None:
                    continue
                self._swept[key] = sent.get(key, -math.inf)
                if now >= self._swept[key] + RESEND_S:
                    self._swept[key] = now
                    yield SendMessage(node, Retire(world.term, name, holding.epoch))

    def _cutover_of(self, name: str) -> DeploymentRollout | None:
        """The rollout of a deployment or a variant; None if there is none."""
        if not is_variant(name):
            return self._cutovers.get(name)
        variants = self._variants.get(parent_of(name))
        variant = variants.kept.get(name) if variants else None
        return variant.cutover if variant else None

    def wish(self, node: str, want: Want, now: float) -> list[Effect]:
        """Take a gateway's wish for a plan: the gateway holds requests of these shapes."""
        variants = self._variants.get(want.deployment)
        told = variants.wish(want, self.term, now) if variants else None
        return [] if told is None else [SendMessage(node, told)]

    def note_latency(self, latency: Latency, gateway: str = "") -> bool:
        """Note the latency of requests through a gateway on a plan; return whether that is news."""
        cutover = self._cutover_of(latency.deployment)
        return cutover is not None and cutover.note_latency(latency, gateway)

    def rounded(self, found: RoundingMeasured) -> None:
        """Note how far the answers of a plan are off."""
        if cutover := self._cutover_of(found.deployment):
            cutover.rounding = found

    def take_verdict(self, found: PlanTried, nodes: Iterable[str]) -> list[Effect]:
        """Take the verdict on a plan that was tried."""
        cutover = self._cutover_of(found.deployment)
        return cutover.take_verdict(found, self.term, nodes) if cutover else []

    def count_refused(self) -> Mapping[str, int]:
        """The number of plans that were tried and given up, by deployment."""
        counts = {name: len(cutover.plans.refused) for name, cutover in self._cutovers.items()}
        return {name: count for name, count in counts.items() if count}

    def answered(self, result: PlanComputed | PlanFailed, now: float) -> None:
        """Take the answer to ComputePlan; an answer for a deployment that is gone is dropped."""
        if cutover := self._cutover_of(result.key.deployment):
            cutover.answered(result, now)

    def retell(self, nodes: Iterable[str]) -> list[Effect]:
        """Tell how all deployments stand, to members that may not know."""
        return [SendMessage(node, standing) for node in nodes for standing in self.standings()]

    def standings(self) -> list[Standing]:
        return [c.standing for c in self._cutovers.values() if c.standing is not None]

    def wake_at(self, now: float) -> float:
        times = [cutover.wake_at(now) for cutover in self._cutovers.values()]
        times += [variants.wake_at(now) for variants in self._variants.values()]
        times += [at + RESEND_S for at in self._swept.values() if at + RESEND_S > now]
        return min([*times, self._apart.wake_at(now)])
