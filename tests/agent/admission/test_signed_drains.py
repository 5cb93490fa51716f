"""Drains as the CA's word: who signs what for whom, and what others take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.admission.signed_drains import DrainSigner, refusal
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.core.draining import Draining
from edgepart.agent.cluster.membership.own_state import OwnFacts
from edgepart.agent.cluster.state.drains import DrainMap, is_signed, sign
from edgepart.agent.cluster.state.events import (
    DrainRequested,
    LinkUp,
    Member,
    MemberDistrusted,
    MessageReceived,
    PersistDrains,
    RemovedFromCluster,
    SendMessage,
)
from edgepart.agent.security import certificates, identity
from edgepart.agent.wire.control import (
    ALIVE,
    DRAINED,
    DRAINS,
    IN,
    REMOVED,
    REMOVING,
    Drain,
    Drains,
    Hello,
    Version,
)
from edgepart.agent.wire.queries import Signed, WantSigned
from edgepart.planner.errors import Unavailable, UsageError
from tests.agent.security.test_identity import NOW, admit

KEY, OTHER = certificates.new_key(), certificates.new_key()
CA = certificates.new_ca(KEY, NOW)
A, B, C, D = (f"{n:016x}" for n in range(1, 5))
VERSION = f"0.1.0+{DRAINS}"
ENTRY = Drain(B, "b", REMOVING, Version(3, C))


def member(node: str, *, holds: bool = False) -> Member:
    return Member(node, node[-1], "boot", ALIVE, (), "", VERSION + (".issuer" if holds else ""))


MEMBERS = (member(A, holds=True), member(B), member(C), member(D))


def test_a_removal_has_the_signature_of_the_wish_for_it() -> None:
    signed = sign(ENTRY, CA, KEY)
    assert is_signed(signed, CA) and is_signed(replace(signed, state=REMOVED), CA)
    assert not is_signed(ENTRY, CA) and not is_signed(sign(ENTRY, CA, OTHER), CA)
    assert not is_signed(signed, certificates.new_ca(OTHER, NOW))


@given(
    st.sampled_from(
        [
            {"node": A},
            {"name": "x"},
            {"state": IN},
            {"state": DRAINED},
            {"version": Version(4, C)},
            {"version": Version(3, D)},
        ]
    )
)
def test_a_signature_fits_no_other_wish(change: dict[str, Any]) -> None:
    assert not is_signed(replace(sign(ENTRY, CA, KEY), **change), CA)


def test_a_wish_that_was_taken_back_cannot_be_carried_out_any_more() -> None:
    """A member keeps the signed removal, and tells it as done after the user has changed his mind."""
    back = replace(ENTRY, state=IN, version=Version(4, A))
    for order in ((ENTRY, back, replace(ENTRY, state=REMOVED)), (replace(ENTRY, state=REMOVED), back)):
        known = DrainMap()
        for entry in order:
            known.merge([entry])
        assert known.state(B) == IN


def test_what_the_ca_did_not_sign_is_left_out_and_its_teller_is_named() -> None:
    core = Core(OwnFacts(A, "a", "boot", 1), 0.0, genuine=lambda entry: is_signed(entry, CA))
    core.handle(LinkUp(C), 0.0)
    core.handle(MessageReceived(C, Hello(C, "c", "boot", 1, (), "", VERSION)), 0.0)
    forged = [Drain(node, "x", REMOVED, Version(2**52, C), b"s" * 70) for node in (A, B)]
    good = sign(replace(ENTRY, node=D, state=DRAINED), CA, KEY)
    effects = core.handle(MessageReceived(C, Drains((*forged, good))), 0.1)
    assert [
        type(e) for e in effects if isinstance(e, MemberDistrusted | RemovedFromCluster | PersistDrains)
    ] == [
        MemberDistrusted,
        PersistDrains,
    ]
    assert next(e.node for e in effects if isinstance(e, MemberDistrusted)) == C
    assert list(core.draining.map) == [good]
    with pytest.raises(UsageError, match="elsewhere meanwhile"):
        core.handle(DrainRequested(forged[1]), 0.2)


def test_what_an_earlier_version_left_on_the_disk_counts_here_and_is_told_to_nobody() -> None:
    draining = Draining(A, [replace(ENTRY, state=DRAINED)], lambda entry: is_signed(entry, CA))
    assert draining.map.state(B) == DRAINED
    assert draining.greet(member(C)) == [] and draining.remind(MEMBERS) == []


def test_who_is_out_for_what_was_taken_back_says_so_and_is_in_again() -> None:
    """One side of a split carried a removal out, the other one took it back; the newer word wins on both."""
    out, back = replace(ENTRY, state=REMOVED), replace(ENTRY, state=IN, version=Version(4, A))
    one, other = Draining(A, [out]), Draining(B, [back])
    (reply,) = other.merge([out], (), teller=A)
    assert reply == SendMessage(A, Drains((back,))) and other.map.state(B) == IN
    one.merge([back], (), teller=B)
    assert one.map.state(B) == IN and not one.is_removed(B)


def wish(node: str, state: str, counter: int = 1, asker: str = C) -> Drain:
    return Drain(node, node[-1], state, Version(counter, asker))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (wish(B, DRAINED), ""),
        (wish(B, REMOVING), ""),
        (wish(A, DRAINED), ""),
        (wish(D, IN, 2), ""),
        (wish(A, REMOVING), "holds the CA's key"),
        (wish(B, DRAINED, asker=D), "another device's name"),
        (replace(wish(B, DRAINED), signature=b"s"), "another device's name"),
        (wish(B, REMOVED), "no user asks"),
        (wish(B, DRAINED, 2), "different states"),
        (wish(B, DRAINED, 2**52), "different states"),
    ],
)
def test_what_is_signed_for_another_device(entry: Drain, why: str) -> None:
    draining = Draining(A, [wish(D, DRAINED)])
    found = refusal(entry, C, A, draining, MEMBERS, {})
    assert why in found and bool(why) == bool(found)


def test_half_of_the_devices_are_left_whatever_one_of_them_asks_for() -> None:
    draining = Draining(A, [wish(D, DRAINED)])
    assert refusal(wish(B, REMOVING), C, A, draining, MEMBERS, {}) == ""
    rest = (MEMBERS[0], MEMBERS[2], MEMBERS[3])
    found = refusal(wish(C, DRAINED), C, A, draining, rest, {B: 0.0})
    assert "more than half" in found, "those that were removed lately count"


class Wire:
    """Two agents; what one asks the other answers at once."""

    def __init__(self, tmp_path: Path) -> None:
        self.first = identity.create_cluster(tmp_path / "0", NOW)
        self.second = admit(self.first, tmp_path / "1")
        here = (self.first, self.second)
        rows = tuple(replace(member(me.node_id, holds=me.is_issuer), name=me.node_id) for me in here)
        self.members: tuple[Member, ...] = rows
        self.map = Draining(self.first.node_id)
        self.holder = DrainSigner(self.first, self.nobody, lambda: self)  # type: ignore[arg-type, return-value]
        self.asker = DrainSigner(self.second, self.ask, lambda: self)  # type: ignore[arg-type, return-value]
        self.entry = Drain(self.first.node_id, "a", DRAINED, Version(1, self.second.node_id))

    @property
    def membership(self) -> Any:
        wire = self

        class Membership:
            def members(self) -> tuple[Member, ...]:
                return wire.members

        return Membership()

    @property
    def draining(self) -> Draining:
        return self.map

    async def ask(self, node: str, question: WantSigned, timeout_s: float) -> tuple[Signed, memoryview]:
        assert node == self.first.node_id
        return await self.holder.answer(self.second.node_id, question), memoryview(b"")

    async def nobody(self, node: str, question: WantSigned, timeout_s: float) -> tuple[Signed, memoryview]:
        raise Unavailable("there is no link")


def test_a_device_without_the_key_has_one_sign_that_holds_it(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    signed = asyncio.run(wire.asker.seal(wire.entry))
    assert is_signed(signed, wire.first.ca) and replace(signed, signature=b"") == wire.entry
    with pytest.raises(UsageError, match="holds the CA's key"):
        asyncio.run(wire.asker.seal(replace(wire.entry, state=REMOVING)))
    assert wire.asker.genuine(asyncio.run(wire.holder.seal(replace(wire.entry, state=REMOVING))))


def test_where_nobody_holds_the_key_that_is_said(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    (wire.first.directory / "ca.key").unlink()
    with pytest.raises(Unavailable, match="takes the CA's key"):
        asyncio.run(wire.asker.seal(wire.entry))
