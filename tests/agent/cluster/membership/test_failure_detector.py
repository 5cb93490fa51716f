"""How long a device may be silent, and for how long one that comes and goes is done without."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.leader.replan_policy import ClusterView, select_members
from edgepart.agent.cluster.membership.failure_detector import FrameGaps, SilenceTiming
from edgepart.agent.cluster.membership.flapping import FlapTiming, LossHistory
from edgepart.agent.cluster.membership.membership import Membership
from edgepart.agent.cluster.membership.own_state import OwnFacts
from edgepart.agent.cluster.state.events import (
    Effect,
    LinkDown,
    LinkUp,
    MembersChanged,
    MessageReceived,
    SendMessage,
)
from edgepart.agent.wire.control import (
    ALIVE,
    FLAPPING,
    Card,
    Deployment,
    Heartbeat,
    Hello,
    Opinion,
    Version,
    View,
)
from edgepart.agent.wire.inference import DeployOptions

TIMING = SilenceTiming()
gaps = st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60)


@given(gaps)
def test_the_bound_is_twice_the_longest_gap_of_late_within_limits(seen: list[float]) -> None:
    known = FrameGaps(TIMING)
    for gap in seen:
        known.note(gap)
    passed = [sum(seen[at + 1 :]) for at in range(len(seen))]
    faded = [gap - TIMING.forget * since for gap, since in zip(seen, passed, strict=True)]
    faded.append(TIMING.first_s / 2 - TIMING.forget * sum(seen))
    expected = min(max(2 * max(faded), TIMING.least_s), TIMING.most_s)
    assert known.bound_s == pytest.approx(expected)


def test_a_quiet_link_is_quick_and_a_noisy_one_calm() -> None:
    quiet, noisy = FrameGaps(TIMING), FrameGaps(TIMING)
    for _ in range(100):
        quiet.note(0.5)
        noisy.note(0.5)
    noisy.note(1.6)
    assert quiet.bound_s == TIMING.least_s
    assert noisy.bound_s == pytest.approx(3.2)
    for _ in range(10):
        noisy.note(0.5)
    assert noisy.bound_s > 2.9
    for _ in range(100):
        noisy.note(0.5)
    assert noisy.bound_s == TIMING.least_s


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="least_s <= first_s <= most_s"):
        SilenceTiming(least_s=3.0)


steps = st.lists(st.floats(0.0, 400.0), min_size=1, max_size=20)


@given(steps)
def test_each_loss_in_a_row_doubles_the_wait_and_calm_forgets(waits: list[float]) -> None:
    timing = FlapTiming()
    flaps = LossHistory(timing)
    now, losses, until = 0.0, 0, -math.inf
    for wait in waits:
        now += wait
        losses = losses + 1 if now < until + timing.calm_s else 1
        flaps.lost("b", now)
        over = losses - timing.free
        span_s = min(timing.first_s * 2 ** (over - 1), timing.most_s) if over > 0 else 0.0
        until = now + span_s
        assert bool(flaps.why("b", now)) == (over > 0)
        assert flaps.wake_at(now) == (until if over > 0 else math.inf)
        assert flaps.why("b", until) == ""
        assert flaps.why("c", now) == ""


def test_a_quarantine_begins_when_the_device_is_back() -> None:
    timing = FlapTiming()
    flaps = LossHistory(timing)
    for n in range(3):
        flaps.lost("b", 40.0 * n)
        flaps.back("b", 40.0 * n + 39.0)  # it starts slowly
    assert flaps.why("b", 119.1) == "lost 3 times lately: plans do without it for 10 s"
    assert flaps.wake_at(119.1) == 129.0
    flaps.back("b", 125.0)  # that is no news
    assert flaps.why("b", 129.0) == ""
    flaps.lost("b", 130.0)
    flaps.back("b", 130.0 + 20.0 + timing.calm_s)  # it was switched off
    assert flaps.why("b", 300.0) == ""


def test_only_so_many_devices_are_remembered() -> None:
    flaps = LossHistory(FlapTiming(free=0, keep=3))
    for n, node in enumerate("abcd"):
        flaps.lost(node, float(n))
    assert [bool(flaps.why(node, 4.0)) for node in "abcd"] == [False, True, True, True]


def hello(node: str, boot: str = "one") -> Hello:
    return Hello(node, node, boot, 1, (f"{node}:1",), "", "0")


def meet(core: Membership, node: str, now: float, boot: str = "one") -> list[Effect]:
    return core.handle(LinkUp(node), now) + core.handle(MessageReceived(node, hello(node, boot)), now)


def crowd(count: int) -> Membership:
    core = Membership(OwnFacts("0" * 16, "me", "boot", 1), 0.0)
    for n in range(1, count):
        meet(core, f"{n:016x}", 0.0)
    return core


def test_many_that_go_together_make_one_view_each() -> None:
    core = crowd(20)
    core.wake(0.2)
    sent = []
    for n in range(10, 20):
        sent += core.handle(LinkDown(f"{n:016x}"), 0.5 + n / 1000)
    sent += core.wake(core.wake_at())
    at = 0.6
    while at < 0.75:
        sent += core.wake(at)
        at = max(core.wake_at(), at + 0.01)
    to_one = [e.message for e in sent if isinstance(e, SendMessage) and e.node == f"{1:016x}"]
    assert (
        sum(isinstance(message, View) for message in to_one) == 1
    )  # in which they are suspect; that they are gone is in the next


def test_what_says_nothing_new_is_heard_at_once_and_anything_else_is_not() -> None:
    core = crowd(3)
    core.wake(0.15)
    b, stranger = f"{1:016x}", "f" * 16
    assert core.hears(b, 0.2)
    assert core.peers[b].heard_at == 0.2
    assert not core.hears(stranger, 0.2)
    core.handle(LinkDown(b), 0.3)
    assert not core.hears(b, 0.31)
    assert not core.hears(f"{2:016x}", core.wake_at())  # something is due


def lose(core: Membership, node: str, now: float, *, said: bool) -> None:
    core.handle(LinkDown(node), now)
    if said:
        core.handle(MessageReceived(f"{2:016x}", Opinion(node, "suspect")), now + 0.01)
    else:
        core.handle(LinkDown(f"{2:016x}"), now)
        core.wake(now + 1.5)
        meet(core, f"{2:016x}", now + 1.5)


@pytest.mark.parametrize("said", [True, False])
def test_only_losses_that_another_member_confirms_count(said: bool) -> None:
    core, b = crowd(3), f"{1:016x}"
    now = 0.1
    for _ in range(4):
        lose(core, b, now, said=said)
        now += 2.0
        meet(core, b, now)
        now += 0.1
        core.handle(MessageReceived(f"{2:016x}", Heartbeat("one", 1, 0, "", 0)), now)
    (member,) = [m for m in core.members() if m.node == b]
    assert member.status == (FLAPPING if said else ALIVE)
    assert ("lost 4 times" in member.note) == said


def test_the_end_of_a_quarantine_is_told() -> None:
    core, b = crowd(3), f"{1:016x}"
    for n in range(3):
        lose(core, b, 3.0 * n + 0.1, said=True)
        meet(core, b, 3.0 * n + 1.0, boot=f"boot {n}")
    found = {m.node: m.status for m in core.members()}
    assert found[b] == FLAPPING
    told: list[MembersChanged] = []
    while (at := core.wake_at()) < 30:
        told += [e for e in core.wake(at) if isinstance(e, MembersChanged)]
        for node in (b, f"{2:016x}"):
            told += [
                e
                for e in core.handle(
                    MessageReceived(node, Heartbeat(core.peers[node].hello.boot, 1, 0, "", 0)), at
                )
                if isinstance(e, MembersChanged)
            ]
    assert [m.status for change in told for m in change.members if m.node == b] == [ALIVE]


def test_plans_do_without_it_unless_there_is_nobody_else() -> None:
    core, b = crowd(3), f"{1:016x}"
    for n in range(3):
        lose(core, b, 3.0 * n + 0.1, said=True)
        meet(core, b, 3.0 * n + 1.0, boot=f"boot {n}")
    members = core.members()
    cards = {member.node: Card(member.node, b"") for member in members}
    cluster = ClusterView(members, cards, dict.fromkeys(cards, ""), frozenset())

    def used(*devices: str) -> list[str]:
        wanted = Deployment("net", "m", 1, DeployOptions(devices=devices), Version(1, "a"))
        return [member.node for member in select_members(cluster, wanted, ())]

    assert used() == ["0" * 16, f"{2:016x}"]
    assert used(b) == [b]
    assert list(pairwise(used())) == [("0" * 16, f"{2:016x}")]
