"""Boxes: what is kept of each box that was heard of, and that it stays bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.net.faults import Fault
from edgepart.agent.net.sightings import (
    BROKER,
    MDNS,
    MEMBERS,
    MOST_ADDRESSES,
    MOST_BOXES,
    MOST_KNOCKS,
    PEER,
    Box,
    Sightings,
)

A, B = "a" * 16, "b" * 16


def only(book: Sightings) -> Box:
    (box,) = book.all()
    return box


def test_what_several_ways_say_of_a_box_is_one_record() -> None:
    book = Sightings()
    book.heard(MDNS, A, ["10.0.0.1:1"], 1.0, name="pi", fingerprint="f" * 16, version="0.1.0")
    book.heard(BROKER, A, ["10.0.0.2:1"], 2.0)
    book.heard(MDNS, A, ["10.0.0.3:1"], 3.0)
    box = only(book)
    assert box.heard == ((BROKER, 2.0), (MDNS, 3.0)) and box.heard_at == 3.0
    assert (box.name, box.version, box.addresses) == ("pi", "0.1.0", ("10.0.0.3:1",))


def test_the_newest_try_of_each_address_counts() -> None:
    book = Sightings()
    book.heard(MDNS, A, ["x:1", "y:1"], 1.0)
    book.tried(A, "x:1", Fault.REFUSED, "no", 2.0)
    book.tried(A, "y:1", Fault.SILENT, "hm", 3.0)
    book.tried(A, "x:1", None, "", 4.0)
    assert [(one.address, one.fault) for one in only(book).tries] == [("x:1", None), ("y:1", Fault.SILENT)]
    book.tried(B, "z:1", Fault.REFUSED, "nobody was ever heard of there", 5.0)
    assert only(book).node == A


def test_an_address_becomes_the_box_that_answers_there() -> None:
    book = Sightings()
    book.heard(PEER, "", ["p:1", "q:1"], 1.0)
    book.tried("", "p:1", Fault.REFUSED, "no", 2.0)
    assert [(box.node, box.addresses, len(box.tries)) for box in book.all()] == [
        ("", ("p:1",), 1),
        ("", ("q:1",), 0),
    ]
    book.tried(A, "p:1", None, "", 3.0)
    known = {box.node: box for box in book.all()}
    assert set(known) == {A, ""} and known[""].addresses == ("q:1",)
    assert known[A].addresses == ("p:1",) and known[A].heard == ((PEER, 1.0),)
    assert known[A].tries[0].fault is None


def test_calls_membership_and_ends_are_kept() -> None:
    book = Sightings()
    book.called(A, "10.0.0.1:5", 1.0)
    book.member(A, "pi-aaaa", "0.1.0", ["10.0.0.1:7433"], 2.0)
    book.heard(MDNS, A, ["10.0.0.1:7433"], 2.5, name="pi")
    book.member(A, "pi-aaaa", "0.1.0", ["10.0.0.1:7433"], 3.0)
    book.ended(A, "it fell silent", 4.0)
    book.ended(B, "never known", 4.0)
    box = only(book)
    assert box.called == ("10.0.0.1:5", 1.0) and box.member_at == 3.0 and box.ended == ("it fell silent", 4.0)
    assert box.name == "pi"  # as it calls itself
    assert dict(box.heard)[MEMBERS] == 3.0


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 3 * MOST_BOXES), st.lists(st.integers(0, 50).map(str), max_size=40)),
        max_size=12,
    )
)
def test_a_flood_is_bounded_and_pushes_out_no_member(floods: list[tuple[int, list[str]]]) -> None:
    book = Sightings()
    book.member(A, "pi", "0.1.0", ["10.0.0.1:1"], 1.0)
    now = 2.0
    for start, addresses in floods:
        for number in range(start, start + MOST_BOXES // 4):
            book.heard(MDNS, f"{number:016x}", addresses, now := now + 1.0)
            for address in addresses[:3]:
                book.tried(f"{number:016x}", address, Fault.SILENT, "x" * 1000, now)
        book.knocked(f"host {start}", "y" * 1000, now)
    found = book.all()
    assert len(found) <= MOST_BOXES and A in {box.node for box in found}
    assert all(len(box.addresses) <= MOST_ADDRESSES and len(box.tries) <= MOST_ADDRESSES for box in found)
    assert all(len(one.text) <= 400 for box in found for one in box.tries)
    assert len(book.knocks()) <= MOST_KNOCKS


def test_the_same_knock_is_counted_and_the_newest_comes_first() -> None:
    book = Sightings()
    for at, (address, why) in enumerate([("h", "bad token"), ("i", "no tls"), ("h", "bad token")]):
        book.knocked(address, why, float(at))
    assert [(one.address, one.times, one.at) for one in book.knocks()] == [("h", 2, 2.0), ("i", 1, 1.0)]
    for number in range(3 * MOST_KNOCKS):
        book.knocked(str(number), "", 9.0)
    assert len(book.knocks()) == MOST_KNOCKS


def test_a_link_local_peer_is_known_by_what_was_given() -> None:
    book = Sightings()
    book.heard(PEER, "", ["[fe80::1]:7433"], 1.0)
    book.tried("", "[fe80::1%eth0]:7433", Fault.REFUSED, "no", 2.0)
    assert [one.address for one in only(book).tries] == ["[fe80::1%eth0]:7433"]
    book.tried(A, "[fe80::1%eth0]:7433", None, "", 3.0)
    assert only(book).node == A
