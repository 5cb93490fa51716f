"""What a member does with orders: only a present leader's, only forwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgepart.agent.cluster.core.follower import SHARED_S, Follower, Order
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.events import (
    DropPlan,
    LoadPlan,
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
    Retire,
    Version,
)
from edgepart.agent.wire.inference import DeployOptions, Epoch

TERM = 5


class Member:
    """A follower with one deployment."""

    def __init__(self) -> None:
        self.follower = Follower("boot", linger_s=30.0)
        self.deployments = DeploymentMap()
        self.deployments.put("a", "net", "m", 1, DeployOptions())

    def obey(self, order: Order, now: float = 0.0) -> list[object]:
        return list(self.follower.obey(order, TERM, self.deployments, now))

    def serve(self, number: int, now: float = 0.0, name: str = "net") -> list[object]:
        """Prepare, load and activate."""
        self.obey(replace(prepare(number), deployment=name), now)
        self.follower.note(PlanLoaded(name, Epoch(TERM, number)))
        return self.obey(replace(activate(number), deployment=name), now)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        return self.follower.report(()).holdings


@pytest.fixture
def member() -> Member:
    return Member()


def prepare(number: int, term: int = TERM) -> Prepare:
    names = (("pi", "a"),)
    return Prepare(term, "net", Version(1, "a"), Epoch(TERM, number), b"plan", names, "m", ("a",), 0.1, {})


def activate(number: int, term: int = TERM) -> Activate:
    return Activate(term, "net", Epoch(TERM, number))


def test_prepare_load_switch(member: Member) -> None:
    (load,) = member.obey(prepare(1))
    assert isinstance(load, LoadPlan) and load.plan == b"plan"
    assert member.obey(activate(1)) == []  # not loaded yet
    assert [holding.state for holding in member.holdings] == [LOADING]
    member.follower.note(PlanLoaded("net", Epoch(TERM, 1)))
    assert member.obey(activate(1)) == [SwitchTo("net", Epoch(TERM, 1)), PersistPlan("net", prepare(1))]
    assert member.holdings == (Holding("net", Epoch(TERM, 1), READY, True),)
    assert member.obey(prepare(1)) == [] and member.obey(activate(1)) == []  # again is no harm


def test_it_reports_how_far_the_weights_of_its_plans_are(member: Member) -> None:
    epoch = Epoch(TERM, 1)
    member.follower.note(WeightsArrived("net", epoch, 3, 9))  # of no plan that it holds
    member.obey(prepare(1))
    assert [(one.here_bytes, one.needed_bytes) for one in member.holdings] == [(0, 0)]
    member.follower.changed = False
    member.follower.note(WeightsArrived("net", epoch, 3, 9))
    assert member.follower.changed
    assert [(one.here_bytes, one.needed_bytes) for one in member.holdings] == [(3, 9)]


def test_an_old_leader_changes_nothing(member: Member) -> None:
    orders: list[Order] = [
        prepare(1, TERM - 1),
        activate(1, TERM - 1),
        FetchModel(TERM - 1, "x", 1, ("a",)),
    ]
    assert [member.obey(order) for order in orders] == [[], [], []]
    assert member.follower.changed  # and is told so


def test_it_never_goes_back(member: Member) -> None:
    member.serve(1)
    member.serve(3)
    assert member.obey(prepare(2)) == []
    assert member.obey(activate(1)) == []


def test_the_replaced_plan_lingers_and_the_one_before_that_does_not(member: Member) -> None:
    member.serve(1, now=0.0)
    assert member.serve(2, now=10.0) == [SwitchTo("net", Epoch(TERM, 2))]
    assert member.follower.wake_at() == 40.0
    assert member.serve(3, now=20.0) == [SwitchTo("net", Epoch(TERM, 3)), DropPlan("net", Epoch(TERM, 1))]
    assert member.follower.wake(50.0) == [DropPlan("net", Epoch(TERM, 2))]


def test_what_was_ready_to_take_over_stays_a_moment_so_that_a_later_epoch_shares_its_sessions(
    member: Member,
) -> None:
    member.serve(1, now=0.0)
    for number in (2, 3):
        member.obey(prepare(number))
    member.follower.note(PlanLoaded("net", Epoch(TERM, 2)))  # the other one is still loading
    assert member.serve(4, now=10.0) == [SwitchTo("net", Epoch(TERM, 4)), DropPlan("net", Epoch(TERM, 3))]
    assert member.follower.wake(10.0 + SHARED_S - 0.1) == []
    assert member.follower.wake(10.0 + SHARED_S) == [DropPlan("net", Epoch(TERM, 2))]


def test_a_failed_load_is_reported_with_its_reason(member: Member) -> None:
    member.obey(prepare(1))
    member.follower.note(PlanLoaded("net", Epoch(TERM, 1), "out of memory"))
    assert member.holdings == (Holding("net", Epoch(TERM, 1), FAILED, False, "out of memory"),)
    assert member.obey(activate(1)) == []


def test_retire_drops_what_does_not_serve(member: Member) -> None:
    member.serve(1)
    member.obey(prepare(2))
    assert member.obey(Retire(TERM, "net", Epoch(TERM, 2))) == [DropPlan("net", Epoch(TERM, 2))]
    assert member.obey(Retire(TERM, "net", Epoch(TERM, 1))) == []
    member.follower.note(PlanLoaded("net", Epoch(TERM, 2)))  # too late
    assert len(member.holdings) == 1


def test_a_variant_that_serves_can_be_retired_and_lingers(member: Member) -> None:
    member.serve(1)
    assert member.serve(2, name="net@x") == [SwitchTo("net@x", Epoch(TERM, 2))]
    assert [order.deployment for order in member.follower.variants()] == ["net@x"]
    retire = Retire(TERM, "net@x", Epoch(TERM, 2))
    assert member.obey(retire, now=10.0) == [SwitchOff("net@x")]
    assert member.follower.variants() == []
    assert member.obey(retire, now=20.0) == []  # again is no harm, and no delay
    assert member.follower.wake(40.0) == [DropPlan("net@x", Epoch(TERM, 2))]
    member.serve(3, now=50.0, name="net@x")  # made again
    assert member.obey(retire, now=50.0) == []
    assert [order.epoch.number for order in member.follower.variants()] == [3]


def test_one_that_is_made_again_before_it_went_stays(member: Member) -> None:
    member.serve(1, name="net@x")
    member.obey(Retire(TERM, "net@x", Epoch(TERM, 1)), now=10.0)
    assert member.obey(replace(activate(1), deployment="net@x"), now=11.0) == [
        SwitchTo("net@x", Epoch(TERM, 1))
    ]
    assert member.follower.wake(100.0) == []


def test_a_variant_that_only_loads_is_dropped_at_once_and_goes_with_its_deployment(member: Member) -> None:
    member.obey(replace(prepare(1), deployment="net@x"))
    assert member.obey(Retire(TERM, "net@x", Epoch(TERM, 1))) == [DropPlan("net@x", Epoch(TERM, 1))]
    member.serve(2, name="net@x")
    member.deployments.delete("a", "net")
    assert member.follower.deployments_changed(member.deployments) == [DropPlan("net@x", Epoch(TERM, 2))]
    assert member.obey(replace(prepare(3), deployment="net@y")) == []


def test_what_was_undeployed_is_dropped_and_not_prepared_again(member: Member) -> None:
    member.serve(1)
    member.deployments.delete("a", "net")
    dropped = [DropPlan("net", Epoch(TERM, 1)), PersistPlan("net", None)]
    assert member.follower.deployments_changed(member.deployments) == dropped
    assert member.follower.deployments_changed(member.deployments) == []
    assert member.obey(prepare(2)) == []


def test_a_model_that_it_has_is_not_fetched(member: Member) -> None:
    order = FetchModel(TERM, "m", 9, ("b",))
    assert member.obey(order) == [StoreModel("m", 9, ("b",))]
    member.follower.models = ("m",)
    assert member.obey(order) == []


def test_a_member_says_on_which_of_its_plans_sequences_are_continued(member: Member) -> None:
    member.serve(1)
    member.obey(prepare(2))
    member.follower.note(SequencesContinued({("net", Epoch(TERM, 2)): 8, ("gone", Epoch(TERM, 9)): 1}))
    assert [(one.epoch.number, one.continued) for one in member.holdings] == [(1, 0), (2, 8)]
    member.follower.note(SequencesContinued({}))
    assert not any(one.continued for one in member.holdings)


def test_the_plan_that_served_last_is_kept_once_whatever_its_epoch(member: Member) -> None:
    kept = PersistPlan("net", prepare(1))
    assert member.serve(1)[1:] == [kept]
    assert PersistPlan not in map(type, member.serve(2))  # the same plan
    other = replace(prepare(3), plan=b"other")
    member.obey(other)
    assert member.follower.kept == {"net": kept.order}, "it does not serve yet"
    member.follower.note(PlanLoaded("net", other.epoch))
    assert PersistPlan("net", other) in member.obey(activate(3))
    assert PersistPlan not in map(type, member.serve(4, name="net@x")), "variants are made again"
    after = Follower("later boot", linger_s=30.0, kept=[other])
    assert after.kept == {"net": other} and after.active("net") is None and after.report(()).holdings == ()
