"""Identity on disk, certificates, revocation, and the TLS contexts against each other over a socket pair."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from edgepart.agent.security import certificates, charter_file, identity
from edgepart.planner.errors import NotAuthorised, UsageError

NOW = float(int(time.time()))
"""TLS goes by the real clock, and certificates live a year."""
DAY = 86400.0


def admit(
    issuer: identity.Identity, state: Path, now: float = NOW, *, first_day: bool = False
) -> identity.Identity:
    """Another member of the issuer's cluster. `first_day`: let in at `now`, though the issuer itself came later."""
    key = certificates.new_key()
    request = certificates.new_request(key)
    if first_day:
        node = certificates.issue(request, certificates.new_node_id(), issuer.ca, issuer.ca_key(), now)
    else:
        node, _ = certificates.read_node(issuer.issue(request, now), issuer.ca)
    identity.write_identity(state, issuer.ca, node, key, issuer.admin)
    return identity.load(state)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str | None, str | None]:
    """Whom the server and the client see. Errors of either side are raised."""
    ends = socket.socketpair()
    seen: list[str | None] = [None]
    failures: list[Exception] = []

    def serve() -> None:
        try:
            with server.wrap_socket(ends[0], server_side=True) as connection:
                seen[0] = identity.peer_id(connection)
        except (OSError, NotAuthorised) as error:
            failures.append(error)
            ends[0].close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ends[1]) as connection:
            other = identity.peer_id(connection)
    finally:
        thread.join()
        for end in ends:
            end.close()
    if failures:
        raise failures[0]
    return seen[0], other


def test_a_cluster_is_made_private_and_loads_again(tmp_path: Path) -> None:
    made = identity.create_cluster(tmp_path / "a", NOW)
    folder = tmp_path / "a" / "identity"
    assert identity.load(tmp_path / "a") == made and made.is_issuer
    assert len(made.node_id) == 16 and len(made.fingerprint) == 64
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert made.admin not in repr(made)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["identity"]


def test_a_second_identity_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    made = identity.create_cluster(tmp_path, NOW)
    with pytest.raises(UsageError, match="already belongs"):
        identity.create_cluster(tmp_path, NOW)
    assert identity.load(tmp_path) == made


def test_no_identity_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="edgepart init"):
        identity.load(tmp_path)


@pytest.mark.parametrize("name", ["ca.pem", "node.pem", "node.key", "admin", "members.json"])
@pytest.mark.parametrize("damage", [b"", b"\xff\x00", None])
def test_damage_is_named(tmp_path: Path, name: str, damage: bytes | None) -> None:
    identity.create_cluster(tmp_path, NOW)
    path = tmp_path / "identity" / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(UsageError, match="cannot be used"):
        identity.load(tmp_path)


def test_a_foreign_key_is_noticed(tmp_path: Path) -> None:
    identity.create_cluster(tmp_path / "a", NOW)
    identity.create_cluster(tmp_path / "b", NOW)
    (tmp_path / "a/identity/node.key").write_bytes((tmp_path / "b/identity/node.key").read_bytes())
    with pytest.raises(UsageError, match=r"node\.key"):
        identity.load(tmp_path / "a")


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"):
        identity.create_cluster(tmp_path / "file", NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_members_see_each_other_and_joiners_are_seen_as_nobody(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    second = admit(first, tmp_path / "b")
    assert not second.is_issuer and second.node_id != first.node_id
    seen = handshake(first.server_context(), second.client_context())
    assert seen == (second.node_id, first.node_id)
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    assert handshake(first.server_context(), stranger) == (None, None)


def test_other_clusters_are_refused_on_both_sides(tmp_path: Path) -> None:
    ours = identity.create_cluster(tmp_path / "a", NOW)
    theirs = identity.create_cluster(tmp_path / "b", NOW)
    with pytest.raises(ssl.SSLError):
        handshake(ours.server_context(), theirs.client_context())
    trusting = theirs.client_context()
    trusting.verify_mode = ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(ours.server_context(), trusting)


def test_tls_under_1_3_is_refused(tmp_path: Path) -> None:
    ours = identity.create_cluster(tmp_path, NOW)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(ours.server_context(), old)


def test_the_ca_itself_is_no_peer(tmp_path: Path) -> None:
    """Whoever steals the CA's key can issue; but the CA's own certificate must not pass for a node."""
    ours = identity.create_cluster(tmp_path, NOW)
    as_ca = ours.client_context()
    as_ca.load_cert_chain(tmp_path / "identity/ca.pem", tmp_path / "identity/ca.key")
    with pytest.raises((NotAuthorised, ssl.SSLError)):
        handshake(ours.server_context(), as_ca)


def test_only_sound_requests_are_signed(tmp_path: Path) -> None:
    ours = identity.create_cluster(tmp_path / "a", NOW)
    good = bytearray(certificates.new_request(certificates.new_key()))
    good[-1] ^= 1
    for request in (b"", b"junk", bytes(good)):
        with pytest.raises(NotAuthorised):
            ours.issue(request, NOW)
    with pytest.raises(NotAuthorised, match="no CA key"):
        admit(ours, tmp_path / "b").issue(certificates.new_request(certificates.new_key()), NOW)


def test_certificates_of_others_are_not_read(tmp_path: Path) -> None:
    ours = identity.create_cluster(tmp_path / "a", NOW)
    theirs = identity.create_cluster(tmp_path / "b", NOW)
    foreign = theirs.issue(certificates.new_request(certificates.new_key()), NOW)
    for encoded in (foreign, certificates.der(ours.ca), b"", b"junk"):
        with pytest.raises(NotAuthorised):
            certificates.read_node(encoded, ours.ca)
    for encoded in (foreign, b"", b"junk"):
        with pytest.raises(NotAuthorised):
            certificates.read_ca(encoded)


def test_nodes_that_were_put_out_by_hand_stay_out(tmp_path: Path) -> None:
    ours = identity.create_cluster(tmp_path, NOW)
    assert ours.revoked_nodes() == frozenset()
    (tmp_path / "identity/revoked.json").write_text('{"nodes": ["' + "0" * 16 + '"]}')
    charter_file.revoke(tmp_path, ["1" * 16], NOW)
    assert ours.revoked_nodes() == {"0" * 16, "1" * 16}
    (tmp_path / "identity/revoked.json").write_bytes(b"[]")
    with pytest.raises(UsageError, match="damaged"):
        ours.revoked_nodes()


def test_a_certificate_is_renewed_for_the_same_node_and_key(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    second = admit(first, tmp_path / "b")
    before = second.certificate
    assert not certificates.due(before, NOW) and certificates.due(before, NOW + 125 * DAY)
    made = first.issue(second.renewal(), NOW + 125 * DAY, second.node_id)
    after = second.keep(made, NOW + 125 * DAY)
    assert identity.load(tmp_path / "b") == second and second.certificate == after != before
    assert certificates.seconds_left(after, NOW) > certificates.seconds_left(before, NOW)
    assert not certificates.due(after, NOW + 125 * DAY)
    assert handshake(first.server_context(), second.client_context()) == (second.node_id, first.node_id)


def test_only_a_newer_certificate_of_ones_own_is_kept(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    second = admit(first, tmp_path / "b")
    other = identity.create_cluster(tmp_path / "c", NOW)
    held = (tmp_path / "b/identity/node.pem").read_bytes()
    later = NOW + 200 * DAY
    for bad in (
        first.issue(second.renewal(), later),  # under a new node id
        first.issue(first.renewal(), later, second.node_id),  # another key
        other.issue(second.renewal(), later, second.node_id),  # another CA
        first.issue(second.renewal(), NOW - 5 * DAY, second.node_id),  # no newer
        b"junk",
    ):
        with pytest.raises(NotAuthorised):
            second.keep(bad, later)
    assert (tmp_path / "b/identity/node.pem").read_bytes() == held


def test_a_clock_that_went_back_makes_no_certificates_that_have_ended(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    made, _ = certificates.read_node(
        first.issue(certificates.new_request(certificates.new_key()), 0.0), first.ca
    )
    assert certificates.seconds_left(made, NOW) > 364 * DAY


YEAR = 365.25 * DAY


def test_what_a_clock_signs_that_is_five_years_ahead_is_valid_by_right_ones(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    made, _ = certificates.read_node(first.issue(first.renewal(), NOW + 5 * YEAR), first.ca)
    assert not certificates.not_yet_valid(made, NOW)


@pytest.mark.parametrize("years", [7, 29, 74])
def test_a_clock_that_is_likely_wrong_signs_nothing(tmp_path: Path, years: float) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    with pytest.raises(NotAuthorised, match=r"shows 2\d{3}-\d\d-\d\d, and its own certificate is of"):
        first.issue(first.renewal(), NOW + years * YEAR)


def test_a_certificate_of_the_future_is_not_kept_and_one_that_was_gives_way_to_the_one_before(
    tmp_path: Path,
) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    second = admit(first, tmp_path / "b")
    far = NOW + 20 * 365 * DAY
    made = certificates.der(
        certificates.issue(second.renewal(), second.node_id, first.ca, first.ca_key(), far)
    )
    before = second.certificate
    with pytest.raises(NotAuthorised, match="one of two clocks is wrong"):
        second.keep(made, NOW)
    assert second.certificate == before and second.take_back(NOW) is None
    second.keep(made, far)  # its clock was as wrong
    with pytest.raises(ssl.SSLError, match="not yet valid"):
        handshake(first.server_context(), second.client_context())
    assert second.take_back(NOW) == before == second.certificate
    assert handshake(first.server_context(), second.client_context()) == (second.node_id, first.node_id)


def test_a_certificate_that_lives_ten_years_is_due_at_once(tmp_path: Path) -> None:
    """As clusters of the first version made them."""
    first = identity.create_cluster(tmp_path, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "LIFETIME", certificates.CA_LIFETIME)
        old, _ = certificates.read_node(first.issue(first.renewal(), NOW, first.node_id), first.ca)
    assert certificates.due(old, NOW)


def test_an_expired_certificate_opens_nothing_on_either_side(tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "a", NOW)
    second = admit(first, tmp_path / "b", NOW - 400 * DAY, first_day=True)
    with pytest.raises(ssl.SSLError, match="expired"):
        handshake(first.server_context(), second.client_context())
    with pytest.raises(ssl.SSLError, match="expired"):
        handshake(second.server_context(), first.client_context())
