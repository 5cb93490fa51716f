"""One member that lies, and what becomes of the others: whole clusters in virtual time. Honest boxes never doubt each
other; the simulated driver sees to that in every other story."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgepart.agent.cluster.membership.election import FREE_ROUNDS, MAX_LEAP_ROUNDS, TermLimiter, next_term
from edgepart.agent.cluster.state.events import MessageReceived
from edgepart.agent.cluster.state.judging import MIN_REQUESTS, PlanJudge
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.net.dispatch import CONTROL_KINDS
from edgepart.agent.wire.codec import frame_to_message, message_to_frame
from edgepart.agent.wire.control import (
    ALIVE,
    Activate,
    Card,
    Deployments,
    FetchModel,
    Heartbeat,
    Holding,
    Latency,
    Prepare,
    Profile,
    Report,
    Retire,
    Sighting,
    Standing,
    Version,
    View,
    Want,
)
from edgepart.agent.wire.inference import NODE_BITS, Epoch
from tests.simulation.cluster import SimNet, node_id

A, B, LIAR = map(node_id, range(1, 4))
LARGEST = 2**53 - 1


class Lies(SimNet):
    """Three members, of which the last one says what the test wants."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.liars = {LIAR}
        self.start()
        self.until(lambda: not self.settled_faults(), 10)
        self.deploy(B)
        self.until(lambda: "net" in self.acknowledged and not self.settled_faults(), 30)

    def say(self, message: Any, *to: str) -> None:
        for node in to or (A, B):
            self.give(self.boxes[node], MessageReceived(LIAR, message))

    def beat(self, term: int) -> Heartbeat:
        liar = self.boxes[LIAR]
        return Heartbeat(liar.boot, liar.disk.incarnation, term, LIAR, term)

    def doubted(self) -> set[str]:
        """Who does not believe the liar."""
        return {node for node, liar, _ in self.distrusted if liar == LIAR}


@pytest.fixture
def net() -> Lies:
    return Lies()


@pytest.mark.parametrize("term", [LARGEST, (FREE_ROUNDS + 2 * MAX_LEAP_ROUNDS) << NODE_BITS])
def test_a_term_that_leaps_is_refused_and_named_and_there_is_a_leader_after_a_restart(
    net: Lies, term: int
) -> None:
    before = {node: net.boxes[node].disk.term for node in (A, B)}
    net.say(net.beat(term))
    net.run(1)
    assert net.doubted() == {A, B}
    assert {node: net.boxes[node].disk.term for node in (A, B)} == before
    for node in net.boxes:
        net.crash(node, power=True)
    net.start(A, B)
    net.until(lambda: not net.settled_faults(), 30)


def test_terms_that_are_believed_cannot_be_used_up() -> None:
    leaps, seen, now = TermLimiter(0.0), 0, 0.0
    assert leaps.allows(FREE_ROUNDS << NODE_BITS, seen, now)
    seen = FREE_ROUNDS << NODE_BITS
    for _ in range(
        100_000
    ):  # a liar that pushes as far as it may, a hundred times a second, for a quarter of an hour
        now += 0.01
        step = next(
            (s for s in (MAX_LEAP_ROUNDS, 64, 1) if leaps.allows(seen + (s << NODE_BITS), seen, now)), 0
        )
        seen += step << NODE_BITS
    assert (seen >> NODE_BITS) <= FREE_ROUNDS + MAX_LEAP_ROUNDS + now


def test_an_incarnation_that_leaps_is_refused_and_named_and_all_still_see_each_other(net: Lies) -> None:
    before = {node: net.core(node).membership.facts.incarnation for node in (A, B)}
    told = tuple(Sighting(node, LARGEST, ALIVE, "x", (node,)) for node in (A, B))
    net.say(View(told))
    net.run(5)
    assert net.doubted() == {A, B}
    assert {node: net.core(node).membership.facts.incarnation for node in (A, B)} == before
    net.crash(LIAR)
    net.until(lambda: not net.settled_faults(), 30)
    assert net.boxes[A].members == net.boxes[B].members == {A, B}


def test_orders_are_obeyed_from_the_leader_whom_each_derives_itself(net: Lies) -> None:
    node = next(node for node in (A, B) if net.core(node).leader != node or node == B)
    core = net.core(node)
    leader, term = core.leader, core.election.term
    order = core.follower.active("net")
    assert order is not None and leader != LIAR
    forged = Epoch(term, 999)
    active = dict(net.boxes[node].active)
    plan = Prepare(
        term, "net", order.version, forged, order.plan, (("x", LIAR),), order.model, (LIAR,), 0.1, {}
    )
    orders = (
        plan,
        Activate(term, "net", forged),
        Retire(term, "net", order.epoch),
        FetchModel(term, "5" * 64, 1, (LIAR,)),
    )
    standing = Standing(term, "net", order.version, "failed", "lies", False, order.epoch, ())
    for message in (*orders, standing):
        net.say(message, node)
        net.run(0.7)
    plans = net.boxes[node].plans
    assert ("net", forged) not in plans and ("net", order.epoch) in plans
    assert net.boxes[node].active == active and not net.boxes[node].disk.models - {order.model}
    assert core.standings["net"].state == "serving"


def test_a_plan_of_a_later_term_than_the_order_s_own_is_not_taken(net: Lies) -> None:
    """Else one that led for a moment could have a plan serve for ever."""
    core = net.core(B)
    order = core.follower.active("net")
    assert order is not None
    forged = Prepare(
        core.election.term,
        "net",
        order.version,
        Epoch(LARGEST, 1),
        order.plan,
        order.names,
        order.model,
        (),
        0.1,
        {},
    )
    net.give(net.boxes[B], MessageReceived(core.leader, forged))
    assert ("net", Epoch(LARGEST, 1)) not in net.boxes[B].plans


@pytest.mark.parametrize("later", ["term", "number"])
def test_a_report_of_a_plan_that_nobody_made_stops_no_planning(net: Lies, later: str) -> None:
    leader = net.core(A).leader
    core = net.core(leader)
    term = core.election.term
    epoch = Epoch(LARGEST, 1) if later == "term" else Epoch(term, LARGEST)
    for _ in range(20):
        lie = Report(net.boxes[LIAR].boot, (Holding("net", epoch, "ready", True),), (), ())
        net.say(lie, leader)
        net.run(0.2)
    net.crash(LIAR, power=True)
    net.until(lambda: not net.settled_faults(), 30)
    assert net.boxes[A].active["net"].term < LARGEST and net.boxes[A].active["net"].number < 100


def test_a_card_that_cannot_be_read_leaves_its_device_out_with_the_reason_and_nobody_else(net: Lies) -> None:
    for node in (A, B):
        net.core(node).cards._find_fault = lambda document: (
            "its 'flops_per_s' is null" if b"null" in document else ""
        )
    net.say(Card(LIAR, b"null"))
    net.until(lambda: net.core(A).cards.faults == {LIAR: "its 'flops_per_s' is null"}, 60)
    net.until(lambda: net.devices(net.boxes[A], "net") == {A, B}, 60)
    net.deploy(A, "other")
    net.until(lambda: net.devices(net.boxes[B], "other") == {A, B}, 60)
    assert net.doubted() == {A, B}
    net.say(Card(LIAR, b"a card that can be read"))
    net.until(lambda: net.devices(net.boxes[A], "other") == {A, B, LIAR}, 90)
    assert net.core(A).cards.faults == {}


def test_what_a_device_measured_itself_counts_more_than_what_a_member_says() -> None:
    book, segment = ProfileBook(), ("1" * 64, "x86~60", 2)
    book.learn([Profile(*segment, 0.5)], A)
    assert book.learn([Profile(*segment, 0.51)], B) == ()
    book.learn([Profile(*segment, 1e6)], LIAR)
    assert book.seconds(*segment) == 0.51
    book.learn([Profile(*segment, 0.4)])
    assert book.learn([Profile(*segment, 1e-9)], LIAR) == () and book.seconds(*segment) == 0.4


def test_a_client_s_empty_array_with_an_endless_axis_ends_no_link() -> None:
    """What clients choose freely is told from gateway to leader."""
    want = Want("net", Version(1, A), {"x" * 5000: (0, 2**61), "y": (1,) * 64})
    assert frame_to_message(message_to_frame(want), CONTROL_KINDS) == want


# What remains possible to a member: docs/security.md names these tests.


def test_a_member_that_claims_a_later_term_leads_and_no_longer_when_it_is_gone(net: Lies) -> None:
    term = next_term(net.core(A).election.seen_term, LIAR)
    net.say(net.beat(term))
    assert (net.core(A).leader, net.core(A).election.term) == (LIAR, term)
    net.crash(LIAR)
    net.until(lambda: not net.settled_faults(), 30)
    assert net.core(A).leader in (A, B)


def test_a_member_may_deploy_and_undeploy_as_its_credential_lets_it(net: Lies) -> None:
    known = net.core(A).deployments.get("net")
    assert known is not None
    gone = replace(known, version=Version(known.version.counter + 1, LIAR), deleted=True)
    net.say(Deployments((gone,)))
    net.run(1)
    assert [net.core(node).deployments.list_live() for node in (A, B)] == [[], []]
    net.deploy(A)
    net.until(lambda: net.core(B).deployments.get("net") is not None, 5)


def test_a_member_s_word_that_it_stores_a_model_counts(net: Lies) -> None:
    leader = net.core(A).leader
    claimed = replace(net.core(LIAR).follower.report(()), models=("5" * 64,))
    net.say(claimed, leader)
    assert net.core(leader).leadership.reports[LIAR].models == ("5" * 64,)


def test_one_gateway_s_latencies_have_no_plan_given_up() -> None:
    judge, epoch = PlanJudge(single_s=0.5), Epoch(1, 1)
    for gateway, seconds in ((A, 0.3), (B, 0.31), (LIAR, 1e6)):
        judge.hears(Latency("net", epoch, seconds, MIN_REQUESTS), gateway)
    assert judge.seconds(epoch) == 0.31 and not judge.disappoints(epoch, 2)
