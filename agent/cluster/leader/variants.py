"""Variants: which bindings of one deployment have plans. Rules, without I/O, for the leader.

Gateways say again and again which shapes their requests have (`Want`). From that alone the leader decides
which variants are made and which are given up, so that a new leader need not be told anything. One new
variant is made at a time, however many are wanted.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from edgepart.agent.cluster.leader.replan_policy import PlanningTiming
from edgepart.agent.cluster.leader.rollout import DeploymentRollout
from edgepart.agent.cluster.leader.rollout_state import LeaderView
from edgepart.agent.cluster.state.bindings import Shapes, format_shapes, variant_name
from edgepart.agent.cluster.state.events import Effect, SendMessage
from edgepart.agent.wire import control
from edgepart.agent.wire.control import Deployment, Prepare, Standing, Want
from edgepart.agent.wire.inference import NO_EPOCH, Epoch
from edgepart.planner import errors

MAX_WISHES = 32
"""The most bindings of one deployment that may wait for their turn, over all gateways; a gateway has 16 at
most."""
MAX_REFUSED = 64
"""The most bindings without a plan that are remembered; beyond that, the one known for longest is
forgotten."""


@dataclass(frozen=True, slots=True)
class VariantTiming:
    """The waits of one deployment's variants."""

    wish_s: float = 5.0
    """A wish that nobody repeats for this long is forgotten; gateways repeat theirs every second. With a
    longer wait the leader plans for clients that have gone; with a shorter one a gateway that stalls loses
    its place in the queue."""
    patience_s: float = 60.0
    """A new variant that does not serve after this time makes room for the next one that is wanted. Requests
    are given up after the same time (`--timeout`, 60 s)."""
    least_s: float = 1.0
    """Each variant serves for this long before it can be given up for another, because its requests have to
    be started. If all places are taken, or if the last wanted binding had no plan, the next variant is begun
    after a rest as long as making the last one took. So a new shape in every request costs at most half of
    the leader's time."""
    most_rest_s: float = 10.0
    """The longest such rest. A variant that took longer may only have waited for its turn, or for a
    device."""
    hold_s: float = 10.0
    """A variant's first plan, a quick plan, is compared with a thorough one after this time. A longer wait
    spares work for shapes that do not last; with a shorter one, shapes that last are served well sooner."""
    refused_s: float = 30.0
    """A binding that the cluster could not plan is tried again after this time; a binding that the model
    cannot take is never tried again."""


@dataclass(slots=True)
class VariantState:
    """A binding that has a plan, or gets one."""

    cutover: DeploymentRollout
    made_at: float
    used_at: float
    """The time when a gateway last wanted the binding."""
    served_at: float = math.inf
    """The time when the variant began to serve; inf if it does not serve yet."""


@dataclass(slots=True)
class _Wish:
    shapes: Shapes
    at: float


@dataclass(frozen=True, slots=True)
class _Refusal:
    standing: Standing
    until: float


class Variants:
    """The variants of one deployment, of its present version and of the one before."""

    def __init__(
        self,
        parent: Deployment,
        held: Iterable[Prepare],
        now: float,
        planning: PlanningTiming,
        timing: VariantTiming | None = None,
    ) -> None:
        """`held`: orders of variants that this device serves already; these variants go on."""
        self._parent = parent
        self._timing = timing or VariantTiming()
        self._planning = replace(planning, hold_s=max(planning.hold_s, self._timing.hold_s))
        self._wishes: dict[str, _Wish] = {}
        self._refused: OrderedDict[str, _Refusal] = OrderedDict()
        self._rested_at = -math.inf
        """The time from which on the next variant may be begun."""
        self.kept: dict[str, VariantState] = {}
        for order in held:
            if order.version == parent.version and len(self.kept) < parent.options.bindings:
                # The order's shapes include the user's, so that `_entry` would give another name.
                entry = replace(self._entry(order.shapes), name=order.deployment)
                cutover = DeploymentRollout(entry, order, self._planning)
                self.kept[order.deployment] = VariantState(cutover, now, now, now)

    def _entry(self, shapes: Shapes) -> Deployment:
        name = variant_name(self._parent.name, self._parent.version, shapes)
        options = replace(self._parent.options, shapes=self._parent.options.shapes | shapes)
        return replace(self._parent, name=name, options=options)

    def wish(self, want: Want, term: int, now: float) -> Standing | None:
        """Take a gateway's wish for a binding. Returns the refusal to send to it if it waits in vain, else
        None."""
        if want.version != self._parent.version:
            return None
        entry = self._entry(want.shapes)
        if variant := self.kept.get(entry.name):
            variant.used_at = now
            return None
        refusal = self._refused.get(entry.name)
        if refusal is not None and now < refusal.until:
            return replace(refusal.standing, term=term)
        if len(self._wishes) >= MAX_WISHES and entry.name not in self._wishes:
            why = f"{MAX_WISHES} other new shapes wait for a plan already, and one is planned at a time"
            return _make_refusal(entry, term, why, "Unavailable")
        self._wishes.setdefault(entry.name, _Wish(want.shapes, now)).at = now
        return None

    def step(
        self, parent: DeploymentRollout, world: LeaderView, epochs: Iterator[Epoch], now: float
    ) -> list[Effect]:
        """Give the orders that are missing."""
        self._follow(parent)
        effects: list[Effect] = []
        for name in list(self.kept):
            effects += self._step(name, world, epochs, now)
        self._wishes = {name: w for name, w in self._wishes.items() if now < w.at + self._timing.wish_s}
        new = self._admit(now) if parent.plans.serving else None
        if new is not None:
            effects += self._step(new, world, epochs, now)
        return effects

    def _follow(self, parent: DeploymentRollout) -> None:
        """Drop variants of an older version that do not serve yet; the others serve as long as that version's
        own plan does."""
        if parent.plans.deployment.version != self._parent.version:
            self._wishes, self._refused = {}, OrderedDict()
        self._parent = parent.plans.deployment
        for name, variant in list(self.kept.items()):
            if variant.cutover.plans.deployment.version != self._parent.version and (
                parent.plans.serving or not variant.cutover.plans.serving
            ):
                del self.kept[name]

    def _step(self, name: str, world: LeaderView, epochs: Iterator[Epoch], now: float) -> list[Effect]:
        variant = self.kept[name]
        effects = variant.cutover.step(world, epochs, now)
        if variant.cutover.plans.serving:
            if variant.served_at == math.inf:
                variant.served_at = now
                full = len(self.kept) >= self._parent.options.bindings
                self._rested_at = now + self._rest_s(variant, now) if full else -math.inf
            return effects
        if (why := self._hopeless(variant, now)) is None:
            return effects
        del self.kept[name]
        self._rested_at = now + self._rest_s(variant, now)
        standing = _make_refusal(variant.cutover.plans.deployment, world.term, *why)
        final = issubclass(getattr(errors, why[1]), errors.UserError | errors.InternalError)
        until = math.inf if final else now + self._timing.refused_s
        self._refused[name] = _Refusal(standing, until)
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
        return effects + [SendMessage(node, standing) for node in world.nodes]

    def _rest_s(self, variant: VariantState, now: float) -> float:
        return min(now - variant.made_at, self._timing.most_rest_s)

    def _hopeless(self, variant: VariantState, now: float) -> tuple[str, str] | None:
        """The error, and its kind, why nobody should wait for this variant any longer; None if there is
        hope."""
        if refusal := variant.cutover.plans.refusal:
            return refusal[0], refusal[1] or "Unavailable"
        if variant.served_at == math.inf and now >= variant.made_at + self._timing.patience_s:
            standing = variant.cutover.standing
            state = f": {standing.error or standing.text}" if standing else ""
            return f"it was not ready after {self._timing.patience_s:.0f} s{state}", "Unavailable"
        return None

    def _admit(self, now: float) -> str | None:
        """Begin the next variant, if there is room or if another can be given up for it. Returns its name, or
        None."""
        making = any(variant.served_at == math.inf for variant in self.kept.values())
        most = self._parent.options.bindings
        if making or not self._wishes or most <= 0 or now < self._rested_at:
            return None
        if len(self.kept) >= most:
            old = [n for n, v in self.kept.items() if now >= v.served_at + self._timing.least_s]
            if not old:
                return None
            del self.kept[min(old, key=lambda n: (self.kept[n].used_at, self.kept[n].served_at))]
        name = next(iter(self._wishes))
        entry = self._entry(self._wishes.pop(name).shapes)
        self.kept[name] = VariantState(DeploymentRollout(entry, None, self._planning, awaited=True), now, now)
        return name

    def wake_at(self, now: float) -> float:
        """The next time when something may become due without an event; inf if nothing may."""
        times = [variant.cutover.wake_at(now) for variant in self.kept.values()]
        times += [v.made_at + self._timing.patience_s for v in self.kept.values() if v.served_at == math.inf]
        if self._wishes:
            times.append(self._rested_at)
            times += [v.served_at + self._timing.least_s for v in self.kept.values()]
        return min((time for time in times if time > now), default=math.inf)


def _make_refusal(entry: Deployment, term: int, error: str, kind: str) -> Standing:
    text = f"no plan for {format_shapes(entry.options.shapes)}"
    return Standing(
        term=term,
        deployment=entry.name,
        version=entry.version,
        state=control.REFUSED,
        text=text,
        acknowledged=False,
        epoch=NO_EPOCH,
        devices=(),
        error=error,
        error_kind=kind,
    )
