"""Joining a real agent on loopback, and everybody who should not get in or be believed."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edgepart.agent.admission import joining
from edgepart.agent.net.stream import Stream, dial
from edgepart.agent.security import certificates, charter, charter_file, identity, issued, tokens
from edgepart.agent.security.charter import Charter
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.codec import frame_to_message, message_to_frame
from edgepart.agent.wire.frames import UNAUTHENTICATED, Frame
from edgepart.planner.errors import FrameError, NotAuthorised, Unavailable, UsageError
from tests.agent.net.linked import BOUND_S, Station
from tests.agent.security.test_identity import NOW, admit

Serve = Callable[[Stream, float], None]


@contextmanager
def door(
    me: identity.Identity,
    serve: Serve | None = None,
    issuers: tuple[Address, ...] = (),
    clock: Callable[[], float] = lambda: NOW,
) -> Iterator[Station]:
    """An agent that lets joiners in, or does with them what a test says."""
    keeper = joining.Doorkeeper(me, lambda: [("10.0.0.9", 7433)], lambda: issuers, clock=clock)
    station = Station(me, on_join=serve or keeper)
    try:
        yield station
    finally:
        station.transport.stop(0.0)


@pytest.fixture
def first(tmp_path: Path) -> identity.Identity:
    return identity.create_cluster(tmp_path / "first", NOW)


def new_token(issuer: identity.Identity, uses: int = 1) -> str:
    return tokens.create(issuer.directory.parent, ttl_s=60, uses=uses, now=NOW)


def test_a_joiner_becomes_a_member_and_can_be_linked_to(first: identity.Identity, tmp_path: Path) -> None:
    with door(first) as a:
        joined = joining.join(new_token(first), tmp_path / "b", [a.address], "pi-b")
        assert joined == identity.load(tmp_path / "b")
        assert (joined.fingerprint, joined.admin) == (first.fingerprint, first.admin)
        assert joined.first_members == (a.address, ("10.0.0.9", 7433))
        assert not joined.is_issuer and joined.node_id != first.node_id
        b = Station(joined)
        try:
            assert b.transport.connect(None, joined.first_members[:1]) == first.node_id
        finally:
            b.transport.stop(0.0)


def test_who_lets_in_by_a_clock_that_is_wrong_lets_in_nobody_and_costs_no_use(
    first: identity.Identity, tmp_path: Path
) -> None:
    token, now = new_token(first), [4_102_488_000.0]
    with door(first, clock=lambda: now[0]) as a:
        with pytest.raises(NotAuthorised, match=r"shows 2100-.* nothing is signed by it. Set it"):
            joining.join(token, tmp_path / "b", [a.address])
        now[0] = NOW
        assert joining.join(token, tmp_path / "b", [a.address]).fingerprint == first.fingerprint


def test_a_used_up_an_unknown_and_an_expired_token_say_so(first: identity.Identity, tmp_path: Path) -> None:
    with door(first) as a:
        text = new_token(first)
        joining.join(text, tmp_path / "b", [a.address])
        with pytest.raises(NotAuthorised, match="used up"):
            joining.join(text, tmp_path / "c", [a.address])
        tokens.revoke(first.directory.parent, text)
        with pytest.raises(NotAuthorised, match="unknown"):
            joining.join(text, tmp_path / "c", [a.address])
        old = tokens.create(first.directory.parent, ttl_s=1, uses=1, now=NOW - 2)
        with pytest.raises(NotAuthorised, match="expired"):
            joining.join(old, tmp_path / "c", [a.address])
        wrong = new_token(first)[:-40] + "0" * 40
        with pytest.raises(NotAuthorised, match="secret is wrong"):
            joining.join(wrong, tmp_path / "c", [a.address])
        assert not (tmp_path / "c").exists()


def test_another_cluster_is_told_from_the_tokens(first: identity.Identity, tmp_path: Path) -> None:
    other = identity.create_cluster(tmp_path / "other", NOW)
    with door(first) as a:
        with pytest.raises(NotAuthorised, match="another cluster"):
            joining.join(new_token(other), tmp_path / "c", [a.address])
        # Where the right one answers as well, the wrong one does no harm.
        with door(other) as right:
            joined = joining.join(new_token(other), tmp_path / "c", [a.address, right.address])
            assert joined.fingerprint == other.fingerprint


def test_an_impostor_with_the_public_ca_learns_nothing(first: identity.Identity, tmp_path: Path) -> None:
    """It shows our CA's certificate, which is no secret, over TLS with a key of its own."""
    heard: list[Frame] = []

    def impersonate(stream: Stream, deadline: float) -> None:
        heard.append(stream.read(UNAUTHENTICATED, deadline))
        offer = joining.JoinOffer(certificates.der(first.ca), bytes(32))
        stream.write(message_to_frame(offer), deadline)
        heard.append(stream.read(UNAUTHENTICATED, deadline))

    with (
        door(identity.create_cluster(tmp_path / "evil", NOW), impersonate) as evil,
        pytest.raises(NotAuthorised, match="somebody may be in between"),
    ):
        joining.join(new_token(first), tmp_path / "c", [evil.address])
    assert [frame.kind for frame in heard] == ["JoinHello"] and not (tmp_path / "c").exists()


def test_a_relayed_proof_is_worth_nothing(first: identity.Identity, tmp_path: Path) -> None:
    """A member (with a certificate of ours) that relays the conversation to the issuer gets no certificate: the proof
    covers the certificate that the joiner saw."""
    second = admit(first, tmp_path / "second")
    seen: list[Frame] = []
    with door(first) as a:

        def relay(stream: Stream, deadline: float) -> None:
            onward = dial(a.address, joining._strangers_context(), timeout_s=BOUND_S)
            try:
                for _ in range(2):
                    onward.write(stream.read(UNAUTHENTICATED, deadline), deadline)
                    seen.append(onward.read(UNAUTHENTICATED, deadline))
                    stream.write(seen[-1], deadline)
            finally:
                onward.close()

        with door(second, relay) as middle, pytest.raises(NotAuthorised, match="secret is wrong"):
            joining.join(new_token(first), tmp_path / "c", [middle.address])
    assert [frame.kind for frame in seen] == ["JoinOffer", "JoinRefused"]


def test_a_replayed_request_is_worth_nothing(first: identity.Identity) -> None:
    """The member's nonce is new each time, so a recorded request fits no later conversation."""
    token = tokens.parse(new_token(first, uses=2))
    hello = joining.JoinHello(bytes(32), token.token_id)
    request = certificates.new_request(certificates.new_key())
    recorded: joining.JoinRequest | None = None
    answers = []
    with door(first) as a:
        for _ in range(2):
            stream = dial(a.address, joining._strangers_context(), timeout_s=BOUND_S)
            deadline = time.monotonic() + BOUND_S
            stream.write(message_to_frame(hello), deadline)
            offer = frame_to_message(stream.read(UNAUTHENTICATED, deadline), joining.JOIN_KINDS)
            if recorded is None:
                shown = stream.connection.getpeercert(binary_form=True)
                assert shown is not None
                said = joining.transcript(hello, offer.nonce, shown, request)
                recorded = joining.JoinRequest(request, "", hmac.digest(token.key, said, "sha256"))
            stream.write(message_to_frame(recorded), deadline)
            answers.append(stream.read(UNAUTHENTICATED, deadline).kind)
            stream.close()
    assert answers == ["JoinGrant", "JoinRefused"]
    assert [card.uses for card in tokens.list_tokens(first.directory.parent)] == [1]


def test_a_member_without_the_ca_key_shows_the_way(first: identity.Identity, tmp_path: Path) -> None:
    second = admit(first, tmp_path / "second")
    with door(first) as a, door(second, issuers=(a.address,)) as b:
        joined = joining.join(new_token(first), tmp_path / "c", [b.address])
        assert joined.first_members[0] == a.address
    with door(second, issuers=()) as b, pytest.raises(Unavailable, match="holds no CA key"):
        joining.join(new_token(first), tmp_path / "d", [b.address])


def test_no_route_says_what_to_do(first: identity.Identity, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="--peer"):
        joining.join(new_token(first), tmp_path / "c", [], find_s=0.1)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        joining.join(new_token(first), tmp_path / "c", [("127.0.0.1", 1)])
    assert not (tmp_path / "c").exists()


def test_a_member_does_not_join_again(first: identity.Identity, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already belongs"):
        joining.join(new_token(first), first.directory.parent, [("127.0.0.1", 1)])
    with pytest.raises(UsageError, match="no join token"):
        joining.join("EP1-junk", tmp_path / "c", [])


@pytest.mark.parametrize("spoil", ["certificate", "other key", "kind", "silence", "refusal"])
def test_a_broken_answer_leaves_nothing_behind(first: identity.Identity, tmp_path: Path, spoil: str) -> None:
    other = first.issue(certificates.new_request(certificates.new_key()), NOW)

    def answer(stream: Stream, deadline: float) -> None:
        stream.read(UNAUTHENTICATED, deadline)
        offer = joining.JoinOffer(certificates.der(first.ca), bytes(32))
        stream.write(message_to_frame(offer), deadline)
        stream.read(UNAUTHENTICATED, deadline)
        grant = joining.JoinGrant(b"junk", "admin", ())
        message = {
            "certificate": grant,
            "other key": replace(grant, certificate=other),
            "kind": offer,
            "refusal": joining.JoinRefused("not today"),
        }.get(spoil)
        if message is not None:
            stream.write(message_to_frame(message), deadline)

    with door(first, answer) as a, pytest.raises((NotAuthorised, Unavailable)) as caught:
        joining.join(new_token(first), tmp_path / "c", [a.address])
    assert "Nothing was changed" in str(caught.value) and not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "message",
    [
        joining.JoinHello(b"short", "x"),
        joining.JoinRequest(b"", "", b""),
        joining.JoinRefused("?"),
    ],
)
def test_nonsense_at_the_door_is_closed(first: identity.Identity, message: object) -> None:
    with door(first) as a:
        stream = dial(a.address, joining._strangers_context(), timeout_s=BOUND_S)
        stream.write(message_to_frame(message))
        with pytest.raises((Unavailable, FrameError)):
            stream.read(UNAUTHENTICATED, time.monotonic() + BOUND_S)
        stream.close()
        assert a.transport.linked_nodes() == frozenset()


def test_without_a_doorkeeper_nobody_is_let_in(first: identity.Identity, tmp_path: Path) -> None:
    station = Station(first)
    try:
        with pytest.raises(Unavailable):
            joining.join(new_token(first), tmp_path / "c", [station.address])
    finally:
        station.transport.stop(0.0)


def test_a_use_is_on_disk_before_the_grant_is_sent(
    first: identity.Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever crashes after that: one use, one device at most."""
    left: list[int] = []
    write = joining._write

    def crash(stream: Stream, message: object, deadline: float) -> None:
        if isinstance(message, joining.JoinGrant):
            left.extend(card.uses for card in tokens.list_tokens(first.directory.parent))
            raise Unavailable("the power fails")
        write(stream, message, deadline)

    monkeypatch.setattr(joining, "_write", crash)
    text = new_token(first)
    with door(first) as a:
        with pytest.raises(Unavailable):
            joining.join(text, tmp_path / "b", [a.address])
        monkeypatch.undo()
        with pytest.raises(NotAuthorised, match="used up"):
            joining.join(text, tmp_path / "b", [a.address])
    assert left == [0] and not (tmp_path / "b").exists()


def test_one_use_lets_one_device_in_however_many_come_at_once(
    first: identity.Identity, tmp_path: Path
) -> None:
    text, ends = new_token(first), list[str]()

    def come(number: int) -> None:
        try:
            joining.join(text, tmp_path / str(number), [a.address])
            ends.append("in")
        except NotAuthorised:
            ends.append("refused")

    with door(first) as a:
        comers = [threading.Thread(target=come, args=[number]) for number in range(6)]
        for comer in comers:
            comer.start()
        for comer in comers:
            comer.join(BOUND_S)
    assert sorted(ends) == ["in"] + ["refused"] * 5
    assert len(issued.read(first.directory)) == 1


def test_a_newcomer_knows_who_is_out_and_the_credential_of_today(
    first: identity.Identity, tmp_path: Path
) -> None:
    charter_file.revoke(first.directory.parent, ["0" * 16], NOW)
    with door(first) as a:
        joined = joining.join(new_token(first), tmp_path / "b", [a.address], "pi-b")
    assert joined.revoked_nodes() == {"0" * 16}
    assert joined.admin == identity.load(first.directory.parent).admin != first.admin
    (entry,) = issued.read(first.directory)
    assert (entry.node, entry.name, entry.at_s) == (joined.node_id, "pi-b", NOW)


def test_many_revocations_fit_the_conversation(first: identity.Identity, tmp_path: Path) -> None:
    out = [f"{n:016x}" for n in range(1000)]
    charter_file.revoke(first.directory.parent, out, NOW)
    with door(first) as a:
        assert joining.join(new_token(first), tmp_path / "b", [a.address]).revoked_nodes() == set(out)


def test_an_issuer_of_the_version_before_tells_no_charter(
    first: identity.Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = joining._write

    def older(stream: Stream, message: object, deadline: float) -> None:
        if not isinstance(message, Charter):
            write(stream, message, deadline)

    monkeypatch.setattr(joining, "_write", older)
    with door(first) as a:
        joined = joining.join(new_token(first), tmp_path / "b", [a.address])
    assert joined.revoked_nodes() == frozenset() and joined.admin == first.admin


def test_a_charter_that_the_ca_did_not_sign_ends_the_join(
    first: identity.Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = charter.revoke(Charter(), ["0" * 16], first.ca, certificates.new_key(), NOW)
    monkeypatch.setattr(joining, "read_charter", lambda _: forged)
    with door(first) as a, pytest.raises(NotAuthorised, match="did not sign"):
        joining.join(new_token(first), tmp_path / "b", [a.address])
    assert not (tmp_path / "b").exists()


def test_a_joiners_name_does_not_forge_lines_of_the_log(
    first: identity.Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with door(first) as a, caplog.at_level("INFO"):
        joining.join(new_token(first), tmp_path / "b", [a.address], "x\nERROR all is lost\x1b[2J")
    assert "\n" not in "".join(record.getMessage() for record in caplog.records)
    assert issued.read(first.directory)[0].name == "xERROR all is lost[2J"


def test_who_guesses_tokens_has_few_tries(first: identity.Identity, tmp_path: Path) -> None:
    good = new_token(first)
    wrong = good[:-40] + "0" * 40
    with door(first) as a:
        for _ in range(joining.GUESSES + 1):
            with pytest.raises(NotAuthorised, match="secret is wrong"):
                joining.join(wrong, tmp_path / "b", [a.address])
        with pytest.raises(NotAuthorised, match="too many tokens"):
            joining.join(good, tmp_path / "b", [a.address])
