"""Dialer: addresses side by side, and what kind of thing went wrong at each, with real TLS on loopback."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edgepart.agent.net import faults
from edgepart.agent.net.dialer import DialAttempts, Dialer, race
from edgepart.agent.net.faults import Fault, Mistrusted, Unreached, blame, fault_of, knock
from edgepart.agent.net.interfaces import interfaces
from edgepart.agent.net.stream import Stream
from edgepart.agent.security import certificates, charter_file, identity
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.frames import UNAUTHENTICATED
from edgepart.planner.errors import EdgepartError, FrameError, NotAuthorised, Unavailable
from tests.agent.net.linked import BOUND_S, stations
from tests.agent.security.test_identity import NOW, admit

YEARS = 366 * 24 * 3600.0


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[identity.Identity]:
    root = tmp_path_factory.mktemp("members")
    first = identity.create_cluster(root / "0", NOW)
    return [first, admit(first, root / "1")]


def dated(issuer: identity.Identity, state: Path, at: float) -> identity.Identity:
    """A member whose certificate was made at `at`."""
    key = certificates.new_key()
    request = certificates.new_request(key)
    node = certificates.issue(request, certificates.new_node_id(), issuer.ca, issuer.ca_key(), at)
    identity.write_identity(state, issuer.ca, node, key, issuer.admin)
    return identity.load(state)


@contextmanager
def served(answer: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Each connection is answered by a thread, and closed then."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=hold, args=[connection], daemon=True).start()

    def hold(connection: socket.socket) -> None:
        with connection:
            try:
                answer(connection)
            except OSError:
                return  # the other side hung up, as some are to

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listener.getsockname()[:2]
        finally:
            socket.socket.shutdown(listener, socket.SHUT_RDWR)


@contextmanager
def agent(who: identity.Identity) -> Iterator[Address]:
    """Shakes hands as one, and no more."""
    context = who.server_context()

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)

    with served(answer) as address:
        yield address


def nobody() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: Address = listener.getsockname()[:2]
    return address


def dialer(who: identity.Identity) -> Dialer:
    return Dialer(who, interfaces, BOUND_S, BOUND_S)


def one(who: identity.Identity, address: Address, expected: str | None = None) -> Fault | str:
    """The fault at an address, or who answers there."""
    ((_, found),) = dialer(who).each(expected, [address])
    if isinstance(found, EdgepartError):
        return fault_of(found)
    found[1].close()
    return found[0]


def test_each_kind_of_failure_has_its_name(members: list[identity.Identity], tmp_path: Path) -> None:
    me, other = members
    with agent(other) as there, agent(me) as mine, served(lambda connection: None) as hung_up:
        assert one(me, there) == other.node_id
        assert one(me, there, other.node_id) == other.node_id
        assert one(me, there, "0" * 16) is Fault.OTHER_NODE
        assert one(me, mine) is Fault.ITSELF
        assert one(me, hung_up) in (Fault.NO_TLS, Fault.CLOSED)
    assert one(me, nobody()) is Fault.REFUSED
    assert one(me, ("no such host", 1)) is Fault.UNKNOWN_NAME
    assert one(me, ("mqtt:" + "0" * 16, 0)) is Fault.UNREACHABLE
    assert one(me, ("127.0.0.1", 99999)) is Fault.UNREACHABLE
    with served(lambda connection: connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")) as plain:
        assert one(me, plain) is Fault.NO_TLS
    with agent(identity.create_cluster(tmp_path / "theirs", NOW)) as theirs:
        assert one(me, theirs) is Fault.OTHER_CLUSTER


def test_clocks_that_are_apart_are_told(members: list[identity.Identity], tmp_path: Path) -> None:
    me = members[0]
    # Certificates begin ten years early, so that boards without a clock battery may join.
    early = dated(me, tmp_path / "early", NOW - 21 * YEARS)
    late = dated(me, tmp_path / "late", NOW + 15 * YEARS)
    for theirs, fault, ours in (
        (early, Fault.EXPIRED, Fault.OURS_EXPIRED),
        (late, Fault.NOT_YET_VALID, Fault.OURS_NOT_TAKEN),
    ):
        with agent(theirs) as address:
            assert one(me, address) is fault
        with agent(me) as address:
            ((_, found),) = dialer(theirs).each(None, [address])
            assert not isinstance(found, EdgepartError)  # with TLS 1.3 the server's opinion comes later
            with closing(found[1]) as stream, pytest.raises(Unreached) as lost:
                stream.read(UNAUTHENTICATED, time.monotonic() + BOUND_S)
            assert lost.value.fault is ours


def test_revoked_nodes_are_told_from_others(members: list[identity.Identity], tmp_path: Path) -> None:
    first = identity.create_cluster(tmp_path / "first", NOW)
    victim = admit(first, tmp_path / "victim")
    charter_file.revoke(tmp_path / "first", [victim.node_id], NOW)
    with agent(victim) as address:
        assert one(first, address) is Fault.REVOKED


def test_who_answers_does_not_wait_for_who_does_not(members: list[identity.Identity]) -> None:
    """One takes connections and is silent for ever, one's queue is full: neither holds the third up. The bound of each is
    longer than the test's patience, so that one after the other could not pass."""
    me, other = members
    silence = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, agent(other) as there:
        fill = [socket.socket() for _ in range(8)]
        try:
            for each in fill:
                each.setblocking(False)
                assert each.connect_ex(full.getsockname()) in (0, errno.EINPROGRESS)
            tried = race(
                [full.getsockname()[:2], nobody(), there], me.client_context(), timeout_s=3600, dead_after_s=5
            )
            with closing(tried) as found:
                for address, outcome in found:
                    if isinstance(outcome, Stream):
                        assert address == there
                        outcome.close()
                        break
        finally:
            silence.set()
            for each in fill:
                each.close()


def test_every_address_has_one_outcome_and_is_told(members: list[identity.Identity]) -> None:
    me, other = members
    told: list[tuple[str, str, Fault | None]] = []

    class LinkObserver:
        def tried(self, node: str, address: str, fault: Fault | None, text: str) -> None:
            told.append((node, address, fault))

        def called(self, node: str, address: str) -> None:
            raise AssertionError

        def knocked(self, address: str, why: str) -> None:
            raise AssertionError

    closed = nobody()
    with agent(other) as there:
        tries = DialAttempts(other.node_id, LinkObserver())
        for address, found in dialer(me).each(other.node_id, [closed, there]):
            if isinstance(found, EdgepartError):
                tries.refused(address, found)
            else:
                found[1].close()
                tries.led(address, found[0])
    assert set(told) == {
        (other.node_id, f"127.0.0.1:{closed[1]}", Fault.REFUSED),
        (other.node_id, f"127.0.0.1:{there[1]}", None),
    }
    assert isinstance(tries.failure(), Unavailable)
    nothing = DialAttempts("x", None)
    assert "no address" in str(nothing.failure())
    nothing.refused(closed, Mistrusted(Fault.ITSELF, "itself"))
    assert isinstance(nothing.failure(), NotAuthorised)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (errno.ECONNREFUSED, Fault.REFUSED),
        (errno.ETIMEDOUT, Fault.SILENT),
        (errno.EHOSTUNREACH, Fault.UNREACHABLE),
        (errno.ENETUNREACH, Fault.UNREACHABLE),
        (errno.EINVAL, Fault.UNREACHABLE),
        (errno.EPERM, Fault.UNREACHABLE),
        (errno.ECONNRESET, Fault.CLOSED),
    ],
)
def test_what_the_system_says(code: int, fault: Fault) -> None:
    assert blame(OSError(code, "x"))[0] is fault


def test_alerts_and_other_errors() -> None:
    for name, fault in faults._ALERTS.items():
        error = ssl.SSLError(1, "x")
        error.reason = f"SSLV3_ALERT_{name}"
        assert blame(error)[0] is fault
    assert fault_of(FrameError("x")) is Fault.PROTOCOL and fault_of(Unavailable("x")) is Fault.CLOSED
    assert knock(NotAuthorised("the token has expired")) == "the token has expired"
    assert "does not speak" in knock(ssl.SSLError(1, "x"))


def test_a_transport_tells_who_called_who_was_tried_and_who_knocked(
    members: list[identity.Identity], tmp_path: Path
) -> None:
    stranger = identity.create_cluster(tmp_path, NOW)
    told: list[tuple[str, str]] = []
    changed = threading.Condition()

    class LinkObserver:
        def _tell(self, kind: str, what: str) -> None:
            with changed:
                told.append((kind, what))
                changed.notify_all()

        def tried(self, node: str, address: str, fault: Fault | None, text: str) -> None:
            self._tell("tried", f"{node} {fault}")

        def called(self, node: str, address: str) -> None:
            self._tell("called", node)

        def knocked(self, address: str, why: str) -> None:
            self._tell("knocked", why)

    with stations(*members, stranger) as (a, b, other):
        a.transport._witness = a.transport._acceptor._witness = LinkObserver()
        a.transport.connect(b.node_id, [nobody(), b.address])
        with pytest.raises(Unavailable):
            other.transport.connect(None, [a.address])
        with changed:
            wanted = {
                ("tried", f"{b.node_id} refused"),
                ("tried", f"{b.node_id} None"),
                ("called", b.node_id),
            }
            assert changed.wait_for(
                lambda: wanted <= set(told) and "knocked" in {kind for kind, _ in told}, BOUND_S
            )
