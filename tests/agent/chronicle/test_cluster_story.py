"""The story of a cluster: which events people are told, with which reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgepart.agent.chronicle.cluster_story import ClusterStory, ServingPlanFacts, explain_change
from edgepart.agent.chronicle.event_log import KINDS, MOST_LETTERS, EventLog
from edgepart.agent.cluster.state import events
from edgepart.agent.wire.control import ALIVE, FLAPPING, LEAVING, SUSPECT, Deployment, Standing, Version
from edgepart.agent.wire.inference import DeployOptions, Epoch

ENTRY = Deployment("net", "0" * 64, 1, DeployOptions(), Version(1, "a"))
BOTH = ServingPlanFacts(("ann", "bob"), "auto", 0.2, "1.5x faster than ann alone.\nMore.")


def member(name: str, status: str = ALIVE, note: str = "") -> events.Member:
    return events.Member(name * 2, name, "boot", status, (), "", "1", note)


def standing(state: str, text: str = "", error: str = "", note: str = "") -> Standing:
    return Standing(1, "net", Version(1, "a"), state, text, False, Epoch(1, 1), (), error, note=note)


class Told:
    """A story, and what it told since it was last asked."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.plans: dict[Epoch, ServingPlanFacts] = {}
        self.story = ClusterStory(self.log, lambda name, epoch: self.plans.get(epoch), "annann")
        self.seen = 0

    def hear(self, *things: events.Event | events.Effect) -> list[tuple[str, str, str, str]]:
        for n, thing in enumerate(things):
            self.story.hear(thing, 100.0 + n)
        page = self.log.after(self.seen)
        self.seen = self.log.last
        assert all(one.kind in KINDS and one.at_s >= 100.0 for _, one in page.entries)
        return [(one.kind, one.subject, one.text, one.why) for _, one in page.entries]


def members(*rows: events.Member) -> events.MembersChanged:
    return events.MembersChanged(rows)


def test_who_joins_is_silent_is_lost_and_comes_back() -> None:
    told = Told()
    ann, bob = member("ann"), member("bob")
    assert told.hear(events.LeaderChanged("annann", 5), members(ann)) == [
        ("joined", "ann", "ann, this agent, has started", ""),
        ("leader", "ann", "ann leads the cluster", ""),
    ]
    assert told.hear(members(ann, bob)) == [("joined", "bob", "bob is a member", "")]
    assert told.hear(events.LinkDown("bobbob", "reset"), members(ann, member("bob", SUSPECT))) == [
        ("suspected", "bob", "bob cannot be heard", "reset")
    ]
    assert told.hear(members(ann, bob)) == [("returned", "bob", "bob is heard again", "")]
    assert told.hear(members(ann, member("bob", SUSPECT)), members(ann))[1:] == [
        ("lost", "bob", "bob is lost", "reset")
    ]
    assert told.hear(members(ann, bob)) == [("returned", "bob", "bob is back", "")]
    assert told.hear(members(ann, member("bob", FLAPPING, "lost 3 times"))) == [
        ("returned", "bob", "bob is back, and not used yet", "lost 3 times")
    ]
    assert told.hear(members(ann, member("bob", LEAVING)), members(ann)) == [
        ("left", "bob", "bob has left", "its agent was stopped")
    ]


def test_a_member_that_falls_silent_without_a_word_is_lost_for_that() -> None:
    told = Told()
    told.hear(members(member("ann"), member("bob")))
    ((kind, _, _, why),) = told.hear(members(member("ann")))
    assert kind == "lost" and "silent" in why


def test_leaders_are_told_once_and_by_name() -> None:
    told = Told()
    assert told.hear(events.LeaderChanged("bobbob", 5)) == []
    assert told.hear(members(member("bob")))[-1] == ("leader", "bob", "bob leads the cluster", "")
    assert told.hear(members(member("bob"), member("cyd"))) == [("joined", "cyd", "cyd is a member", "")]
    assert told.hear(events.LeaderChanged("", 6))[0][2].startswith("nobody leads")


def test_deployments_come_fail_and_go() -> None:
    told = Told()
    assert told.hear(events.PersistDeployments((ENTRY,))) == [("deployed", "net", "net was deployed", "")]
    assert told.hear(events.PersistDeployments((ENTRY,))) == []
    assert told.hear(events.StandingChanged(standing("planning", "computing a plan"))) == [
        ("standing", "net", "net: computing a plan", "")
    ]
    assert told.hear(events.StandingChanged(standing("planning", "computing, still"))) == []
    assert told.hear(events.StandingChanged(standing("failed", "no", "ann lacks 5 bytes"))) == [
        ("failed", "net", "there is no plan for net", "ann lacks 5 bytes")
    ]
    again = replace(ENTRY, version=Version(2, "a"))
    assert told.hear(events.PersistDeployments((again,)))[0][2] == "net was deployed again"
    aside = replace(again, fault="ends its processes")
    assert told.hear(events.PersistDeployments((aside,))) == [
        ("set aside", "net", "net is set aside on all devices", "its model ends its processes")
    ]
    gone = replace(again, deleted=True, version=Version(3, "a"))
    assert told.hear(events.PersistDeployments((gone,))) == [("undeployed", "net", "net was undeployed", "")]
    old = replace(gone, name="old")
    assert told.hear(events.PersistDeployments((gone, old))) == []


def test_each_plan_is_told_with_its_reason() -> None:
    told = Told()
    told.plans = {
        Epoch(1, 1): BOTH,
        Epoch(1, 2): replace(BOTH, devices=("ann",), predicted_latency_s=0.3),
        Epoch(1, 3): replace(BOTH, predicted_latency_s=0.1),
    }
    told.hear(members(member("ann"), member("bob")))
    assert told.hear(events.SwitchTo("net", Epoch(1, 1))) == [
        (
            "plan",
            "net",
            "net is served by ann, bob, predicted 200 ms",
            "1.5x faster than ann alone.",
        )
    ]
    told.hear(members(member("ann")))
    assert told.hear(events.SwitchTo("net", Epoch(1, 2)))[0][3] == "bob is not here any more"
    told.hear(
        members(member("ann"), member("bob")), events.StandingChanged(standing("serving", note="refined"))
    )
    assert told.hear(events.SwitchTo("net", Epoch(1, 3)))[0][3] == "refined"
    assert told.hear(events.SwitchTo("net", Epoch(9, 9))) == []


def test_a_plan_with_wrong_answers_is_told() -> None:
    told, epoch = Told(), Epoch(1, 1)
    assert told.hear(events.PlanTried("net", epoch, events.RIGHT)) == []
    ((kind, subject, _, why),) = told.hear(events.PlanTried("net", epoch, events.WRONG, "y differs"))
    assert (kind, subject, why) == ("plan refused", "net", "y differs")


@pytest.mark.parametrize(
    ("now", "here", "why"),
    [
        (("ann", "bob", "cyd"), {"ann", "bob", "cyd"}, "cyd can be used, too"),
        (("ann",), {"ann", "bob"}, "1.5x faster than ann alone."),
        (("cyd",), {"cyd"}, "ann, bob are not here any more"),
    ],
)
def test_reasons(now: tuple[str, ...], here: set[str], why: str) -> None:
    assert explain_change(BOTH, replace(BOTH, devices=now, predicted_latency_s=0.3), here) == why


def test_long_texts_of_others_are_cut() -> None:
    told = Told()
    told.hear(members(member("ann")), events.LinkDown("annann", "x" * 10_000), members())
    assert max(len(one.why) for _, one in told.log.after(0).entries) == MOST_LETTERS
