"""Rollout: takes one deployment from plan to plan without a gap (make before break), on the leader. Rules,
without I/O.

The wanted state (an active plan, perhaps a next one) is compared with the members' reports, and the missing
orders are given. So lost orders, restarts and new leaders need no cases of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256

from edgepart.agent.cluster.leader import memory_budget, status
from edgepart.agent.cluster.leader.contingency import ContingencyPlans
from edgepart.agent.cluster.leader.drift_policy import DriftPolicy
from edgepart.agent.cluster.leader.kept_plan import SERVED_BEFORE, KeptOnDisk
from edgepart.agent.cluster.leader.link_rates import slowest_bytes_per_s
from edgepart.agent.cluster.leader.remembered_plans import RememberedPlan, RememberedPlans
from edgepart.agent.cluster.leader.replan_policy import (
    PlanningTiming,
    ReplanPolicy,
    differs_only_in_measurements,
    make_compute_plan,
    select_members,
)
from edgepart.agent.cluster.leader.rollout_state import RESEND_S, LeaderView, PlanRollout
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.cluster.state.cards import parse_card
from edgepart.agent.cluster.state.events import (
    RIGHT,
    SUSPECT,
    UNTRIED,
    WRONG,
    ComputePlan,
    Effect,
    PlanComputed,
    PlanFailed,
    PlanKey,
    PlanTried,
    RoundingMeasured,
    SendMessage,
    TryPlan,
)
from edgepart.agent.cluster.state.judging import (
    PlanJudge,
    compute_slowdown,
    correct_prediction_s,
    predict_busiest_s,
)
from edgepart.agent.wire.control import (
    FAILED,
    READY,
    UNLOADABLE,
    Activate,
    Deployment,
    FetchModel,
    Holding,
    Latency,
    Prepare,
    Retire,
    Standing,
    Version,
)
from edgepart.agent.wire.inference import NO_EPOCH, Epoch
from edgepart.planner.plans.plan import plan_from_bytes

MAX_EVERYWHERE_BYTES = 256_000_000
"""Models up to this size are stored by every member, so that a new leader, or a member that is cut off, need
not fetch them first."""


HASTY = "found by a quick search, as devices have come or gone; a thorough one follows"
"""What is said of the plan that serves until the thorough search is over."""
MOST_NOTE = 2000
"""The longest note about a deployment, in characters."""
REREADING_S = 30.0
"""The longest pause of a text whose plan changes that a move takes into account, in seconds: all of the text is read again.
While texts are continued a move waits for as long as it takes to gain that pause; with a higher limit long texts pause less
often, and better plans serve later."""


class DeploymentRollout:
    """The active and the next plan of one deployment."""

    def __init__(
        self,
        deployment: Deployment,
        adopted: Prepare | None,
        timing: PlanningTiming,
        *,
        awaited: bool = False,
        held: Iterable[Prepare] = (),
        kept: Prepare | None = None,
    ) -> None:
        """`adopted`: the order of the plan that serves already. `awaited`: whether requests wait for the
        first plan, which is then a quick plan. `held`: the orders of plans that this device has ready beside
        `adopted`. `kept`: the order of the plan that served last, which counts if nothing is adopted."""
        self.deployment = deployment
        self.active = PlanRollout(adopted, verdict=RIGHT) if adopted else None
        self.next: PlanRollout | None = None
        self.spares = ContingencyPlans(adopted, held)
        self.kept = KeptOnDisk(None if adopted else kept)
        self.remembered = RememberedPlans()
        self.planning = ReplanPolicy(timing)
        self._most_spares = math.inf if timing.spares is None else timing.spares
        self.refining = DriftPolicy(timing.refining)
        self.standing: Standing | None = None
        self.judge = PlanJudge()
        self.note = ""
        """Why the serving plan is not the one that was first predicted to be the best."""
        self.refused: list[tuple[str, str]] = []
        """(structure, reason) of plans that were tried and gave wrong answers, as in PlanKey."""
        self._refused_for = deployment.version
        self._tries = timing.tries
        self._trying: Epoch | None = None
        self.rounding: RoundingMeasured | None = None
        """The last measurement of how far answers are off."""
        self._disappointed: tuple[PlanKey, str] | None = None
        self._fetch_at: dict[tuple[str, str], float] = {}
        """The time when a member was last told to store a model, by node and model."""
        self._taken_over: Version | None = None
        """The last version of the deployment that all members have taken over."""
        self._trouble = ""
        self._requests_wait = awaited or self.kept.order is not None
        """Whether a plan that served cannot run any more, so that requests wait for the next one."""
        self._is_new = awaited
        """Whether requests waited for the first plan and no plan was lost since: it is a variant that may not last."""

    @property
    def serving(self) -> bool:
        """Whether a plan of the wanted version is active."""
        return self.active is not None and self.active.order.version == self.deployment.version

    @property
    def refusal(self) -> tuple[str, str] | None:
        """The error and its kind if nothing serves and another try on these devices would be in vain; else
        None."""
        if self.active is not None or self.next is not None:
            return None
        if self.planning.error is not None and self.planning.error.final:
            return self.planning.error.error, self.planning.error.kind
        if self._trouble and not self.planning.key_devices():
            return self._trouble, ""
        return None

    def step(self, world: LeaderView, new_epoch: Iterator[Epoch], now: float) -> list[Effect]:
        """Give the orders that are missing."""
        if self.refused and self._refused_for != self.deployment.version:
            self.refused = []  # The same name now has another model or other options.
        key = self._key(world, now)
        world = world.restrict_to([node for node, _, _ in key.devices])
        effects: list[Effect] = list(self._abandon(world, now))
        self._step_in(world, new_epoch)
        effects += self._promote(world, new_epoch, now)
        effects += self._store_model(world, now)
        effects += self._request_plan(world, new_epoch, now)
        self._make_room(world)
        effects += self._retire(world)
        for placement in self._placements():
            effects += self._give_orders(placement, world, now)
        effects += self._try_plan(world)
        effects += self._tell_standing(world)
        return effects

    def answered(self, result: PlanComputed | PlanFailed, now: float) -> None:
        """Take the answer to ComputePlan."""
        self.planning.answered(result, now)
        if isinstance(result, PlanComputed) and self.planning.is_wanted(result.key):
            self.judge.single_s = result.single_s

    def take_verdict(self, found: PlanTried, term: int, nodes: Iterable[str]) -> list[Effect]:
        """Take the verdict on a plan that was tried. A plan that gave wrong answers is given up and never
        made again."""
        if self._trying == found.epoch:
            self._trying = None
        placement = next((one for one in self._placements() if one.epoch == found.epoch), None)
        if placement is None:
            return []
        doubtful = found.verdict == SUSPECT and bool(
            self.refused
        )  # If two plans fail, the inputs are to blame.
        placement.verdict = UNTRIED if doubtful else found.verdict
        if placement.verdict == UNTRIED:
            said = f"its plan was not tried before it served: {found.text}"
            placement.note = "; ".join(filter(None, (placement.note, said)))
            if placement is self.active:
                self.note = placement.note
        return (
            self._refuse(placement, found.text, term, nodes) if placement.verdict in (WRONG, SUSPECT) else []
        )

    def _refuse(self, placement: PlanRollout, why: str, term: int, nodes: Iterable[str]) -> list[Effect]:
        devices = ", ".join(name for name, _ in placement.order.names)
        self.refused.append((placement.structure, f"a plan on {devices} is not served: {why}"))
        self._refused_for = self.deployment.version
        self.planning.refuse(placement.order.plan)
        if placement is self.active:
            self.active, self._requests_wait = None, True
            return []
        if placement is self.next:
            self.next = None
        self.spares.refuse(placement)
        order = Retire(term, self.deployment.name, placement.epoch)
        return [SendMessage(node, order) for node in nodes]

    def note_latency(self, latency: Latency, gateway: str = "") -> bool:
        """Note the latency of requests through a gateway on a plan of this deployment; return whether that is
        news."""
        return self.judge.hears(latency, gateway)

    def wake_at(self, now: float) -> float:
        resend = [at + RESEND_S for placement in self._placements() for at in placement.sent_at.values()]
        fetch = [at + RESEND_S for at in self._fetch_at.values()]
        later = min((at for at in resend + fetch if at > now), default=math.inf)
        return min(later, self.planning.wake_at(now), self.refining.wake_at(now), self.kept.wake_at(now))

    def _placements(self) -> list[PlanRollout]:
        """All plans of this deployment, the active one first."""
        return [p for p in (self.active, self.next, *self.spares) if p is not None]

    # What can no longer run

    def _key(self, world: LeaderView, now: float, without: str = "") -> PlanKey:
        """The key of the plan that is wanted."""
        key = self.planning.key(world.cluster, self.deployment, now, without=without)
        return replace(key, refused=tuple(self.refused))

    def _abandon(self, world: LeaderView, now: float) -> Iterator[Effect]:
        for placement in filter(None, (self.active, self.next)):
            for node in placement.nodes:
                holding = world.find_holding(node, self.deployment.name, placement.epoch)
                if holding is not None and holding.state == FAILED:
                    self._trouble = f"{placement.name_of(node)} could not load its part: {holding.error}"
                    if placement is self.next and placement.was_kept:
                        self.kept.refuse(self._trouble)  # The plan may be to blame, and not the device.
                    else:
                        self.planning.avoid(node, now)
        self.spares.give_up(world)
        if self.active is not None and not self.active.can_run(world):
            self.active, self._requests_wait, self._is_new = None, True, False
        if self.next is None:
            return
        outdated = self.next.order.version != self.deployment.version or self.next.is_overtaken(world)
        if outdated or not self.next.can_run(world) or self.next.loses(world):
            order = Retire(world.term, self.deployment.name, self.next.epoch)
            self.next = None
            yield from (SendMessage(node, order) for node in world.nodes)

    def _step_in(self, world: LeaderView, new_epoch: Iterator[Epoch]) -> None:
        """Let a contingency plan take over from a plan that has lost a device, or has a device that
        leaves."""
        if world.is_outranked(self.deployment.name):
            return
        lost = self.active is None and self._requests_wait
        if not lost and (self.next is not None or self.active is None or not self.active.loses(world)):
            return
        waiting = lost or (self.active is not None and self.active.is_cut(world))
        spare = self.spares.best(world, waiting=waiting)
        if spare is None or spare.order.version != self.deployment.version:
            return
        if spare.is_ready(world):
            if any(self.next is one for one in self.spares):
                self.next = None  # It was to take over, too.
            self._serve(spare, world, new_epoch)
        elif self.next is None:
            self.next = spare  # Less of it is missing than of any new plan.

    def _serve(self, placement: PlanRollout, world: LeaderView, new_epoch: Iterator[Epoch]) -> None:
        """Have new requests start on this plan. Other loaded plans may cover the next loss; they get a later
        epoch, because members drop plans of earlier epochs."""
        before = [one for one in (self.active, *self.spares) if one is not None and one is not placement]
        self.active, self._trouble, self._requests_wait = placement, "", False
        self.note = placement.note
        if self.next is not None and self.next.epoch <= placement.epoch:
            self.next = None
        version = placement.order.version
        usable = [
            one
            for one in before
            if one.order.version == version and one.can_run(world) and not one.loses(world)
        ]
        if is_variant(self.deployment.name):
            usable = []
        self.spares.serves(
            placement,
            [
                replace(one, order=replace(one.order, term=world.term, epoch=next(new_epoch)), sent_at={})
                for one in usable
            ],
        )

    def _promote(self, world: LeaderView, new_epoch: Iterator[Epoch], now: float) -> Iterator[Effect]:
        if self.next is None or not self.next.is_ready(world):
            return
        waiting = self._requests_wait or (self.active is not None and self.active.loses(world))
        if self._tries and not self.next.verdict and not waiting:
            return  # Users' requests must not try it, unless they would wait.
        if (
            self.serving
            and self.active is not None
            and not self.active.loses(world)
            and self._falls_short(self.next, world)
        ):
            self.planning.settle(self.active.order.plan)
            order = Retire(world.term, self.deployment.name, self.next.epoch)
            self.next = None
            yield from (SendMessage(node, order) for node in world.nodes)
            return
        if not waiting and self._waits_for_sequences(self.next, world, now):
            return
        self._serve(self.next, world, new_epoch)

    def _waits_for_sequences(self, placement: PlanRollout, world: LeaderView, now: float) -> bool:
        """Whether the plan, which is ready, should not serve yet: all steps of sequences that are continued on the serving
        plan would have to be made again, or their states sent to other devices. The more steps and the less it gains, the
        longer it waits for them to end."""
        serving = self.active
        if not self.serving or serving is None or placement.instead_of_s == math.inf:
            return False  # It was not made for the sake of speed.
        steps = world.continued(serving.order.deployment, serving.epoch)
        if not steps:
            return False
        placement.waits_since = min(placement.waits_since, now)
        gain = 1 - placement.order.latency_s / placement.instead_of_s
        pause_s = min(REREADING_S, steps * placement.order.latency_s)
        if placement.step_bytes and serving.step_bytes:
            rate = slowest_bytes_per_s({*placement.nodes, *serving.nodes}, world.cluster.cards)
            if rate:  # The states go from device to device.
                pause_s = min(pause_s, steps * placement.step_bytes / rate)
        return gain > 0 and now < placement.waits_since + pause_s / gain

    def _falls_short(self, placement: PlanRollout, world: LeaderView) -> bool:
        """Whether the measured times of the plan's segments say that the move is not worth its cost."""
        if placement.instead_of_s == math.inf or not world.profiles.profiles(1):
            return False
        plan, kinds = plan_from_bytes(placement.order.plan), {}
        for name, node in placement.order.names:
            if node in world.cluster.cards:
                device = parse_card(world.cluster.cards[node].document).device
                device = device.with_drift(
                    self.refining.known_drift(world.drifts, node, self.deployment.name)
                )
                kinds[name] = (device.pace, device.threads)
        ratio = compute_slowdown(plan, kinds, world.profiles)
        if ratio is None:
            return False
        many = self.deployment.options.objective == "throughput"
        return correct_prediction_s(plan, ratio, predict_busiest_s(plan), many=many) >= placement.instead_of_s

    # The model and the plan

    def _store_model(self, world: LeaderView, now: float) -> Iterator[Effect]:
        """Have members store the model: the leader needs it to plan, and it must survive the loss of any one
        device. The models of kept versions must survive that, too."""
        model, size = self.deployment.model, self.deployment.model_bytes
        holders = world.holders(model)
        staying = world.staying
        lacking = [n for n in world.nodes if n not in holders and (n in staying or n == world.node)]
        lacking.sort(key=lambda n: (n != world.node, n))
        copies = len(staying) if size <= MAX_EVERYWHERE_BYTES else status.count_needed_copies(world)
        safe = len(world.safe_holders(model))
        missing = copies - safe
        if safe >= status.count_needed_copies(world):
            # A copy on its way would make the links seem slow that a newcomer measures before it tells its card.
            lacking = [node for node in lacking if node in world.cluster.cards or node == world.node]
        if world.node not in holders:
            missing = max(missing, 1)
        wanted = [(node, model, size) for node in (lacking[: max(missing, 0)] if holders else [])]
        wanted += status.find_kept_copies_missing(self.deployment, world)
        asked = {(node, model) for node, model, _ in wanted}
        self._fetch_at = {key: at for key, at in self._fetch_at.items() if key in asked}
        for node, model, size in wanted:
            if now >= self._fetch_at.get((node, model), -math.inf) + RESEND_S:
                self._fetch_at[node, model] = now
                yield SendMessage(node, FetchModel(world.term, model, size, tuple(world.holders(model))))

    def _request_plan(self, world: LeaderView, new_epoch: Iterator[Epoch], now: float) -> Iterator[Effect]:
        key = self._key(world, now)
        self._refine(key, world, now)
        key = replace(key, drifts=self.refining.drifts(node for node, _, _ in key.devices))
        key = replace(key, disappointed=self._disappointment(key))
        self.planning.look(key, now)
        yield from self._give_way(key, world, now)
        if self.next is not None or world.is_outranked(self.deployment.name):
            return  # Outranked, until this leader follows the other, or leads with a later term.
        if self._take_kept(key, world, new_epoch, now):
            return
        if world.node not in world.holders(self.deployment.model):
            return
        current = self.active
        if current is None or current.order.version != self.deployment.version or current.loses(world):
            yield from self._request_needed_plan(key, world, new_epoch, now)
        elif current.is_overtaken(world):  # By a leader across a split: ours must be later.
            order = replace(current.order, term=world.term, epoch=next(new_epoch))
            self.next = replace(current, order=order, sent_at={}, instead_of_s=math.inf)
        else:
            yield from self._request_better_plan(current, key, world, new_epoch, now)

    def _request_needed_plan(
        self, key: PlanKey, world: LeaderView, new_epoch: Iterator[Epoch], now: float
    ) -> Iterator[Effect]:
        """Have a plan computed, or prepared if there is one, as none serves the deployment's version."""
        current, planning = self.active, self.planning
        found = planning.find_needed_plan(now, waiting=self._requests_wait)
        if found is not None and self._has_room(found, world):
            self._start_next(found, world, new_epoch)
        elif planning.ask(key, now, b"", urgent=True):
            yield make_compute_plan(
                key,
                self.deployment,
                world.cluster,
                b"",
                urgent=True,
                quick=self._requests_wait or (current is not None and current.loses(world)),
                awaited=self._requests_wait,
                profiles=world.profiles.profiles(),
                taken=self._reserved_memory(world),
            )

    def _request_better_plan(
        self,
        current: PlanRollout,
        key: PlanKey,
        world: LeaderView,
        new_epoch: Iterator[Epoch],
        now: float,
    ) -> Iterator[Effect]:
        """Have plans computed or prepared that are safer or faster than the serving one."""
        planning = self.planning
        plan, variant = current.order.plan, is_variant(self.deployment.name)
        self._remember(current, key, world)
        if (found := planning.better(plan, now)) is not None and self._has_room(found, world):
            self._start_next(found, world, new_epoch)
        elif (known := self._find_remembered(current, key, world, now)) is not None:
            self._return_to(known, key, current, world, new_epoch)
        elif not variant and self._is_safer(
            asked := [*self._find_refuges(current, world, new_epoch, now)], world
        ):
            yield from asked  # Safety comes before speed.
        elif self._is_stopgap(current, key) and self.spares.shelters(current.nodes[0]):
            found = planning.find_faster(current.order.latency_s)
            if found is not None and self._has_room(found, world):
                self._start_next(found, world, new_epoch)
            else:
                yield from self._compare(current, key, world, now)
        elif not variant and self._is_safer(
            asked := [*self._contingency(current, world, new_epoch, now)], world
        ):
            yield from asked
        elif not planning.is_settled(plan):
            yield from self._compare(current, key, world, now)
        elif variant:
            yield from self._contingency(current, world, new_epoch, now)

    def _take_kept(self, key: PlanKey, world: LeaderView, new_epoch: Iterator[Epoch], now: float) -> bool:
        """Have the plan prepared that was kept on disk, if it can serve and nothing but a stopgap does. Returns whether it
        is, or its devices are still waited for."""
        current, kept = self.active, self.kept
        if current is not None and not self._is_stopgap(current, key):
            kept.forget()
        order = kept.look(key, self.deployment.version, now)
        if order is None:
            return current is None and bool(kept.missing)
        kept.forget()
        if current is not None and not self.planning.is_gain(order.latency_s, current.order.latency_s):
            return False
        own = [] if current is None else [current.order]
        if not memory_budget.plans_fit([*self._others(world), *own, order], world.cluster.cards):
            kept.refuse("its devices have not enough memory for it beside the other plans")
            return False
        self.next = PlanRollout(
            replace(order, term=world.term, epoch=next(new_epoch), weighed=False),
            instead_of_s=math.inf if current is None else current.order.latency_s,
            was_kept=True,
        )
        return True

    def _is_stopgap(self, current: PlanRollout, key: PlanKey) -> bool:
        """Whether the plan is on one device only because there was no time for a better one after a loss: a variant that is
        new has to last first."""
        hasty = current.quick or current.made_for is None
        chosen = current.instead_of_s < math.inf  # A search found it to be better than the plan before it.
        unsettled = not self.planning.is_settled(current.order.plan)
        return (
            len(current.nodes) == 1 < len(key.devices)
            and hasty
            and not chosen
            and unsettled
            and not self._is_new
        )

    def _remember(self, current: PlanRollout, key: PlanKey, world: LeaderView) -> None:
        """Remember the serving plan for the key's devices, unless it was made for others and a better one may be found."""
        settled = self.planning.is_settled(current.order.plan)
        if settled or not _is_made_for_others(current, key):
            took_s = self._known_latency_s(current)
            self.remembered.note(current, key, world.cluster.cards, best=settled, latency_s=took_s)

    def _known_latency_s(self, serving: PlanRollout) -> float:
        """The seconds that a request takes, as predicted or, if that is more, as measured; the predicted seconds between
        two requests if throughput is the objective."""
        many = self.deployment.options.objective == "throughput"
        return max(serving.order.latency_s, 0.0 if many else self.judge.seconds(serving.epoch))

    def _find_remembered(
        self, current: PlanRollout, key: PlanKey, world: LeaderView, now: float
    ) -> RememberedPlan | None:
        """The plan that served before, when just these devices were there, if `current` was made for others and is slower;
        None if there is none."""
        if current.made_for is None or not _is_made_for_others(current, key):
            return None
        if now < self.planning.ask_at(current.order.plan, urgent=False):
            return None
        known, cards = self.remembered.find(key, world.cluster.cards), world.cluster.cards
        if known is None:
            return None
        if not self.planning.is_gain(known.latency_with(key.drifts), self._known_latency_s(current)):
            return None
        orders = [*self._others(world), current.order, known.placement.order]
        return known if memory_budget.plans_fit(orders, cards) else None

    def _give_way(self, key: PlanKey, world: LeaderView, now: float) -> Iterator[Effect]:
        """Give up a plan on its way for one that is remembered for the devices that have come since, and is better than it
        and than the serving one."""
        serving, coming = self.active, self.next
        if (
            not self.serving
            or serving is None
            or serving.loses(world)
            or coming is None
            or coming.is_ready(world)
        ):
            return
        if all(self._find_remembered(one, key, world, now) is not None for one in (coming, serving)):
            self.next = None
            order = Retire(world.term, self.deployment.name, coming.epoch)
            yield from (SendMessage(node, order) for node in world.nodes)

    def _return_to(
        self,
        known: RememberedPlan,
        key: PlanKey,
        current: PlanRollout,
        world: LeaderView,
        new_epoch: Iterator[Epoch],
    ) -> None:
        """Have a plan prepared that served before. It needs no search if nothing has changed since the last one."""
        sources = tuple(world.holders(self.deployment.model))
        order = replace(
            known.placement.order, term=world.term, epoch=next(new_epoch), sources=sources, weighed=False
        )
        self.next = known.again(order, key, self._known_latency_s(current))
        self.remembered.forget(key)  # Until it serves: it may fall short, or fail its trial.
        if known.best and known.key == key:
            self.planning.settle(order.plan)

    def _is_safer(self, asked: Sequence[ComputePlan], world: LeaderView) -> bool:
        """Whether a contingency plan is being computed or prepared."""
        return bool(asked) or self.spares.has_pending(world)

    def _compare(
        self, current: PlanRollout, key: PlanKey, world: LeaderView, now: float
    ) -> Iterator[ComputePlan]:
        """Compare the serving plan with the best one possible. When a device has joined, a quick search comes first, so
        that it takes part soon, and a thorough one follows. The same holds for a stopgap, which is compared at once."""
        plan, planning = current.order.plan, self.planning
        stopgap = self._is_stopgap(current, key)
        hasty = stopgap or planning.has_newcomers(key, current.made_for, current.nodes)
        quick = hasty and not planning.is_compared(key, plan)
        if planning.ask(key, now, plan, urgent=False, quick=quick, held=not (stopgap and quick)):
            yield make_compute_plan(
                key,
                self.deployment,
                world.cluster,
                plan,
                urgent=False,
                quick=quick,
                profiles=world.profiles.profiles(),
                measured_s=self.judge.seconds(current.epoch),
                taken=self._reserved_memory(world),
                chosen=current.chosen,
                refines=differs_only_in_measurements(current.made_for, key),
            )

    def _refine(self, key: PlanKey, world: LeaderView, now: float) -> None:
        """Take over drifts that are due; they count from the next plan on."""
        settled = self.serving and self.next is None
        serving = self.active.nodes if settled and self.active is not None else None
        nodes = [node for node, _, _ in key.devices]
        self.refining.look(world.drifts, key.deployment, key.version, nodes, serving, now)

    def _disappointment(self, key: PlanKey) -> str:
        """The digest of a plan that was measured to be slower than one device is predicted to be, which is a
        reason to plan again, once; "" if there is none."""
        active = self.active
        if self._disappointed is not None and self._disappointed[0] != key:
            if replace(self._disappointed[0], drifts=key.drifts) != key:
                self.note = ""
            self._disappointed = None
        if (
            self._disappointed is None
            and active is not None
            and self.deployment.options.strategy == "auto"
            and self.deployment.options.objective == "latency"
            and self.judge.disappoints(active.epoch, len(active.nodes))
        ):
            self._disappointed = key, sha256(active.order.plan).hexdigest()[:16]
        return self._disappointed[1] if self._disappointed else ""

    def _start_next(self, found: PlanComputed, world: LeaderView, new_epoch: Iterator[Epoch]) -> None:
        weighed = self.serving and found.current_latency_s < math.inf
        self.next = self._placement(found, world, new_epoch, weighed=weighed)
        if not found.quick and self.planning.is_wanted(found.key):
            self.planning.settle(found.plan)

    def _placement(
        self, found: PlanComputed, world: LeaderView, new_epoch: Iterator[Epoch], *, weighed: bool = False
    ) -> PlanRollout:
        nodes = {name: node for node, name, _ in found.key.devices}
        order = Prepare(
            term=world.term,
            deployment=self.deployment.name,
            version=self.deployment.version,
            epoch=next(new_epoch),
            plan=found.plan,
            names=tuple((name, nodes[name]) for name in sorted(found.names)),
            model=self.deployment.model,
            sources=tuple(world.holders(self.deployment.model)),
            latency_s=found.latency_s,
            shapes=self.deployment.options.shapes,
            # Who waits for a quick plan does not wait for its times, too.
            weighed=weighed and not found.quick,
            memory_bytes=found.memory_bytes,
            number=self.deployment.number,
        )
        return PlanRollout(
            order,
            instead_of_s=found.current_latency_s,
            made_for=found.key,
            hasty=found.quick and weighed,
            chosen=found.chosen,
            note="; ".join(filter(None, (*(why for _, why in self.refused), found.note))),
            tolerance=found.tolerance,
            step_bytes=found.step_bytes,
            quick=found.quick,
            structure=found.structure,
            verdict=RIGHT if found.is_model_itself else "",
        )

    def _find_refuges(
        self, current: PlanRollout, world: LeaderView, new_epoch: Iterator[Epoch], now: float
    ) -> Iterator[ComputePlan]:
        """Plan a refuge for the first loss that no plan covers yet, and have it prepared. Where the user limits the number
        of plans for losses, there are only those that are made for one."""
        if self._most_spares < math.inf:
            return
        for node in _in_order(current, world):
            key = self._key_alone(node, world, now)
            if self.spares.shelters(node) or len(key.devices) < 2 or self.planning.has_failed(key, now):
                continue  # With one device left, the plan for the loss is on one device, too.
            if (found := self.planning.found(key)) is not None:
                self.spares.add_refuge(node, self._placement(found, world, new_epoch))
            elif self.planning.ask(key, now, b"", urgent=False, held=False):
                yield self._order_spare(key, world)
            return

    def _key_alone(self, lost: str, world: LeaderView, now: float) -> PlanKey:
        """The key of a refuge without that device. It is on a member that stores the model, if there is one, so that no
        weights have to be moved."""
        key = self._key_without(lost, world, now)
        holders = world.holders(self.deployment.model)
        devices = tuple(device for device in key.devices if device[0] in holders)
        return replace(key, devices=devices or key.devices, alone=True)

    def _key_without(self, node: str, world: LeaderView, now: float) -> PlanKey:
        key = self._key(world, now, without=node)
        return replace(key, drifts=self.refining.drifts(node for node, _, _ in key.devices))

    def _order_spare(self, key: PlanKey, world: LeaderView) -> ComputePlan:
        """The order for a plan that takes over after a loss. The deployment's own plan will not serve any more then."""
        taken = memory_budget.sum_memory_bytes(self._others(world))
        return make_compute_plan(
            key, self.deployment, world.cluster, b"", urgent=False, quick=True, taken=taken
        )

    def _contingency(
        self, current: PlanRollout, world: LeaderView, new_epoch: Iterator[Epoch], now: float
    ) -> Iterator[ComputePlan]:
        """Plan for the loss of one device, and have that plan prepared."""
        variant = is_variant(self.deployment.name)
        for node in _in_order(current, world):
            borrowed = self.spares.borrow(node)
            if node in self.spares and borrowed is None:
                continue
            if len(self.spares) >= self._most_spares and borrowed is None:
                return
            key = self._key_without(node, world, now)
            found = self.planning.found(key)
            if found is not None and not variant:
                if borrowed is not None and not self.planning.is_gain(
                    found.latency_s, borrowed.order.latency_s
                ):
                    self.spares.suffices(node)
                elif not self.spares.has_pending(world):
                    self.spares.add(node, self._placement(found, world, new_epoch))
            elif self.planning.ask(key, now, b"", urgent=False, held=variant):
                yield self._order_spare(key, world)
                return
        if self.spares.are_complete(current, world):
            self.spares.drop_refuges()

    def _make_room(self, world: LeaderView) -> None:
        """Drop contingency plans while devices have no room for all plans."""
        others = [*self._others(world), *(o for o in world.spares if o.deployment != self.deployment.name)]
        while any(self.spares) and not memory_budget.plans_fit(
            [*others, *(p.order for p in self._placements())], world.cluster.cards
        ):
            self.spares.drop()

    def _others(self, world: LeaderView) -> list[Prepare]:
        return [order for order in world.orders if order.deployment != self.deployment.name]

    def _reserved_memory(self, world: LeaderView) -> dict[str, int]:
        """The bytes of memory that a new plan cannot have, by node: those of other deployments' plans, and of
        this deployment's plan, which serves until the new one is ready."""
        own = [] if self.active is None else [self.active.order]
        return memory_budget.sum_memory_bytes([*self._others(world), *own])

    def _has_room(self, found: PlanComputed, world: LeaderView) -> bool:
        """Whether devices still have the memory for which this plan was computed; if not, the plan is
        forgotten."""
        if fine := memory_budget.plan_fits(found, self._reserved_memory(world), world.cluster.cards):
            return fine
        self.planning.forget()
        return False

    # Trying

    def _try_plan(self, world: LeaderView) -> Iterator[TryPlan]:
        """Try one plan at a time, as soon as all of its devices and the leader are ready. A plan that had to
        serve untried comes first."""
        if not self._tries or self._trying is not None:
            return
        for placement in self._placements():
            mine = world.find_holding(world.node, self.deployment.name, placement.epoch)
            if not placement.verdict and mine and mine.state == READY and placement.is_ready(world):
                self._trying = placement.epoch
                sure = self.active is not None and self.active.verdict == RIGHT
                trusted = self.active.epoch if sure and self.active is not None else NO_EPOCH
                yield TryPlan(
                    self.deployment.name,
                    placement.epoch,
                    self.deployment.model,
                    self.deployment.model_bytes,
                    placement.tolerance,
                    trusted,
                )
                return

    # Orders

    def _give_orders(self, placement: PlanRollout, world: LeaderView, now: float) -> Iterator[Effect]:
        """Have members that lack the plan prepare it and, once it is active, have members that are ready
        switch to it."""
        name, epoch = self.deployment.name, placement.epoch
        holders: tuple[str, ...] | None = None
        for node in world.nodes:
            if node not in world.reports or self._would_go_back(node, placement, world):
                continue
            holding = world.find_holding(node, name, epoch)
            order: Prepare | Activate
            if holding is None:
                if holders is None:
                    holders = tuple(world.holders(self.deployment.model))
                sources = holders or placement.order.sources
                order = replace(placement.order, term=world.term, sources=sources)
            elif placement is self.active and holding.state == READY and not holding.active:
                order = Activate(world.term, name, epoch)
            else:
                continue
            what = (node, type(order).__name__)
            if now >= placement.sent_at.get(what, -math.inf) + RESEND_S:
                placement.sent_at[what] = now
                yield SendMessage(node, order)
        nodes = set(world.nodes)
        placement.sent_at = {what: at for what, at in placement.sent_at.items() if what[0] in nodes}

    def _would_go_back(self, node: str, placement: PlanRollout, world: LeaderView) -> bool:
        """Whether a member should keep the plan of another leader, from across a split, for now: this plan is of an earlier
        version of the deployment, and that one may be of the version that is wanted."""
        if placement.order.version == self.deployment.version:
            return False
        served = (
            h for h in world.reports[node].holdings if h.active and h.deployment == self.deployment.name
        )
        return any(holding.epoch.term != placement.epoch.term for holding in served)

    def _retire(self, world: LeaderView) -> Iterator[Effect]:
        """Retire plans that nobody will use: they were prepared for a leader that is gone, or abandoned while
        a device was away."""
        kept = {placement.epoch: placement for placement in self._placements()}
        for node, report in world.reports.items():
            for holding in report.holdings:
                if holding.deployment == self.deployment.name and not holding.active:
                    placement = kept.get(holding.epoch)
                    failed = holding.state == FAILED and (placement is None or node not in placement.nodes)
                    if failed or (placement is None and self._is_droppable(holding)):
                        yield SendMessage(node, Retire(world.term, holding.deployment, holding.epoch))

    def _is_droppable(self, holding: Holding) -> bool:
        """Whether a plan that the leader does not keep can be dropped. Older READY plans may still finish
        requests, and their member drops them by itself."""
        if self.active is None:
            return False
        return holding.epoch > self.active.epoch or holding.state != READY

    # How it stands

    def _tell_standing(self, world: LeaderView) -> Iterator[Effect]:
        now = self._make_standing(world)
        if now != self.standing:
            self.standing = now
            yield from (SendMessage(node, now) for node in world.nodes)

    def _make_standing(self, world: LeaderView) -> Standing:
        state, text = self._state(world)
        failed = self.planning.error if state == "failed" else None
        return Standing(
            term=world.term,
            deployment=self.deployment.name,
            version=self.deployment.version,
            state=state,
            text=text,
            acknowledged=self._is_acknowledged(world),
            epoch=self.active.epoch if self.active else NO_EPOCH,
            devices=tuple(name for name, _ in self.active.order.names) if self.active else (),
            error=failed.error if failed else self._trouble,
            error_kind=failed.kind if failed else UNLOADABLE if state == "failed" else "",
            note=self._describe_note(world),
            rounding=self._describe_rounding(),
            weights=status.weights_on_their_way(self.next, world)
            if state == "preparing" and self.next is not None
            else (),
            covered=self.spares.covers(self.active, world, tried=self._tries) if self.active else (),
        )

    def _is_acknowledged(self, world: LeaderView) -> bool:
        """Whether the version survives the loss of any device, and no member answers new requests with an
        earlier one. Once that was so, it stays so: a member that comes later is told of this version before it
        serves."""
        if self.active is None or not self.serving or not status.is_safe(self.deployment, world):
            return False
        if self._taken_over != self.deployment.version and status.serves_everywhere(self.active, world):
            self._taken_over = self.deployment.version
        return self._taken_over == self.deployment.version

    def _describe_note(self, world: LeaderView) -> str:
        """Why the serving plan is not the one that was first predicted to be the best, what engines are refused, and
        whether a better plan is still searched for."""
        engines = status.describe_refused_engines(self.active, self.deployment.model, world)
        active = self.active
        searching = active is not None and not self.planning.is_settled(active.order.plan)
        missing = status.describe_missing(self.deployment, self.planning.key_devices(), world.cluster)
        texts = [self.note, missing, engines]
        if active is not None and searching:
            texts += [self.kept.fault, SERVED_BEFORE if active.was_kept else HASTY if active.hasty else ""]
        return "; ".join(filter(None, texts))[:MOST_NOTE]

    def _describe_rounding(self) -> str:
        known = self.rounding
        return known.text if known and self.active and known.epoch == self.active.epoch else ""

    def _state(self, world: LeaderView) -> tuple[str, str]:
        holders = world.holders(self.deployment.model)
        waits = self.next is not None and self.next.waits_since < math.inf
        if self.next is not None and not waits:
            return "preparing", status.describe_preparing(self.next, world)
        if self.active is not None and self.serving:
            later = "; a faster plan is ready, and waits for sequences to end" if waits else ""
            return "serving", f"{status.describe_serving(self.active)}{later}"
        if missing := self.kept.missing:
            return "waiting", f"{', '.join(missing)} served it before, and may come back"
        if not holders:
            return "waiting", "no member here stores its model; start one that does"
        if world.node not in holders:
            return "storing", status.describe_storing(self.deployment)
        if self.planning.error is not None:
            return "failed", self.planning.error.error
        if not self.planning.key_devices():
            if self._trouble and select_members(world.cluster, self.deployment, ()):
                return "failed", self._trouble  # Its devices are here, but none can load it.
            return "waiting", status.explain_no_devices(self.deployment, world)
        return "planning", "computing a plan"


def _is_made_for_others(placement: PlanRollout, key: PlanKey) -> bool:
    """Whether the plan was not computed for just the key's devices, or that is not known."""
    made_for = placement.made_for.devices if placement.made_for is not None else ()
    return {node for node, _, _ in made_for} != {node for node, _, _ in key.devices}


def _in_order(serving: PlanRollout, world: LeaderView) -> list[str]:
    """The devices of the serving plan in the order in which their losses are seen to: the leader, who sees to it, last."""
    return sorted(serving.nodes, key=lambda node: (node == world.node, node))
