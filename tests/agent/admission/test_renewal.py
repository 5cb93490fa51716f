"""The warden, with the wire in the test's hand: who is told the charter, who is put out, how certificates are renewed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.admission.renewal import CertificateRenewal
from edgepart.agent.cluster.state.events import Member
from edgepart.agent.security import ca_key_file, certificates, charter, charter_file, identity
from edgepart.agent.security.charter import Charter
from edgepart.agent.wire.queries import Renewed, WantCertificate
from edgepart.planner.errors import Unavailable
from tests.agent.security.test_identity import DAY, NOW, admit

GONE = "0" * 16
FAR = 4_102_488_000.0
"""Noon of the first day of 2100."""


@dataclass
class Wire:
    """Agents that hear each other at once."""

    wardens: dict[str, CertificateRenewal] = field(default_factory=dict)
    links: dict[str, set[str]] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    renewals: list[str] = field(default_factory=list)
    """Nodes whose contexts were made anew."""

    def add(self, me: identity.Identity, clock: Callable[[], float] = lambda: NOW) -> CertificateRenewal:
        wire, node = self, me.node_id

        class Links:
            def close(self, node_id: str, why: str = "") -> None:
                wire.links[node].discard(node_id)
                wire.links[node_id].discard(node)

            def linked_nodes(self) -> frozenset[str]:
                return frozenset(wire.links[node])

            def renew(self) -> None:
                wire.renewals.append(node)

        def tell(to: str, what: Charter) -> None:
            if to not in wire.links[node]:
                raise Unavailable("there is no link")
            wire.told.append((node, to))
            wire.wardens[to].came(node, what)

        async def ask(to: str, question: WantCertificate) -> tuple[Any, memoryview]:
            if to not in wire.links[node]:
                raise Unavailable("there is no link")
            return await wire.wardens[to].sign(node, question), memoryview(b"")

        made: Callable[[str, WantCertificate], Awaitable[tuple[Any, memoryview]]] = ask
        self.wardens[node] = CertificateRenewal(me, Links(), tell, made, clock)
        self.links[node] = set()
        return self.wardens[node]

    def meet(self, *identities: identity.Identity, old: str = "") -> None:
        """All of these are linked, and see each other; `old` is of the version before charters."""
        nodes = [each.node_id for each in identities]
        for node in nodes:
            self.links[node] |= set(nodes) - {node}
        seen = [
            Member(
                each.node_id,
                each.node_id,
                "boot",
                "alive",
                (),
                "",
                "1+traces" if each.node_id == old else "1+charter" + (".issuer" if each.is_issuer else ""),
            )
            for each in identities
        ]
        for node in nodes:
            self.wardens[node].members(seen)


@pytest.fixture
def three(tmp_path: Path) -> list[identity.Identity]:
    first = identity.create_cluster(tmp_path / "0", NOW)
    return [first, admit(first, tmp_path / "1"), admit(first, tmp_path / "2")]


def state(me: identity.Identity) -> Path:
    return me.directory.parent


def test_a_revocation_reaches_all_and_ends_links_and_credential(three: list[identity.Identity]) -> None:
    wire = Wire()
    for me in three:
        wire.add(me)
    wire.meet(*three)
    assert wire.told == []  # there is nothing to tell
    first, second, third = three
    charter_file.revoke(state(first), [third.node_id], NOW)
    wire.wardens[first.node_id]._look()
    assert second.revoked_nodes() == {third.node_id} and third.node_id not in wire.links[second.node_id]
    assert wire.links[third.node_id] == set()
    fresh = identity.load(state(first)).admin
    assert wire.wardens[second.node_id].credential == identity.load(state(second)).admin == fresh
    assert fresh not in {first.admin, identity.load(state(third)).admin}
    assert wire.wardens[third.node_id].charter.credential is None


def test_it_spreads_where_the_founder_is_off_and_survives_restarts(three: list[identity.Identity]) -> None:
    first, second, third = three
    wire = Wire()
    wire.add(first)
    wire.add(second)
    wire.meet(first, second)
    charter_file.revoke(state(first), [GONE], NOW)
    wire.wardens[first.node_id]._look()
    wire = Wire()  # all are restarted, but the founder
    wire.add(second)
    wire.add(third)
    wire.meet(second, third)
    assert (
        third.revoked_nodes() == {GONE}
        and identity.load(state(third)).admin == identity.load(state(first)).admin
    )


def test_whoever_tells_an_older_charter_is_told_the_newer_one(three: list[identity.Identity]) -> None:
    first, second, _ = three
    wire = Wire()
    one, two = wire.add(first), wire.add(second)
    wire.meet(first, second)
    charter_file.revoke(state(first), [GONE], NOW)
    one.charter = identity.read_charter(first.directory)  # it has not looked yet
    one.came(second.node_id, Charter())
    assert two.revoked_nodes == {GONE}
    before = list(wire.told)
    one.came(second.node_id, one.charter)
    assert wire.told == before  # both have the same: nothing to say


def test_agents_of_the_version_before_are_told_nothing(three: list[identity.Identity]) -> None:
    first, second, third = three
    wire = Wire()
    for me in three:
        wire.add(me)
    charter_file.revoke(state(first), [GONE], NOW)
    wire.wardens[first.node_id]._look()
    wire.meet(*three, old=second.node_id)
    assert second.node_id not in {to for _, to in wire.told} and third.revoked_nodes() == {GONE}


def test_a_forged_charter_ends_the_link_and_changes_nothing(
    three: list[identity.Identity], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = three
    wire = Wire()
    renewal = wire.add(first)
    wire.add(second)
    wire.meet(first, second)
    forged = charter.revoke(Charter(), [GONE], first.ca, certificates.new_key(), NOW)
    renewal.came(second.node_id, forged)
    assert first.revoked_nodes() == frozenset() and wire.links[first.node_id] == set()
    assert "did not sign" in caplog.text


def test_last_words_of_a_revoked_node_are_not_heard(three: list[identity.Identity]) -> None:
    first, second, _ = three
    wire = Wire()
    renewal = wire.add(first)
    charter_file.revoke(state(first), [second.node_id], NOW)
    renewal._look()
    said = charter.revoke(renewal.charter, [GONE], first.ca, first.ca_key(), NOW)
    renewal.came(second.node_id, said)
    assert renewal.revoked_nodes == {second.node_id}


def test_two_holders_settle_on_a_credential_that_nobody_who_is_out_knows(
    three: list[identity.Identity], tmp_path: Path
) -> None:
    first, second, _ = three
    ca_key_file.export(state(first), tmp_path / "copy", "correct horse battery")
    ca_key_file.bring(state(second), tmp_path / "copy", "correct horse battery")
    charter_file.revoke(state(first), ["1" * 16], NOW)
    charter_file.revoke(state(second), ["2" * 16], NOW)
    wire = Wire()
    for me in three:
        wire.add(me)
    wire.meet(*three)
    held = {wire.wardens[me.node_id].charter for me in three}
    assert len(held) == 1 and next(iter(held)).is_covered


def test_a_member_renews_with_whoever_holds_the_key(three: list[identity.Identity]) -> None:
    first, second, third = three
    wire, now = Wire(), [NOW]
    for me in three:
        wire.add(me, lambda: now[0])
    renewal = wire.wardens[third.node_id]
    wire.meet(second, third)
    before = third.certificate

    async def story() -> None:
        await renewal._renew_if_due()
        assert third.certificate == before and wire.renewals == []  # it is not due
        now[0] += 130 * DAY
        await renewal._renew_if_due()
        assert third.certificate == before  # nobody is here who could
        wire.meet(first, second, third)
        await renewal._renew_if_due()  # the holder's coming is reason enough to try again at once

    asyncio.run(story())
    assert wire.renewals == [third.node_id]
    assert certificates.seconds_left(third.certificate, now[0]) > 364 * DAY
    assert identity.load(state(third)).node_id == third.node_id


def test_the_holder_renews_its_own(three: list[identity.Identity]) -> None:
    wire = Wire()
    renewal = wire.add(three[0], lambda: NOW + 300 * DAY)
    asyncio.run(renewal._renew_if_due())
    assert not certificates.due(three[0].certificate, NOW + 300 * DAY) and wire.renewals == [three[0].node_id]


def test_a_holder_whose_clock_shows_2100_signs_nothing_says_why_and_goes_on_when_it_is_right(
    three: list[identity.Identity], caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = three
    wire, now = Wire(), [FAR]
    renewal = wire.add(first, lambda: now[0])
    held = first.certificate
    with caplog.at_level(logging.WARNING):
        asyncio.run(renewal._renew_if_due())
        asyncio.run(renewal._renew_if_due())
    assert first.certificate == held and wire.renewals == []
    (told,) = renewal.document()["warnings"]
    assert "shows 2100-" in told and [record.getMessage() for record in caplog.records] == [told]
    answer = asyncio.run(renewal.sign(second.node_id, WantCertificate(7, second.renewal())))
    assert answer.error == told and not answer.certificate
    now[0] = NOW + 125 * DAY
    asyncio.run(renewal._renew_if_due())
    assert not certificates.due(first.certificate, now[0]) and renewal.warnings() == []


def test_a_certificate_that_a_wrong_clock_signed_gives_way_when_the_clock_is_right(
    three: list[identity.Identity], caplog: pytest.LogCaptureFixture
) -> None:
    first, held = three[0], three[0].certificate
    made = certificates.issue(first.renewal(), first.node_id, first.ca, first.ca_key(), FAR)
    first.keep(certificates.der(made), FAR)
    wire = Wire()
    renewal = wire.add(first)
    assert "not valid yet" in renewal.warnings()[0]
    asyncio.run(renewal._take_back_if_early())
    assert first.certificate == held and wire.renewals == [first.node_id] and renewal.warnings() == []
    assert "the one before it was taken again" in caplog.text
    asyncio.run(renewal._take_back_if_early())
    assert wire.renewals == [first.node_id]


def test_who_is_revoked_or_asks_nonsense_gets_no_certificate(three: list[identity.Identity]) -> None:
    first, second, third = three
    wire = Wire()
    renewal, other = wire.add(first), wire.add(second)
    charter_file.revoke(state(first), [third.node_id], NOW)
    renewal._look()

    async def asked(of: CertificateRenewal, node: str, request: bytes) -> Renewed:
        return await of.sign(node, WantCertificate(7, request))

    for of, node, request in (
        (renewal, third.node_id, third.renewal()),
        (renewal, second.node_id, b"junk"),
        (other, third.node_id, third.renewal()),  # holds no key
    ):
        answer = asyncio.run(asked(of, node, request))
        assert answer.ticket == 7 and answer.error and not answer.certificate


def test_people_are_warned_in_time(three: list[identity.Identity], caplog: pytest.LogCaptureFixture) -> None:
    wire, now = Wire(), [NOW]
    renewal = wire.add(three[1], lambda: now[0])
    asyncio.run(renewal._renew_if_due())
    assert renewal.document()["warnings"] == [] and not caplog.records
    now[0] += 300 * DAY
    with caplog.at_level(logging.WARNING):
        asyncio.run(renewal._renew_if_due())
        asyncio.run(renewal._renew_if_due())
    assert sum("ends in 65 days" in record.message for record in caplog.records) == 1
    assert "ends in 65 days" in renewal.document()["warnings"][0]
    now[0] += 100 * DAY
    assert "has ended" in renewal.warnings()[0]
    assert three[1].admin not in str(renewal.document())


def test_a_damaged_charter_does_not_stop_the_agent(
    three: list[identity.Identity], caplog: pytest.LogCaptureFixture
) -> None:
    first = three[0]
    charter_file.revoke(state(first), [GONE], NOW)
    renewal = Wire().add(first)
    (first.directory / "charter.json").write_bytes(b"{")

    async def looks() -> None:
        async with asyncio.timeout(20):
            running = asyncio.create_task(renewal.run())
            while "damaged" not in caplog.text:
                await asyncio.sleep(0.001)
            assert not running.done()
            running.cancel()

    asyncio.run(looks())
    assert renewal.revoked_nodes == {GONE}


def test_whoever_is_revoked_is_told_so_and_nothing_else(three: list[identity.Identity]) -> None:
    wire = Wire()
    out: list[str] = []
    for me in three:
        wire.add(me)
    first, second, third = three
    wire.wardens[third.node_id].put_out = out.append
    wire.meet(*three)
    charter_file.revoke(state(first), [GONE, third.node_id], NOW)
    wire.wardens[first.node_id]._look()
    assert out and "revoked" in out[0]
    assert third.revoked_nodes() == {third.node_id}, "it learns of itself alone"
    assert wire.wardens[third.node_id].charter.credential is None
    assert third.node_id in second.revoked_nodes()
