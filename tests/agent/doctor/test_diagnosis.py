"""Diagnosis: from what is known of a box to what a person is told."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.doctor.diagnosis import (
    GONE,
    MEMBER,
    NEW,
    OTHER_CLUSTER,
    OUT,
    MembershipEntry,
    OwnAgent,
    ServedDeployment,
    diagnose,
    find_unused,
)
from edgepart.agent.doctor.remedies import FAULT_ORDER, REMEDIES
from edgepart.agent.net.faults import Fault
from edgepart.agent.net.sightings import BROKER, MDNS, PEER, Box, Try
from edgepart.agent.wire.control import ALIVE, DEAD, LEAVING, LEFT, SUSPECT, Starved

OURS, THEIRS = "f" * 16, "e" * 16
ME = OwnAgent("0" * 16, "pi-a", OURS * 4, "0.1.0+traces", 7433)
NOW = 10_000.0
BOX = Box("1" * 16, "pi-b", OURS, "0.3.0", ("10.0.0.2:7433",), ((MDNS, NOW - 2),))


def tried(*faults: Fault | None, box: Box = BOX, at: float = NOW - 1, text: str = "why") -> Box:
    return replace(box, tries=tuple(Try(f"10.0.0.{n}:7433", f, text, at) for n, f in enumerate(faults, 2)))


@pytest.mark.parametrize(
    ("seat", "state", "why"),
    [
        (MembershipEntry(ALIVE, 9.0, measured=True, memory_bytes=1e9), MEMBER, ""),
        (MembershipEntry(ALIVE, 9.0), MEMBER, "being measured"),
        (MembershipEntry(ALIVE, 9.0, measured=True, memory_bytes=3e6), MEMBER, "only 3 MB"),
        (MembershipEntry(LEAVING, 9.0), LEAVING, "it is stopping"),
        (
            MembershipEntry(ALIVE, 9.0, measured=True, starved=Starved(0.62)),
            MEMBER,
            "waited 62 % of the time for a CPU",
        ),
        (MembershipEntry(SUSPECT, 9.0), SUSPECT, "9 s ago"),
        (MembershipEntry(SUSPECT, 9.0, starved=Starved(0.62)), SUSPECT, "waited 62 % of the time for a CPU"),
        (MembershipEntry("quarantined", 30.0), "quarantined", "30 s ago"),
    ],
)
def test_what_membership_says_counts_most(seat: MembershipEntry, state: str, why: str) -> None:
    for box in (BOX, tried(Fault.SILENT)):
        found = diagnose(box, seat, ME, NOW)
        assert found.state == state and why in found.why


@pytest.mark.parametrize(
    ("fault", "why", "do"),
    [
        (
            Fault.REFUSED,
            r"announced \(mDNS 2 s ago\), but cannot be connected to: 10.0.0.2:7433 refuses",
            "ufw",
        ),
        (Fault.SILENT, "does not answer", "let TCP port 7433 in"),
        (Fault.UNREACHABLE, "no way to 10.0.0.2:7433", "--peer"),
        (Fault.UNKNOWN_NAME, "name in 10.0.0.2:7433", "getent"),
        (Fault.NO_TLS, "no agent of this kind: why", "port"),
        (Fault.OTHER_CLUSTER, "another cluster", "edgepart join"),
        (Fault.NOT_YET_VALID, "not valid yet", "timedatectl"),
        (Fault.EXPIRED, "expired", "clocks"),
        (Fault.OURS_EXPIRED, "by its clock", "clocks"),
        (Fault.OURS_NOT_TAKEN, "does not take", "join anew"),
        (Fault.REVOKED, "put out", "join anew"),
        (Fault.OURS_REVOKED, "this device was put out", "join anew"),
        (Fault.OTHER_NODE, "another member answers", "--peer"),
        (Fault.ITSELF, "is this agent itself", "--peer"),
        (Fault.NO_WAY_BACK, "does not reach this device", "port 7433"),
        (Fault.TURNED_AWAY, "refuses the link: why", "do what it says"),
        (Fault.PROTOCOL, "it runs 0.3.0, this device 0.1.0", "upgrade"),
        (Fault.CLOSED, "without a word", "log"),
    ],
)
def test_each_fault_has_its_reason_and_its_remedy(fault: Fault, why: str, do: str) -> None:
    found = diagnose(tried(fault), None, ME, NOW)
    assert found.state == OUT
    assert re.search(why, found.why) and do in found.do


def test_no_fault_is_without_a_reason() -> None:
    assert set(REMEDIES) == set(Fault)
    assert set(FAULT_ORDER) == {*Fault, None}


@given(st.lists(st.sampled_from([None, *Fault]), min_size=1, max_size=4), st.booleans())
def test_the_address_that_came_furthest_decides(faults: list[Fault | None], backwards: bool) -> None:
    """Whatever the order, and whatever others say; a link that was made counts most."""
    shown = [*reversed(faults)] if backwards else faults
    found = diagnose(tried(*shown), None, ME, NOW)
    best = min(faults, key=FAULT_ORDER.index)
    if best is None:
        assert found.state == NEW
    else:
        alone = diagnose(replace(tried(best), tries=(Try("A", best, "why", NOW - 1),)), None, ME, NOW)
        # The same reason, but for which address it names.
        head = REMEDIES[best][0].split("{")[0]
        assert head in found.why and head in alone.why


def test_a_wall_hides_behind_the_bridges_of_containers() -> None:
    """172.17.0.1 is ours, too: what answers there is no reason."""
    box = replace(
        BOX,
        tries=(
            Try("172.17.0.1:7433", Fault.ITSELF, "is this agent itself", NOW - 1),
            Try("10.0.0.2:7433", Fault.SILENT, "does not answer", NOW - 2),
        ),
    )
    found = diagnose(box, None, ME, NOW)
    assert "10.0.0.2:7433 does not answer" in found.why


def test_one_way_walls_are_told_from_boxes_that_are_gone() -> None:
    calling = replace(tried(Fault.SILENT), called=("10.0.0.2:50000", NOW - 5))
    assert "it reaches this device, but not the other way" in diagnose(calling, None, ME, NOW).why
    dead = replace(calling, ended=("it fell silent", NOW - 3))
    assert "it is announced" in diagnose(dead, None, ME, NOW).why
    quiet = replace(tried(Fault.SILENT), heard=((MDNS, NOW - 500),), member_at=NOW - 480)
    found = diagnose(quiet, MembershipEntry(DEAD, 480.0), ME, NOW)
    assert found.state == GONE and "it was a member until 8 min ago" in found.why


def test_other_clusters_are_left_alone_and_so_is_who_left() -> None:
    theirs = replace(BOX, fingerprint=THEIRS)
    assert diagnose(theirs, None, ME, NOW).state == OTHER_CLUSTER
    nobody = replace(ME, node="", fingerprint="", running=False)
    assert "edgepart join TOKEN" in diagnose(theirs, None, nobody, NOW).do
    gone = diagnose(replace(BOX, heard=((MDNS, NOW - 50),)), MembershipEntry(LEFT, 40.0), ME, NOW)
    assert gone.state == LEFT and "40 s ago" in gone.why
    back = diagnose(tried(Fault.REFUSED), MembershipEntry(LEFT, 40.0), ME, NOW)
    assert back.state == OUT


def test_who_was_not_tried() -> None:
    assert diagnose(BOX, None, ME, NOW).state == NEW
    old = replace(BOX, heard=((MDNS, NOW - 4000), (PEER, NOW - 1)))
    found = diagnose(old, None, ME, NOW)
    assert found.state == GONE and "67 min ago" in found.why
    assert "never announced itself" in diagnose(replace(BOX, heard=((PEER, NOW),)), None, ME, NOW).why
    broker = replace(BOX, addresses=(f"mqtt:{BOX.node}",), heard=((BROKER, NOW - 1),))
    assert "same --transport" in diagnose(broker, None, ME, NOW).do
    assert diagnose(broker, None, replace(ME, through_broker=True), NOW).state == NEW


def test_links_that_come_and_go_say_why() -> None:
    flapping = replace(tried(None), ended=("unknown kind of message 'Blessing'", NOW - 20))
    found = diagnose(flapping, None, ME, NOW)
    assert found.state == OUT and "Blessing" in found.why
    without = diagnose(tried(None), None, replace(ME, running=False), NOW)
    assert "edgepart agent" in without.do


def test_old_tries_say_nothing_of_today() -> None:
    box = replace(
        BOX,
        tries=(
            Try("10.0.0.9:7433", Fault.SILENT, "does not answer", NOW - 1),
            Try("10.0.0.2:7433", Fault.REVOKED, "revoked", NOW - 5000),
        ),
    )
    assert "10.0.0.9" in diagnose(box, None, ME, NOW).why


def test_members_that_plans_do_without() -> None:
    served = [
        ServedDeployment("photos", ("pi-a",), (), "every split loses more to its links than it gains"),
        ServedDeployment("texts", ("pi-a", "pi-b"), (), "split"),
        ServedDeployment("small", ("pi-a",), ("pi-a",), "one device"),
        ServedDeployment("large", (), (), "does not fit: pi-a lacks 5 bytes"),
    ]
    seat = MembershipEntry(ALIVE, 1.0, measured=True)
    found = dict(find_unused("pi-b", seat, served))
    assert set(found) == {"photos", "small", "large"}
    assert "would not be faster with it. every split" in found["photos"]
    assert "--devices" in found["small"] and "lacks 5 bytes" in found["large"]
    assert (
        dict(find_unused("pi-b", replace(seat, measured=False), served))["photos"] == "it is not measured yet"
    )
