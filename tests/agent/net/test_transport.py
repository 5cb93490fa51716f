"""Links between real agents' transports on loopback, and what strangers do to the port."""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgepart.agent.net.acceptor import AcceptOptions
from edgepart.agent.net.links import LinkOpen
from edgepart.agent.net.stream import dial
from edgepart.agent.net.transport import Transport, TransportOptions
from edgepart.agent.security import charter_file, identity
from edgepart.agent.security.charter import Charter
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.agent.wire.frames import MAGIC, MEMBER, PREFIX, Frame
from edgepart.planner.errors import EdgepartError, FrameError, NotAuthorised, Unavailable
from tests.agent.net.linked import BOUND_S, Station, stations
from tests.agent.security.test_identity import NOW, admit
from tests.waiting import eventually

Identities = list[identity.Identity]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    """Three members of one cluster."""
    root = tmp_path_factory.mktemp("members")
    first = identity.create_cluster(root / "0", NOW)
    return [first, admit(first, root / "1"), admit(first, root / "2")]


@pytest.fixture
def pair(members: Identities) -> Iterator[list[Station]]:
    """Two agents, linked."""
    with stations(*members[:2]) as (a, b):
        a.transport.connect(b.node_id, [b.address])
        a.until(lambda: bool(a.links))
        b.until(lambda: bool(b.links))
        yield [a, b]


def test_one_dial_makes_a_link_both_ways(pair: list[Station]) -> None:
    a, b = pair
    assert a.links == [(b.node_id, True, f"127.0.0.1:{b.address[1]}")]
    assert b.links == [(a.node_id, True, "")]
    for channel in ("control", "data"):
        a.transport.send(b.node_id, channel, Frame("to-b", {"n": 1}, (b"payload",)))
        b.transport.send(a.node_id, channel, Frame("to-a", {"n": 2}))
    a.until(lambda: len(a.frames) == 2)
    b.until(lambda: len(b.frames) == 2)
    assert {(who, channel) for who, channel, _ in b.frames} == {(a.node_id, c) for c in ("control", "data")}
    assert {(f.kind, f.header["n"], bytes(f.body)) for _, _, f in b.frames} == {("to-b", 1, b"payload")}
    assert {f.kind for _, _, f in a.frames} == {"to-a"}


def test_frames_of_all_sizes_come_in_order_and_whole(pair: list[Station]) -> None:
    a, b = pair
    rng = np.random.default_rng(0)
    sizes = [0, 1, 16_000, 16_384, 16_385, 100_000, 3, 5_000_000, 0, 7]
    sent = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    for number, payload in enumerate(sent):
        frame = Frame(
            "x", {"n": number}, (payload[: len(payload) // 3].data, payload[len(payload) // 3 :].data)
        )
        a.transport.send(b.node_id, "data", frame)
    b.until(lambda: len(b.frames) == len(sizes))
    assert [f.header["n"] for _, _, f in b.frames] == list(range(len(sizes)))
    assert all(bytes(f.body) == s.tobytes() for (_, _, f), s in zip(b.frames, sent, strict=True))


def test_bytes_are_counted_for_each_peer_also_over_links_that_have_ended(pair: list[Station]) -> None:
    a, b = pair
    payload, room = 200_000, 2000  # The rest is for headers, and what opens a link.

    def counted(here: Station, there: Station, sent: int, received: int) -> bool:
        found = here.transport.traffic()[there.node_id]
        return 0 <= found.sent_bytes - sent < room and 0 <= found.received_bytes - received < room

    for number in (1, 2):
        a.transport.send(b.node_id, "data", Frame("x", {"n": number}, (np.zeros(payload, np.uint8).data,)))
        b.until(lambda number=number: len(b.frames) == number)  # type: ignore[misc]
        eventually(partial(counted, a, b, number * payload, 0))
        assert counted(b, a, 0, number * payload)
        if number == 1:
            a.transport.close(b.node_id)
            eventually(lambda: not a.transport.linked_nodes() and not b.transport.linked_nodes())
            a.transport.connect(b.node_id, [b.address])


def test_threads_that_send_at_once_get_everything_over_each_in_its_order(pair: list[Station]) -> None:
    a, b = pair
    senders, each = 6, 60
    # Some are written by their senders, some by the connection's thread, and one waits behind the other.
    sizes = [3, 70_000, 0, 40_000, 9, 300_000]

    def send(sender: int) -> None:
        for number in range(each):
            payload = bytes([sender]) * sizes[(sender + number) % len(sizes)]
            a.transport.send(b.node_id, "data", Frame("x", {"of": sender, "n": number}, (payload,)))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    b.until(lambda: len(b.frames) == senders * each)
    for sender in range(senders):
        mine = [frame for _, _, frame in b.frames if frame.header["of"] == sender]
        assert [frame.header["n"] for frame in mine] == list(range(each))
        assert all(bytes(f.body) == bytes([sender]) * sizes[(sender + n) % 6] for n, f in enumerate(mine))


def test_what_the_kernel_does_not_take_at_once_comes_later_and_in_order(pair: list[Station]) -> None:
    a, b = pair
    gate, rng = threading.Event(), np.random.default_rng(1)
    b.handle = lambda *_: (gate.wait(BOUND_S), None)[1]
    sizes = [250_000, 0, 7, 16_384, 120_000, 300_000] * 25  # Together more than both kernels' buffers.
    sent = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    for number, payload in enumerate(sent):
        a.transport.send(b.node_id, "data", Frame("x", {"n": number}, (payload.data,)))
    assert len(b.frames) <= 1
    gate.set()
    b.until(lambda: len(b.frames) == len(sizes))
    assert [f.header["n"] for _, _, f in b.frames] == list(range(len(sizes)))
    assert all(bytes(f.body) == s.tobytes() for (_, _, f), s in zip(b.frames, sent, strict=True))


def test_connecting_again_answers_at_once_and_changes_nothing(pair: list[Station]) -> None:
    a, b = pair
    assert a.transport.connect(b.node_id, [("127.0.0.1", 1)]) == b.node_id
    assert a.transport.connect(None, [b.address]) == b.node_id
    assert b.transport.connect(None, [a.address]) == a.node_id
    assert a.changes() == [(b.node_id, True)] and b.changes() == [(a.node_id, True)]


def test_both_dialling_at_once_makes_one_link(members: Identities) -> None:
    with stations(*members) as made:
        calls = [
            threading.Thread(target=a.transport.connect, args=[None, [b.address]])
            for a in made
            for b in made
            if a is not b
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join(BOUND_S)
        for a in made:
            others = {b.node_id for b in made if b is not a}
            a.until(lambda a=a, others=others: {n for n, up in a.changes() if up} == others)  # type: ignore[misc]
            assert a.transport.linked_nodes() == others


def test_closing_is_seen_on_both_sides_and_the_link_can_come_back(pair: list[Station]) -> None:
    a, b = pair
    a.transport.close(b.node_id, "enough")
    a.until(lambda: len(a.links) == 2)
    b.until(lambda: len(b.links) == 2)
    assert a.links[1] == (b.node_id, False, "enough") and b.links[1][:2] == (a.node_id, False)
    with pytest.raises(Unavailable, match="no link"):
        a.transport.send(b.node_id, "control", Frame("x"))
    assert b.transport.connect(a.node_id, [a.address]) == a.node_id
    a.until(lambda: len(a.links) == 3)
    assert a.changes()[2] == (b.node_id, True)


def test_a_killed_process_is_seen_though_nobody_writes(members: Identities, tmp_path: Path) -> None:
    with stations(members[0]) as (a,):
        code = (
            "import sys; from pathlib import Path; from edgepart.agent.security import identity; "
            "from edgepart.agent.net.transport import Transport; "
            "t = Transport(identity.load(Path(sys.argv[1])), lambda *_: None, lambda *_: None); "
            "t.listen('127.0.0.1', 0); t.connect(None, [('127.0.0.1', int(sys.argv[2]))]); sys.stdin.read()"
        )
        state = str(members[1].directory.parent)
        with subprocess.Popen(
            [sys.executable, "-c", code, state, str(a.address[1])], stdin=subprocess.PIPE
        ) as child:
            try:
                a.until(lambda: a.changes() == [(members[1].node_id, True)])
                os.kill(child.pid, signal.SIGKILL)
                a.until(lambda: a.changes()[1:] == [(members[1].node_id, False)])
            finally:
                child.kill()


def test_a_restarted_peer_replaces_its_old_link(members: Identities) -> None:
    """As after a power cut: the old connections were never closed."""
    with stations(*members[:2]) as (a, b):
        a.transport.connect(b.node_id, [b.address])
        with stations(members[1]) as (again,):
            again.transport.connect(a.node_id, [a.address])
            a.until(lambda: len(a.links) == 3)
            assert [up for _, up in a.changes()] == [True, False, True]
            a.transport.send(b.node_id, "control", Frame("hello"))
            again.until(lambda: len(again.frames) == 1)
            assert b.frames == []


def test_a_revoked_node_is_out_and_stays_out(members: Identities, tmp_path: Path) -> None:
    victim = admit(members[0], tmp_path)
    with stations(members[0], victim) as (a, b):
        b.transport.connect(a.node_id, [a.address])
        a.until(lambda: a.changes() == [(victim.node_id, True)])
        charter_file.revoke(members[0].directory.parent, [victim.node_id, "dead" * 4], NOW)
        a.transport.close(victim.node_id, "revoked")
        a.until(lambda: a.changes() == [(victim.node_id, True), (victim.node_id, False)])
        b.until(lambda: b.changes()[1:] == [(a.node_id, False)])
        with pytest.raises(Unavailable, match="says that this node is revoked"):
            b.transport.connect(a.node_id, [a.address])
        # The proof of it, and nothing of any other node.
        b.until(lambda: len(b.frames) == 1)
        ((teller, channel, frame),) = b.frames
        told = frame_to_message(frame, kinds(Charter))
        assert (teller, channel, told.revoked, told.credential) == (
            a.node_id,
            "control",
            {victim.node_id},
            None,
        )
        with pytest.raises(Unavailable, match="revoked"):
            a.transport.connect(victim.node_id, [b.address])
        with pytest.raises(NotAuthorised, match="revoked"):
            a.transport.connect(None, [b.address])
        assert a.transport.linked_nodes() == frozenset()


def test_connect_tells_why_for_each_address(members: Identities, tmp_path: Path) -> None:
    stranger = identity.create_cluster(tmp_path, NOW)
    with stations(*members[:2], stranger) as (a, b, other), socket.create_server(("127.0.0.1", 0)) as plain:
        closed = plain.getsockname()
        plain.close()
        with pytest.raises(Unavailable, match=r"refused.*another cluster"):
            a.transport.connect(b.node_id, [closed[:2], other.address])
        with pytest.raises(NotAuthorised, match=f"is node {b.node_id}, not"):
            a.transport.connect("0" * 16, [b.address])
        with pytest.raises(NotAuthorised, match="itself"):
            a.transport.connect(None, [a.address])
        with pytest.raises(Unavailable):
            a.transport.connect(None, [("no such host", 1), ("127.0.0.1", 99999), ("a" * 300, 1)])
        with pytest.raises(Unavailable, match="no address"):
            a.transport.connect("0" * 16, [])
        assert a.transport.connect(None, [closed[:2], b.address]) == b.node_id


def test_a_peer_that_cannot_dial_back_is_said_so(members: Identities) -> None:
    """A firewall lets us out, but nobody in."""
    with stations(members[0], options=TransportOptions(connect_s=0.5)) as (a,):
        deaf = Transport(
            members[1], lambda *_: None, lambda *_: None, options=TransportOptions(connect_s=0.5)
        )
        try:
            with pytest.raises(Unavailable):
                deaf.connect(None, [a.address])
            eventually(lambda: not a.transport._links)
            assert a.links == [] and deaf.linked_nodes() == a.transport.linked_nodes() == frozenset()
        finally:
            deaf.stop()


def test_a_failing_handler_ends_the_link_and_not_the_agent(
    members: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(node_id: str, channel: str, frame: Frame) -> None:
        raise FrameError("nonsense") if frame.kind == "peer" else RuntimeError("our bug")

    with stations(*members[:2]) as (a, b):
        b.handle = fail
        for n, kind in enumerate(("peer", "ours")):
            a.transport.connect(b.node_id, [b.address])
            a.transport.send(b.node_id, "control", Frame(kind))
            a.until(lambda n=n: len(a.links) == 2 * n + 2)  # type: ignore[misc]
        assert "nonsense" in caplog.text and "our bug" in caplog.text


def test_a_slow_reader_bounds_the_queue(members: Identities) -> None:
    gate = threading.Event()
    options = TransportOptions(control_queue_bytes=1 << 20, data_queue_bytes=1 << 20, full_s=0.1)
    with stations(*members[:2], options=options) as (a, b):

        def wait(node_id: str, channel: str, frame: Frame) -> None:
            gate.wait(BOUND_S)

        b.handle = wait
        a.transport.connect(b.node_id, [b.address])
        block = bytes(1 << 20)
        try:
            for channel in ("control", "data"):
                with pytest.raises(Unavailable, match="slow"):
                    for _ in range(100):
                        a.transport.send(b.node_id, channel, Frame("x", {}, (block,)))
        finally:
            gate.set()


def test_what_is_queued_goes_out_before_the_end(pair: list[Station]) -> None:
    a, b = pair
    for _ in range(20):
        a.transport.send(b.node_id, "control", Frame("x", {}, (bytes(1 << 20),)))
    a.transport.send(b.node_id, "control", Frame("goodbye"))
    a.transport.stop(flush_s=BOUND_S)
    b.until(lambda: len(b.links) == 2)
    assert [frame.kind for _, _, frame in b.frames] == ["x"] * 20 + ["goodbye"]
    assert a.links[1][:2] == (b.node_id, False)


# ---- strangers ----

PATIENCE = TransportOptions(accept=AcceptOptions(strangers=8, stranger_s=0.5))


@pytest.fixture
def target(members: Identities) -> Iterator[Station]:
    with stations(members[0], options=PATIENCE) as (a,):
        yield a


def is_alive(target: Station, member: identity.Identity) -> None:
    """The port still serves members."""
    with stations(member) as (b,):
        eventually(lambda: links(b, target))


def links(b: Station, target: Station) -> bool:
    try:
        return b.transport.connect(None, [target.address]) == target.node_id
    except Unavailable:
        return False


def drained(connection: socket.socket) -> None:
    """Returns when the other side has closed."""
    connection.settimeout(BOUND_S)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(500), os.urandom(4096), b"", b"\x16"],
    ids=["http", "half a handshake", "random", "silence", "one byte"],
)
def test_nonsense_is_closed_and_the_agent_stays_up(
    target: Station, members: Identities, noise: bytes
) -> None:
    with socket.create_connection(target.address) as connection:
        connection.sendall(noise)
        drained(connection)
    is_alive(target, members[1])


def test_a_flood_of_silent_connections_is_bounded(target: Station, members: Identities) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(target.address) for _ in range(60)]
    try:
        assert threading.active_count() <= before + 8
        for connection in silent:
            drained(connection)
    finally:
        for connection in silent:
            connection.close()
    is_alive(target, members[1])


def test_strangers_meet_small_limits(target: Station, members: Identities) -> None:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    for context in (anybody, members[1].client_context()):
        for prefix in (
            PREFIX.pack(MAGIC, 1, 0, 2**32 - 1, 0),
            PREFIX.pack(MAGIC, 1, 0, 10, 2**63),
            PREFIX.pack(MAGIC, 1, 0, 3, 0) + b"\x92\xa1a",
            b"junk" * 20,
        ):
            stream = dial(target.address, context, timeout_s=BOUND_S)
            stream.connection.sendall(prefix)
            drained(stream.connection)
            stream.close()
    is_alive(target, members[1])


def test_a_member_that_lies_about_lengths_costs_no_memory(target: Station, members: Identities) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opening = LinkOpen("data", "boot", 1, target.node_id, (("", 1),))
    for announced in (MEMBER.payload_bytes, MEMBER.payload_bytes + 1):
        stream = dial(target.address, members[1].client_context(), timeout_s=BOUND_S)
        stream.write(message_to_frame(opening))
        stream.connection.sendall(PREFIX.pack(MAGIC, 1, 0, 10, announced) + bytes(10))
        stream.close()
    is_alive(target, members[1])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


@pytest.mark.parametrize(
    "opening",
    [
        LinkOpen("gossip", "boot", 1, "", ()),
        LinkOpen("control", "boot", 1, "0" * 16, ()),
        Frame("Other", {}),
        Frame("LinkOpen", {"channel": 1}),
    ],
)
def test_a_member_that_introduces_itself_wrongly_is_refused(
    target: Station, members: Identities, opening: LinkOpen | Frame
) -> None:
    stream = dial(target.address, members[1].client_context(), timeout_s=BOUND_S)
    stream.write(opening if isinstance(opening, Frame) else message_to_frame(opening))
    drained(stream.connection)
    stream.close()
    assert target.links == []


def test_a_second_agent_on_the_same_port_is_told(target: Station, members: Identities) -> None:
    other = Transport(members[1], lambda *_: None, lambda *_: None)
    try:
        with pytest.raises(Unavailable, match="cannot listen"):
            other.listen(*target.address)
        with pytest.raises(EdgepartError):
            other.listen("127.0.0.1", 99999)
    finally:
        other.stop()


def test_ipv6_links_too(members: Identities) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    a, b = (Transport(m, lambda *_: None, lambda *_: None) for m in members[:2])
    try:
        a.listen("", 0)
        _, port = b.listen("", 0)
        for host in ("::1", "127.0.0.1"):
            assert a.connect(None, [(host, port)]) == members[1].node_id
            a.close(members[1].node_id)
            eventually(lambda: not b.linked_nodes())
    finally:
        a.stop()
        b.stop()
