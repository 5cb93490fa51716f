"""Who is in: one core against a hand-made other side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.cluster.membership.failure_detector import DetectorTiming
from edgepart.agent.cluster.membership.membership import Membership
from edgepart.agent.cluster.membership.own_state import OwnFacts
from edgepart.agent.cluster.membership.redial import MAX_ADDRESSES, MAX_TARGETS
from edgepart.agent.cluster.membership.roster import make_unique_names
from edgepart.agent.cluster.membership.suspects import MAX_ASKED, choose_asked
from edgepart.agent.cluster.state.events import (
    AddressesChanged,
    Connect,
    ConnectFailed,
    DeviceSeen,
    Disconnect,
    DoorsOpened,
    Effect,
    LinkDown,
    LinkUp,
    MembersChanged,
    MessageReceived,
    PersistIncarnation,
    SendMessage,
    StarvationSeen,
)
from edgepart.agent.wire.control import (
    ALIVE,
    DEAD,
    DOORS,
    LEFT,
    STARVES,
    SUSPECT,
    AskAbout,
    Doors,
    Goodbye,
    Heartbeat,
    Hello,
    Opinion,
    Sighting,
    Starved,
    View,
)

A, B, C = "000000000000000a", "000000000000000b", "000000000000000c"


def hello(node: str, boot: str = "one", incarnation: int = 1) -> Hello:
    return Hello(node, f"box {node[-1]}", boot, incarnation, (f"{node}:1",), "", "0")


def beat(boot: str = "one") -> Heartbeat:
    return Heartbeat(boot, 1, 0, "", 0)


def meet(core: Membership, node: str, now: float) -> None:
    core.handle(LinkUp(node), now)
    core.handle(MessageReceived(node, hello(node)), now)


@pytest.fixture
def core() -> Membership:
    """A, which has met B and C at 0."""
    core = Membership(OwnFacts(A, "box a", "boot", 1), 0.0)
    meet(core, B, 0.0)
    meet(core, C, 0.0)
    assert core.alive() == [B, C]
    core.wake(0.01)
    return core


def quiet(core: Membership, start: float, end: float, *speaking: str) -> list[Effect]:
    """Time passes, only some speak."""
    effects: list[Effect] = []
    while (at := core.wake_at()) <= end:
        at = max(at, start)
        effects += core.wake(at)
        for node in speaking:
            effects += core.handle(MessageReceived(node, beat()), at)
    return effects


def test_a_closed_link_makes_suspect_and_another_view_confirms(core: Membership) -> None:
    effects = core.handle(LinkDown(B, "eof"), 0.1)
    assert SendMessage(C, AskAbout(B)) in effects
    assert core.peers[B].status == SUSPECT
    effects = core.handle(MessageReceived(C, Opinion(B, SUSPECT)), 0.11)
    assert Disconnect(B, "it is dead") in effects
    assert [m.node for e in effects if isinstance(e, MembersChanged) for m in e.members] == [A, C]


def test_who_is_vouched_for_stays(core: Membership) -> None:
    core.handle(LinkDown(B), 0.1)
    for tenth in range(1, 40):
        core.handle(MessageReceived(C, Opinion(B, ALIVE)), 0.1 + tenth / 10)
    assert core.peers[B].status == SUSPECT
    assert core.broken_links() == {(A, B)}


def test_who_vouched_and_is_asked_no_more_keeps_nobody(core: Membership) -> None:
    others = [f"{number:016x}" for number in range(100, 120)]
    for node in others:
        meet(core, node, 0.0)

    def asked(effects: list[Effect]) -> list[str]:
        return [e.node for e in effects if isinstance(e, SendMessage) and e.message == AskAbout(B)]

    vouches = asked(core.handle(LinkDown(B), 0.1))[-1]
    core.handle(MessageReceived(vouches, Opinion(B, ALIVE)), 0.11)
    now = 0.11
    for node in [C, *(node for node in others if node != vouches)]:
        now += 0.001
        core.handle(MessageReceived(node, Goodbye(1)), now)
        if vouches not in choose_asked(A, B, core.alive()):
            break
    speaking = core.alive()
    assert vouches in speaking
    assert len(speaking) > MAX_ASKED
    quiet(core, 0.2, 1.0, *speaking)
    assert core.peers[B].status == DEAD


def test_newcomers_that_come_together_are_told_the_same_view_and_later_ones_a_new_one(
    core: Membership,
) -> None:
    def told(node: str, now: float) -> View:
        core.handle(LinkUp(node), now)
        effects = core.handle(MessageReceived(node, hello(node)), now)
        return next(e.message for e in effects if isinstance(e, SendMessage) and isinstance(e.message, View))

    first, at_once, later = told("d" * 16, 1.0), told("e" * 16, 1.001), told("f" * 16, 1.5)
    assert at_once is first
    assert later.reached >= {"d" * 16, "e" * 16}


def test_a_process_whose_hello_got_lost_is_asked_for_it(core: Membership) -> None:
    effects = core.handle(MessageReceived(B, beat("two")), 0.1)
    assert [e.node for e in effects if isinstance(e, SendMessage) and isinstance(e.message, Hello)] == [B]
    core.handle(MessageReceived(B, hello(B, "two", 2)), 0.11)
    assert {m.node: m.boot for m in core.members()}[B] == "two"


def test_a_member_that_says_hello_from_elsewhere_is_shown_there(core: Membership) -> None:
    moved = replace(hello(B), listen=(f"{B}:2",), http="http://b:2", reply=True)
    effects = core.handle(MessageReceived(B, moved), 0.1)
    told = [m.listen for e in effects if isinstance(e, MembersChanged) for m in e.members if m.node == B]
    assert told == [moved.listen]


def test_a_link_that_returns_clears_the_suspicion(core: Membership) -> None:
    core.handle(LinkDown(B), 0.1)
    effects = core.wake(0.11)
    assert core.handle(LinkUp(B), 0.15)
    core.handle(MessageReceived(B, replace(hello(B), reply=True)), 0.16)
    assert core.alive() == [B, C]
    assert not [e for e in effects if isinstance(e, MembersChanged) and len(e.members) < 3]


def test_the_silent_one_is_out_and_the_speaking_one_is_not(core: Membership) -> None:
    quiet(core, 0.0, 2.6, C)
    assert (core.peers[B].status, core.peers[C].status) == (DEAD, ALIVE)


def test_who_slept_accuses_nobody(core: Membership) -> None:
    effects = core.wake(60.0)
    assert core.alive() == [B, C]
    assert not [e for e in effects if isinstance(e, MembersChanged | Disconnect)]
    quiet(core, 60.0, 64.9)  # but does so if they are really gone, a bit later than usual
    assert core.alive() == []


def test_an_opinion_is_about_what_was_heard_just_now(core: Membership) -> None:
    def asked(now: float) -> Effect:
        quiet(core, 0.0, now, C)
        return core.handle(MessageReceived(C, AskAbout(B)), now)[0]

    assert asked(1.0) == SendMessage(C, Opinion(B, ALIVE))
    assert asked(1.4) == SendMessage(C, Opinion(B, SUSPECT))
    core.handle(MessageReceived(B, Goodbye(1)), 1.5)
    assert asked(1.5) == SendMessage(C, Opinion(B, LEFT))


def test_one_that_left_is_not_dialled_until_it_starts_again(core: Membership) -> None:
    effects = core.handle(MessageReceived(B, Goodbye(1)), 0.1)
    core.handle(LinkDown(B), 0.2)
    effects += quiet(core, 0.2, 30.0, C)
    assert not [e for e in effects if isinstance(e, Connect)]
    core.handle(MessageReceived(B, hello(B)), 30.0)  # late, of the process that left
    assert core.alive() == [C]
    core.handle(LinkUp(B), 31.0)
    core.handle(MessageReceived(B, hello(B, "two", 2)), 31.0)
    assert core.alive() == [B, C]


def test_it_refutes_its_own_death(core: Membership) -> None:
    claim = View((Sighting(A, 1, DEAD, "box a", ()),))
    assert PersistIncarnation(2) in core.handle(MessageReceived(B, claim), 0.5)
    assert PersistIncarnation(2) not in core.handle(MessageReceived(B, claim), 0.6)
    assert core.facts.incarnation == 2
    lost_disk = View((Sighting(A, 9, ALIVE, "box a", ()),))
    assert PersistIncarnation(10) in core.handle(MessageReceived(B, lost_disk), 0.7)


def test_a_claim_about_one_that_it_hears_itself_changes_nothing(core: Membership) -> None:
    core.handle(MessageReceived(B, View((Sighting(C, 1, DEAD, "box c", ()),))), 0.5)
    assert core.alive() == [B, C]
    assert core.broken_links() == {(B, C)}


def test_another_boot_is_another_process(core: Membership) -> None:
    effects = core.handle(MessageReceived(B, hello(B, "two", 2)), 0.5)
    (change,) = [e for e in effects if isinstance(e, MembersChanged)]
    assert [member.boot for member in change.members] == ["boot", "two", "one"]
    quiet(core, 0.5, 2.4, C)
    core.handle(MessageReceived(B, beat("one")), 2.4)  # from before
    quiet(core, 2.4, 3.2, C)
    assert core.peers[B].status == DEAD


def test_nobody_is_in_without_a_hello_of_its_own() -> None:
    core = Membership(OwnFacts(A, "box a", "boot", 1), 0.0)
    core.handle(LinkUp(B), 0.0)
    core.handle(MessageReceived(B, beat()), 0.1)
    core.handle(MessageReceived(B, View((Sighting(C, 1, ALIVE, "c", ("c:1",)),))), 0.1)
    assert core.alive() == []
    effects = core.handle(MessageReceived(B, hello(C)), 0.2)
    assert [type(effect) for effect in effects if effect not in core.wake(0.2)] == [Disconnect]
    assert core.alive() == []
    assert Disconnect(B, "it did not say Hello") in quiet(core, 0.2, 3.0)


def test_others_tell_whom_to_dial(core: Membership) -> None:
    effects = core.handle(MessageReceived(B, View((Sighting("d" * 16, 1, ALIVE, "d", ("d:1",)),))), 0.5)
    assert Connect("d" * 16, ("d:1",)) in effects
    effects = core.handle(MessageReceived(B, View((Sighting("e" * 16, 1, DEAD, "e", ("e:1",)),))), 0.6)
    assert not [effect for effect in effects if isinstance(effect, Connect)]


def test_the_dead_are_dialled_for_a_while_and_then_forgotten() -> None:
    timing = DetectorTiming(forget_s=50.0)
    core = Membership(
        OwnFacts(A, "box a", "boot", 1), 0.0, replace(timing, dial=replace(timing.dial, keep_s=60.0))
    )
    meet(core, B, 0.0)
    core.handle(LinkDown(B), 0.1)
    dialled: list[float] = []
    at = 0.1
    while at < 120.0:
        at = core.wake_at()
        if any(isinstance(effect, Connect) for effect in core.wake(at)):
            dialled.append(at)
            core.handle(ConnectFailed(B, (f"{B}:1",)), at)
    assert dialled[0] < 0.5 and 20 < len(dialled) < 80
    assert dialled[-1] < 70
    assert core.peers == {}


def test_a_static_peer_is_dialled_for_ever_and_its_own_address_is_not() -> None:
    core = Membership(OwnFacts(A, "box a", "boot", 1), 0.0)
    effects = core.handle(DeviceSeen("", ("p:1", "me:1"), lasting=True), 0.0)
    assert {e for e in effects if isinstance(e, Connect)} == {Connect("", ("p:1",)), Connect("", ("me:1",))}
    assert Disconnect(A, "this is our own address") in core.handle(LinkUp(A, via="me:1"), 0.1)
    core.handle(ConnectFailed("", ("p:1",)), 0.1)
    late = [e for e in quiet(core, 0.1, 2000.0) if isinstance(e, Connect)]
    assert len(late) > 100 and set(late) == {Connect("", ("p:1",))}


def test_hints_from_anybody_take_bounded_memory(core: Membership) -> None:
    for n in range(2 * MAX_TARGETS):
        core.handle(DeviceSeen(f"{n:016x}", tuple(f"h{k}:1" for k in range(100))), 1.0)
    targets = core._dialing._targets
    assert len(targets) <= MAX_TARGETS
    assert max(len(target.addresses) for target in targets.values()) <= MAX_ADDRESSES
    assert core.alive() == [B, C]


named = st.dictionaries(
    st.integers(0, 2**64 - 1).map(lambda n: f"{n:016x}"), st.sampled_from(["pi", "nas", "pi-0000", ""])
)


@given(named, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_names_are_unique_and_the_same_for_everybody(nodes: dict[str, str], rng: object) -> None:
    names = make_unique_names(nodes.items())
    assert names.keys() == nodes.keys()
    assert len(set(names.values())) == len(names)
    assert names == make_unique_names(reversed(list(nodes.items())))
    for node, name in nodes.items():
        if list(nodes.values()).count(name) == 1 and name and not name.startswith("pi"):
            assert names[node] == name


def test_times_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"heartbeat_s < fresh_s < silence\.least_s"):
        DetectorTiming(heartbeat_s=3.0)


def test_members_are_told_of_a_new_address_and_go_by_it(core: Membership) -> None:
    effects = core.handle(AddressesChanged(("new:1",), "http://new:2"), 0.5)
    told = [e.message for e in effects if isinstance(e, SendMessage) and isinstance(e.message, Hello)]
    assert told and all((h.listen, h.http, h.reply) == (("new:1",), "http://new:2", True) for h in told)
    assert any(member.listen == ("new:1",) for member in core.members())
    moved = replace(hello(B), listen=("b-new:1",), reply=True)
    core.handle(MessageReceived(B, moved), 0.6)
    effects = core.handle(LinkDown(B), 0.7)
    effects += quiet(core, 0.7, 2.0)
    assert {e.addresses for e in effects if isinstance(e, Connect) and e.node == B} == {("b-new:1",)}


def test_members_that_understand_it_are_told_of_the_grpc_server_and_it_is_each_process_s_own() -> None:
    core = Membership(OwnFacts(A, "box a", "boot", 1), 0.0)
    knowing = replace(hello(B), version=f"0.1+{DOORS}")
    core.handle(LinkUp(B), 0.0)
    core.handle(MessageReceived(B, knowing), 0.0)
    meet(core, C, 0.0)  # of an earlier release
    assert [member.grpc for member in core.members()] == [None, None, None]
    doors = Doors("boot", "h:8434")
    effects = core.handle(DoorsOpened("h:8434"), 0.1)
    told = [e for e in effects if isinstance(e, SendMessage) and isinstance(e.message, Doors)]
    assert told == [SendMessage(B, doors)]
    again = core.handle(MessageReceived(B, replace(knowing, boot="two")), 0.2)
    assert SendMessage(B, doors) in again, "a process that comes later is told, too"
    core.handle(MessageReceived(B, Doors("two", "")), 0.3)
    assert [member.grpc for member in core.members()] == ["h:8434", "", None]
    core.handle(MessageReceived(B, replace(knowing, boot="three")), 0.4)
    assert [member.grpc for member in core.members()] == ["h:8434", None, None]
    core.handle(MessageReceived(B, Doors("three", "b:1")), 0.5)
    assert [member.grpc for member in core.members()] == ["h:8434", "b:1", None]


def test_the_newest_addresses_are_dialled_first() -> None:
    core = Membership(OwnFacts(A, "box a", "boot", 1), 0.0)
    first = core.handle(DeviceSeen(B, ("old:1",)), 0.0)
    assert Connect(B, ("old:1",)) in first
    core.handle(ConnectFailed(B, ("old:1",)), 0.1)
    dialled = [e.addresses for e in core.handle(DeviceSeen(B, ("new:1",)), 0.2) if isinstance(e, Connect)]
    assert dialled == [("new:1", "old:1")]
    core.handle(ConnectFailed(B, ("new:1", "old:1")), 0.3)
    core.handle(DeviceSeen(B, ("old:1",)), 0.35)  # it went back
    dialled = [e.addresses for e in quiet(core, 0.35, 3.0) if isinstance(e, Connect)]
    assert dialled and dialled[0] == ("old:1", "new:1")


def test_news_of_the_leader_is_told_at_once(core: Membership) -> None:
    core.wake(0.1)
    core.announce(A, 7, 7, 0.11)
    said = Heartbeat("boot", 1, 7, A, 7)
    assert core.wake(0.11) == [SendMessage(B, said), SendMessage(C, said)]
    assert core.wake(0.12) == []


def test_what_is_known_is_heard_without_anything_else_and_what_is_not_is_left_to_be_handled(
    core: Membership,
) -> None:
    core.wake(0.1)
    view = View(
        (
            Sighting(B, 1, ALIVE, "box b", ("b:1",)),
            Sighting(A, 1, ALIVE, "box a", ()),
            Sighting(C, 1, ALIVE, "", ()),
        )
    )
    assert core.sees(B, view, 0.2) and core.peers[B].heard_at == 0.2
    assert core.opines(C, B, 0.2) == Opinion(B, ALIVE)
    for news in (
        Sighting(A, 2, ALIVE, "box a", ()),
        Sighting(A, 1, DEAD, "box a", ()),
        Sighting("000000000000000d", 1, ALIVE, "box d", ("d:1",)),
    ):
        assert not core.sees(B, View((*view.sightings[:1], news)), 0.3)
    core.handle(LinkDown(C), 0.3)
    assert not core.sees(B, View((*view.sightings[:1], Sighting(C, 1, DEAD, "", ()))), 0.3)
    assert core.peers[B].heard_at == 0.2


# Devices that are starved of the CPU

BUSY = Starved(0.8)


def test_one_that_said_that_it_is_starved_may_be_silent_for_longer(core: Membership) -> None:
    core.handle(MessageReceived(B, BUSY), 0.5)
    assert core.starvation_of(B, 1.0) == BUSY
    quiet(core, 0.5, 6.4, C)
    assert core.alive() == [B, C]
    quiet(core, 6.4, 7.5, C)
    assert core.peers[B].status == DEAD  # it may be dead all the same
    assert core.peers[B].starvation_at(core.peers[B].since) == BUSY  # and people are told of the other reason


@pytest.mark.parametrize("over", ["said", "forgotten"])
def test_one_that_is_starved_no_more_is_as_any_other(core: Membership, over: str) -> None:
    core.handle(MessageReceived(B, BUSY), 0.5)
    if over == "said":
        core.handle(MessageReceived(B, Starved()), 1.0)
        quiet(core, 1.0, 3.6, C)
    else:
        end = 0.5 + core.timing.starved_s
        quiet(core, 0.5, end, B, C)
        assert core.alive() == [B, C]
        quiet(core, end, end + 4.0, C)
    assert core.starvation_of(B, 40.0) == Starved()
    assert core.peers[B].status == DEAD


def test_nobody_is_starved_for_a_moment_for_ever(core: Membership) -> None:
    step_s = core.timing.starved_s / 2
    found = []
    for n in range(30):
        core.handle(MessageReceived(B, BUSY), n * step_s)
        found.append(core.starvation_of(B, n * step_s).lasting)
    enough = round(core.timing.starved_most_s / step_s)
    assert found == [False] * enough + [True] * (30 - enough)


def test_another_process_is_not_starved_because_the_one_before_was(core: Membership) -> None:
    core.handle(MessageReceived(B, BUSY), 0.5)
    core.handle(MessageReceived(B, hello(B, "two")), 0.6)
    assert core.starvation_of(B, 0.7) == Starved()


def test_a_device_that_is_starved_suspects_nobody_early(core: Membership) -> None:
    core.handle(StarvationSeen(BUSY), 0.5)
    assert core.starvation_of(A, 0.5) == BUSY
    quiet(core, 0.5, 5.0)
    assert core.alive() == [B, C]
    quiet(core, 5.0, 8.0)
    assert core.alive() == []


def test_who_understands_it_is_told_that_this_device_is_starved() -> None:
    core = Membership(OwnFacts(A, "box a", "boot", 1), 0.0)

    def told(effects: list[Effect]) -> list[tuple[str, object]]:
        return [
            (e.node, e.message)
            for e in effects
            if isinstance(e, SendMessage) and isinstance(e.message, Starved)
        ]

    def join(node: str, version: str, now: float) -> list[Effect]:
        core.handle(LinkUp(node), now)
        return core.handle(MessageReceived(node, replace(hello(node), version=version)), now)

    join(B, f"0.1.0+traces.{STARVES}", 0.0)
    join(C, "0.1.0+traces", 0.0)
    assert told(core.handle(StarvationSeen(BUSY), 0.5)) == [(B, BUSY)]
    assert told(list(core.remind())) == [(B, BUSY)]
    late = "000000000000000d"
    assert told(join(late, f"0.1.0+{STARVES}", 0.6)) == [(late, BUSY)]
    assert told(core.handle(StarvationSeen(Starved()), 0.7)) == [(B, Starved()), (late, Starved())]
    assert told(list(core.remind())) == []
