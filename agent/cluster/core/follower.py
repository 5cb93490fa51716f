"""Follower: what a member does with its leader's orders. Rules, without I/O.

A member loads plans, switches between them only forwards, and reports to the leader what it holds. The core
passes on only orders of the leader that this device itself follows. The follower refuses orders of a term
smaller than the largest seen, so that a leader that was cut off can change nothing, and orders for plans of a
later term than the order's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from edgepart.agent.cluster.state.bindings import is_variant, parent_of
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.events import (
    DropPlan,
    Effect,
    LoadPlan,
    ModelsStored,
    PersistPlan,
    PlanLoaded,
    SequencesContinued,
    StoreModel,
    SwitchOff,
    SwitchTo,
    WeightsArrived,
)
from edgepart.agent.wire.control import (
    FAILED,
    LOADING,
    READY,
    Activate,
    FetchModel,
    Holding,
    Prepare,
    Report,
    Retire,
    Version,
)
from edgepart.agent.wire.inference import NO_EPOCH, Epoch

SHARED_S = 5.0
"""How long plans are kept that were ready to take over and are older than the one that serves now, in seconds. The leader
orders those that can still take over under a later epoch at once, and these share their sessions. With less time they
would be loaded again; with more, memory is free later."""

Order = Prepare | Activate | Retire | FetchModel


@dataclass(slots=True)
class KeptPlan:
    order: Prepare
    state: str
    error: str = ""
    drop_at: float = math.inf
    here_bytes: int = 0
    needed_bytes: int = 0
    """As in Holding."""


class Follower:
    """The plans that this device holds, by deployment and epoch."""

    def __init__(self, boot: str, *, linger_s: float, kept: Iterable[Prepare] = ()) -> None:
        """`kept`: the orders of plans that served before this start, as they are on disk."""
        self.kept = {order.deployment: order for order in kept}
        """The order of the plan that served last here, by deployment; it is on disk, or will be soon."""
        self.models: tuple[str, ...] = ()
        self.continued: Mapping[tuple[str, Epoch], int] = {}
        """The plans on which sequences were continued here in the last seconds, as in SequencesContinued."""
        self.changed = True
        """Whether something was not reported yet; the sender of the report resets it."""
        self._boot = boot
        self._linger_s = linger_s
        self._held: dict[tuple[str, Epoch], KeptPlan] = {}
        self._active: dict[str, Epoch] = {}
        self._latest: dict[str, Epoch] = {}
        """The last epoch that served, by deployment, even if none serves now; kept as long as plans of that
        name are held."""

    def active(self, deployment: str) -> Prepare | None:
        """The order that brought the plan that serves here now; None if none does."""
        held = self._held.get((deployment, self._active.get(deployment, NO_EPOCH)))
        return held.order if held else None

    def variants(self) -> list[Prepare]:
        """The orders that brought the plans of variants that serve here now."""
        found = [self.active(name) for name in sorted(self._active) if is_variant(name)]
        return [order for order in found if order is not None]

    def serving_orders(self, deployment: str) -> list[Prepare]:
        """The orders that brought the plans by which a deployment and its variants serve here now."""
        first = self.active(deployment)
        variants = [order for order in self.variants() if parent_of(order.deployment) == deployment]
        return variants if first is None else [first, *variants]

    def spares(self, deployment: str) -> list[Prepare]:
        """The orders that brought loaded or loading plans later than the one that serves."""
        serving = self._active.get(deployment, NO_EPOCH)
        later = [
            (epoch, held)
            for (name, epoch), held in self._held.items()
            if name == deployment and epoch > serving and held.state != FAILED
        ]
        return [held.order for _, held in sorted(later, key=lambda item: item[0])]

    def report(self, versions: tuple[tuple[str, Version], ...]) -> Report:
        holdings = [
            Holding(
                name,
                epoch,
                held.state,
                self._active.get(name) == epoch,
                held.error,
                self.continued.get((name, epoch), 0),
                held.here_bytes,
                held.needed_bytes,
            )
            for (name, epoch), held in sorted(self._held.items(), key=lambda item: item[0])
        ]
        return Report(self._boot, tuple(holdings), self.models, versions)

    def obey(self, order: Order, seen_term: int, deployments: DeploymentMap, now: float) -> list[Effect]:
        """Obey an order, if its leader may give it."""
        self.changed = True
        if order.term < seen_term or (not isinstance(order, FetchModel) and order.epoch.term > order.term):
            return []
        match order:
            case Prepare():
                return list(self._prepare(order, deployments))
            case Activate(_, name, epoch):
                return list(self._activate(name, epoch, now))
            case Retire(_, name, epoch):
                return list(self._retire(name, epoch, now))
            case FetchModel(_, model, model_bytes, sources):
                return [] if model in self.models else [StoreModel(model, model_bytes, sources)]

    def note(self, event: PlanLoaded | ModelsStored | SequencesContinued | WeightsArrived) -> None:
        """Note what has changed on this device, for the next report."""
        match event:
            case PlanLoaded(name, epoch, error):
                held = self._held.get((name, epoch))
                if held is None or held.state != LOADING:
                    return
                held.state, held.error = (FAILED, error) if error else (READY, "")
            case WeightsArrived(name, epoch, here_bytes, needed_bytes):
                held = self._held.get((name, epoch))
                if held is None:
                    return
                held.here_bytes, held.needed_bytes = here_bytes, needed_bytes
            case ModelsStored(models):
                self.models = tuple(sorted(models))
            case SequencesContinued(plans):
                self.continued = plans
        self.changed = True

    def deployments_changed(self, deployments: DeploymentMap) -> list[Effect]:
        """Drop plans of deployments that are gone or set aside."""
        gone = [key for key in self._held if deployments.usable(parent_of(key[0])) is None]
        effects = [effect for key in gone for effect in self._drop(*key)]
        for name in [name for name in self.kept if deployments.usable(name) is None]:
            del self.kept[name]
            effects.append(PersistPlan(name, None))
        return effects

    def wake_at(self) -> float:
        return min((held.drop_at for held in self._held.values()), default=math.inf)

    def wake(self, now: float) -> list[Effect]:
        due = [key for key, held in self._held.items() if held.drop_at <= now]
        return [effect for key in due for effect in self._drop(*key)]

    def _prepare(self, order: Prepare, deployments: DeploymentMap) -> Iterator[Effect]:
        key = (order.deployment, order.epoch)
        old = order.epoch < self._active.get(order.deployment, NO_EPOCH)
        if key in self._held or old or deployments.usable(parent_of(order.deployment)) is None:
            return
        self._held[key] = KeptPlan(order, LOADING)
        yield LoadPlan(
            order.deployment,
            order.version,
            order.epoch,
            order.plan,
            order.names,
            order.model,
            order.sources,
            order.weighed,
            order.number,
            order.spare,
        )

    def _activate(self, name: str, epoch: Epoch, now: float) -> Iterator[Effect]:
        held = self._held.get((name, epoch))
        before = self._active.get(name, NO_EPOCH)
        outdated = epoch <= before or epoch < self._latest.get(name, NO_EPOCH)
        if held is None or held.state != READY or outdated:
            return
        self._active[name] = self._latest[name] = epoch
        held.drop_at = math.inf
        yield SwitchTo(name, epoch)
        if not is_variant(name) and not _brings_the_same(held.order, self.kept.get(name)):
            self.kept[name] = held.order
            yield PersistPlan(name, held.order)
        for other in [e for n, e in self._held if n == name and e < epoch]:
            if other == before:
                self._held[name, other].drop_at = now + self._linger_s
            elif self._held[name, other].state == READY and self._held[name, other].drop_at == math.inf:
                self._held[name, other].drop_at = now + SHARED_S
            else:
                yield from self._drop(name, other)

    def _retire(self, name: str, epoch: Epoch, now: float) -> Iterator[Effect]:
        """Drop a plan, unless it serves. A variant's serving plan stops serving, and is dropped when its
        requests have had time to end."""
        if not is_variant(name):
            if self._active.get(name) != epoch:
                yield from self._drop(name, epoch)
            return
        held = self._held.get((name, epoch))
        if held is None or held.drop_at < math.inf:
            return
        if self._active.get(name) != epoch:
            yield from self._drop(name, epoch)
            return
        del self._active[name]
        held.drop_at = now + self._linger_s
        yield SwitchOff(name)

    def _drop(self, name: str, epoch: Epoch) -> Iterator[Effect]:
        if self._held.pop((name, epoch), None) is not None:
            self.changed = True
            if self._active.get(name) == epoch:
                del self._active[name]
            if all(other != name for other, _ in self._held):
                self._latest.pop(name, None)
            yield DropPlan(name, epoch)


def _brings_the_same(order: Prepare, kept: Prepare | None) -> bool:
    """Whether both orders bring the same plan of the same version to the same devices, whoever gave them."""
    if kept is None:
        return False
    return (order.version, order.plan, order.names) == (kept.version, kept.plan, kept.names)
