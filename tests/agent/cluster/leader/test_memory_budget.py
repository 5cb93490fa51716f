"""Plans of several deployments share what memory there is: each is made for what the others leave."""

from __future__ import annotations

from dataclasses import replace

from edgepart.agent.cluster.leader import memory_budget
from edgepart.agent.cluster.leader.controller import Controller
from edgepart.agent.cluster.leader.replan_policy import ClusterView, PlanningTiming
from edgepart.agent.cluster.leader.rollout import DeploymentRollout
from edgepart.agent.cluster.leader.rollout_state import LeaderView, epochs
from edgepart.agent.cluster.state.cards import MeasuredDevice, write_card
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.events import (
    ComputePlan,
    Effect,
    Member,
    PlanComputed,
    PlanFailed,
    PlanKey,
    SendMessage,
)
from edgepart.agent.planwork.plan_job import limit_memory
from edgepart.agent.wire.control import (
    ALIVE,
    READY,
    Activate,
    Card,
    Deployment,
    Holding,
    Prepare,
    Report,
    Retire,
    Version,
)
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.devices import cluster
from edgepart.planner.devices.cluster import Device
from edgepart.planner.plans.plan import Plan
from edgepart.planner.plans.plan_bytes import plan_to_bytes

VERSION = Version(1, "a")
MEMORY = 1000.0
CARD = Card("a", write_card(MeasuredDevice(Device("pi", "k", 1e9, 1e9, MEMORY))))
PLAN = plan_to_bytes(Plan("m", "auto", {}, (), (), ()))


def deployment(name: str) -> Deployment:
    return Deployment(name, "m", 1, DeployOptions(), VERSION)


def prepare(name: str, number: int, nbytes: int) -> Prepare:
    names = (("pi", "a"),)
    return Prepare(
        1, name, VERSION, Epoch(1, number), PLAN, names, "m", ("a",), 0.1, {}, memory_bytes=(("pi", nbytes),)
    )


def test_what_is_taken_is_the_sum_by_node() -> None:
    two = replace(prepare("net", 1, 5), names=(("pi", "b"),))
    assert memory_budget.sum_memory_bytes([prepare("net", 1, 100), prepare("other", 2, 20), two]) == {
        "a": 120,
        "b": 5,
    }
    assert memory_budget.sum_memory_bytes([replace(prepare("net", 1, 100), names=())]) == {}


def test_a_plan_fits_beside_others_or_not() -> None:
    key = PlanKey("net", VERSION, (("a", "pi", "digest"),))
    made = PlanComputed(key, PLAN, ("pi",), 0.1, 1.0, memory_bytes=(("pi", 600),))
    assert memory_budget.plan_fits(made, {"a": 400}, {"a": CARD})
    assert not memory_budget.plan_fits(made, {"a": 401}, {"a": CARD})
    assert memory_budget.plan_fits(made, {"b": 900}, {"a": CARD})


def test_a_device_has_what_others_leave_and_at_most_the_limit() -> None:
    among = cluster.Cluster((Device("pi", "k", 1, 1, MEMORY), Device("box", "k", 1, 1, MEMORY)))
    left = limit_memory(among, deployment("net"), {"pi": 300})
    assert [device.memory_bytes for device in left.devices] == [700, 1000]
    options = DeployOptions(memory_limit_bytes=800)
    left = limit_memory(among, replace(deployment("net"), options=options), {"pi": 300})
    assert [device.memory_bytes for device in left.devices] == [700, 800]


class Leader:
    """One device that leads itself, and answers its own orders."""

    def __init__(self, **needed: int) -> None:
        """By deployment, the bytes that its plan takes."""
        self.needed = needed
        self.controller = Controller(1, lambda name: None)
        self.map = DeploymentMap(map(deployment, needed))
        self.holdings: dict[str, Holding] = {}
        self.asked: list[ComputePlan] = []
        self.now = 0.0

    def step(self) -> None:
        self.now += 2.0
        member = Member("a", "pi", "boot", ALIVE, (), "", "0")
        among = ClusterView((member,), {"a": CARD}, {"a": "digest"}, frozenset())
        versions = tuple((name, VERSION) for name in self.needed)
        report = Report("boot", tuple(self.holdings.values()), ("m",), versions)
        for effect in self.controller.step(self.map, LeaderView("a", 1, among, {"a": report}), self.now):
            self._obey(effect)

    def _obey(self, effect: Effect) -> None:
        if isinstance(effect, ComputePlan):
            self.asked.append(effect)
        elif isinstance(effect, SendMessage) and isinstance(effect.message, Prepare):
            order = effect.message
            self.holdings[order.deployment] = Holding(order.deployment, order.epoch, READY, True)

    def answer(self) -> None:
        """All orders, as they were given: those asked at the same time do not know of each other."""
        asked, self.asked = self.asked, []
        for order in asked:
            nbytes = self.needed[order.key.deployment]
            result: PlanComputed | PlanFailed = PlanFailed(order.key, "does not fit", "Infeasible", False)
            if nbytes + dict(order.taken_bytes).get("a", 0) <= MEMORY:
                result = PlanComputed(
                    order.key, PLAN, ("pi",), 0.1, float("inf"), memory_bytes=(("pi", nbytes),)
                )
            self.controller.answered(result, self.now)

    def settle(self) -> list[str]:
        for _ in range(8):
            self.step()
            self.answer()
        return sorted(self.holdings)


def test_two_that_fit_together_serve_together() -> None:
    assert Leader(net=600, other=400).settle() == ["net", "other"]


def test_two_that_do_not_are_not_loaded_both_even_when_they_are_planned_at_once() -> None:
    leader = Leader(net=600, other=500)
    leader.step()
    assert [order.taken_bytes for order in leader.asked] == [(), ()]
    assert leader.settle() == ["net"]


def test_the_second_is_planned_again_when_the_first_is_undeployed() -> None:
    leader = Leader(net=600, other=500)
    leader.settle()
    leader.map = DeploymentMap([deployment("other")])
    del leader.holdings["net"]
    assert leader.settle() == ["other"]


def test_spare_plans_give_way() -> None:
    serving, spare = prepare("net", 1, 600), prepare("net", 2, 300)
    serving = replace(serving, names=(("pi", "a"), ("pine", "b")))
    cards = {"a": CARD}
    assert memory_budget.plans_fit([serving, spare], cards)
    assert not memory_budget.plans_fit([serving, spare, prepare("other", 3, 200)], cards)
    assert memory_budget.plans_fit([prepare("other", 3, 2000)], {})
    cutover = DeploymentRollout(deployment("net"), serving, PlanningTiming(), held=[spare])
    report = Report(
        "boot", tuple(Holding("net", Epoch(1, n), READY, n == 1) for n in (1, 2)), ("m",), (("net", VERSION),)
    )
    two = tuple(Member(node, name, "boot", ALIVE, (), "", "") for name, node in serving.names)
    world = LeaderView("a", 1, ClusterView(two, cards, {"a": "d"}, frozenset()), {"a": report})
    full = replace(world, orders=(prepare("other", 3, 200), serving))
    cutover.step(world, epochs(2), 0.0)
    assert [placement.epoch for placement in cutover.plans.spares] == [Epoch(1, 2)]
    effects = cutover.step(full, epochs(2), 1.0)
    assert [*cutover.plans.spares] == []
    assert SendMessage("a", Retire(1, "net", Epoch(1, 2))) in effects


def test_a_new_leader_serves_what_it_finds_ready() -> None:
    names = (("pi", "a"), ("pine", "b"))
    serving, spare = replace(prepare("net", 1, 5), names=names), prepare("net", 2, 5)
    cutover = DeploymentRollout(deployment("net"), serving, PlanningTiming(), held=[spare])
    holdings = tuple(Holding("net", Epoch(1, n), READY, n == 1) for n in (1, 2))
    report = Report("boot", holdings, ("m",), (("net", VERSION),))
    member = Member("a", "pi", "boot", ALIVE, (), "", "")
    world = LeaderView("a", 2, ClusterView((member,), {"a": CARD}, {"a": "d"}, frozenset()), {"a": report})
    effects = cutover.step(world, epochs(2), 0.0)
    assert SendMessage("a", Activate(2, "net", Epoch(1, 2))) in effects
    assert not any(isinstance(effect, ComputePlan) and effect.urgent for effect in effects)
