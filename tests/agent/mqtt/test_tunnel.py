"""Streams through a broker in memory: what comes out is what went in, or the stream has ended; never anything else."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.mqtt.tunnel import HEADER, Packet, PacketKind, Tunnel, decode, reason, reset
from edgepart.agent.mqtt.tunnel_sockets import OVERHEAD_BYTES, TunnelOptions, TunnelSockets
from edgepart.agent.wire.address import Address, mqtt_address
from edgepart.planner.errors import FrameError, Unavailable
from tests.agent.mqtt.fakes import FakeBroker, FakeSession

A, B = "a" * 16, "b" * 16
ROOT = "edgepart/0123456789abcdef"


class Pair:
    """Two agents at one broker, and a stream that the first opened to the second."""

    def __init__(self, chunk_bytes: int = 2048, window: int = 4, largest_bytes: int = 1 << 20) -> None:
        self.broker = FakeBroker()
        options = TunnelOptions(chunk_bytes=chunk_bytes, window=window)
        self.taken: list[tuple[socket.socket, Address]] = []
        self.tunnels: list[TunnelSockets] = []
        self.sessions: list[FakeSession] = []
        for name in (A, B):
            session = FakeSession(self.broker, largest_bytes)
            made = TunnelSockets(session, ROOT, name, options)  # type: ignore[arg-type]
            made.listen(lambda connection, peer: self.taken.append((connection, peer)))
            session.start(made)
            self.tunnels.append(made)
            self.sessions.append(session)
        self.a = self.tunnels[0].connect(mqtt_address(B), 1.0)
        (self.b, self.peer), *_ = self.taken
        for end in (self.a, self.b):
            end.setblocking(False)

    def close(self) -> None:
        self.a.close()
        self.b.close()
        self.broker.settle()
        for tunnels in self.tunnels:
            tunnels.disconnected("the test ends")

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(end: socket.socket) -> tuple[bytes, bool]:
    """What is there, and whether the end was reached."""
    parts: list[bytes] = []
    while True:
        try:
            part = end.recv(1 << 16)
        except BlockingIOError:
            return b"".join(parts), False
        except ConnectionError:
            return b"".join(parts), True
        if not part:
            return b"".join(parts), True
        parts.append(part)


def carry(pair: Pair, sent: bytes, sizes: list[int], read_now: Callable[[], bool]) -> tuple[bytes, bool]:
    """Write `sent` in pieces of these sizes, then the rest; read whenever `read_now()`. What came, and whether it ended."""
    came, ended, position, turn = b"", False, 0, 0
    while position < len(sent):
        piece = sent[position : position + sizes[turn]] if turn < len(sizes) else sent[position:]
        turn += 1
        try:
            position += pair.a.send(piece)
        except BlockingIOError:
            part, ended = read(pair.b)
            came += part
        except ConnectionError:
            break
        pair.broker.settle()
        if read_now():
            part, ended = read(pair.b)
            came += part
    while not ended:
        pair.broker.settle()
        part, ended = read(pair.b)
        came += part
        if not part:
            break
    return came, ended


pieces = st.lists(st.integers(1, 40_000), min_size=1, max_size=8)


@given(st.integers(0, 60_000), pieces, st.integers(1, 9), st.randoms(use_true_random=False))
def test_any_bytes_in_any_pieces_come_out_as_they_went_in(
    size: int, sizes: list[int], window: int, chance: random.Random
) -> None:
    sent = chance.randbytes(size)
    with Pair(chunk_bytes=1024 + len(sizes) * 300, window=window) as pair:
        came, ended = carry(pair, sent, sizes, lambda: chance.random() < 0.4)
        assert (came, ended) == (sent, False)
        pair.b.send(b"back")
        pair.broker.settle()
        assert read(pair.a) == (b"back", False)


@given(st.integers(0, 30_000), pieces, st.lists(st.sampled_from("....d2s"), max_size=60))
def test_what_a_broker_does_to_messages_ends_the_stream_or_nothing_is_wrong(
    size: int, sizes: list[int], done: list[str]
) -> None:
    """Messages are lost, come twice or in another order: a prefix comes out, whole unless the stream ended."""
    sent = random.Random(size).randbytes(size)
    with Pair(chunk_bytes=1024) as pair:
        queue = pair.broker.queue
        honest = pair.broker.deliver
        faults = iter(done)

        def deliver() -> bool:
            match next(faults, ".") if queue else ".":
                case "d":
                    queue.popleft()
                case "2":
                    queue.appendleft(queue[0])
                case "s" if len(queue) > 1:
                    queue[0], queue[1] = queue[1], queue[0]
            return honest()

        pair.broker.deliver = deliver  # type: ignore[method-assign]
        came, _ = carry(pair, sent, sizes, lambda: True)
        pair.broker.deliver = honest  # type: ignore[method-assign]
        # The last message may have been lost, or a credit: the count tells.
        for _ in range(2):
            for tunnels in pair.tunnels:
                tunnels.tick()
        came += carry(pair, b"", [1], lambda: True)[0]
        assert sent.startswith(came)
        assert came == sent or read(pair.a)[1] or read(pair.b)[1]


def test_a_lost_message_that_was_the_last_is_noticed_by_the_count() -> None:
    with Pair() as pair:
        pair.a.send(b"x")
        pair.broker.sessions[0].turn()
        pair.broker.queue.clear()
        pair.tunnels[0].tick()  # something went out since the last one
        pair.tunnels[0].tick()
        pair.broker.settle()
        assert read(pair.b) == (b"", True)
        assert read(pair.a) == (b"", True)


@pytest.mark.parametrize("window", [1, 4])
def test_a_reader_that_does_not_read_leaves_no_more_with_the_broker_than_the_window(window: int) -> None:
    with Pair(chunk_bytes=1024, window=window) as pair:
        while True:
            try:
                pair.a.send(bytes(100_000))
            except BlockingIOError:
                break
            for session in pair.broker.sessions:
                session.turn()
            kinds = [payload[0] for _, payload, _ in pair.broker.queue]
            assert kinds.count(PacketKind.DATA) <= window
        sent = 0
        while pair.broker.deliver() or pair.broker.sessions[0].turn():
            sent += 1
        came, ended = read(pair.b)
        assert not ended and 0 < len(came) < 2_000_000


def test_half_a_stream_ends_after_what_was_written_and_the_other_half_goes_on() -> None:
    with Pair() as pair:
        pair.a.send(b"the last words")
        pair.a.shutdown(socket.SHUT_WR)
        pair.broker.settle()
        assert read(pair.b) == (b"the last words", True)
        pair.b.send(b"heard")
        pair.broker.settle()
        assert read(pair.a) == (b"heard", False)


def test_what_was_written_before_a_close_still_comes() -> None:
    with Pair(window=2, chunk_bytes=1024) as pair:
        pair.a.send(bytes(50_000))
        pair.a.close()
        pair.broker.settle()
        came, ended = read(pair.b)
        assert (len(came), ended) == (50_000, True)
        pair.broker.settle()
        assert not any(tunnels.poll_events() for tunnels in pair.tunnels)


def test_a_lost_connection_to_the_broker_ends_all_streams() -> None:
    with Pair() as pair:
        pair.tunnels[0].disconnected("cut")
        assert read(pair.a) == (b"", True)


def test_an_agent_that_is_gone_ends_its_streams_and_no_others() -> None:
    with Pair() as pair:
        first = pair.tunnels[0]
        pair.sessions[1].is_up = False
        pair.sessions[0].post(lambda: first.doubt("c" * 16, "gone"))
        assert read(pair.a) == (b"", False)
        pair.sessions[0].post(lambda: first.doubt(B, "gone"))
        assert read(pair.a) == (b"", True)


def test_who_is_only_said_to_be_gone_is_asked_for_once_and_its_streams_go_on() -> None:
    with Pair() as pair:
        first = pair.tunnels[0]
        for _ in range(100):
            first.doubt(B, "gone")
        assert len(pair.broker.queue) == 1
        pair.broker.settle()
        pair.a.send(b"there")
        pair.b.send(b"and back")
        pair.broker.settle()
        assert read(pair.b) == (b"there", False) and read(pair.a) == (b"and back", False)


def test_nobody_there_is_said_at_once() -> None:
    with Pair() as pair, pytest.raises(Unavailable, match="nobody of that id"):
        pair.tunnels[0].connect(mqtt_address("c" * 16), 1.0)


def test_only_addresses_through_the_broker_are_dialled() -> None:
    with Pair() as pair, pytest.raises(Unavailable, match="only through the broker"):
        pair.tunnels[0].connect(("10.0.0.1", 7433), 1.0)


def test_messages_are_smaller_than_the_brokers_limit() -> None:
    limit = OVERHEAD_BYTES + 1024
    with Pair(chunk_bytes=100_000, window=8, largest_bytes=limit) as pair:  # the fake broker checks each one
        came, _ = carry(pair, bytes(30_000), [30_000], lambda: True)
        assert len(came) == 30_000
    with pytest.raises(Unavailable, match="too little"):
        Pair(largest_bytes=limit - 1)


HELLO = Packet(PacketKind.HELLO, 4, b"1 " + b"c" * 16).encode()
STREAM = "1" * 32


@pytest.mark.parametrize(
    ("stream", "payload", "retained"),
    [
        (STREAM, b"", False),
        (STREAM, b"\x01", False),
        (STREAM, HEADER.pack(99, 0), False),
        (STREAM, Packet(PacketKind.HELLO, 4, b"1 me").encode(), False),
        (STREAM, Packet(PacketKind.HELLO, 4, b"\xff" * 40).encode(), False),
        (STREAM, Packet(PacketKind.DATA, 0, b"of no stream").encode(), False),
        (STREAM, reset("of no stream").encode(), False),
        ("no-id", HELLO, False),
        (STREAM, HELLO, True),
    ],
)
def test_what_opens_no_stream(stream: str, payload: bytes, retained: bool) -> None:
    with Pair() as pair:
        pair.tunnels[1].took(f"{ROOT}/to/{B}/{stream}", payload, retained)
        assert len(pair.taken) == 1 and not pair.broker.queue


def test_another_version_and_too_many_streams_are_refused_with_the_reason() -> None:
    with Pair() as pair:
        topic = f"{ROOT}/to/{B}/"
        pair.tunnels[1].took(topic + STREAM, Packet(PacketKind.HELLO, 4, b"2 " + b"c" * 16).encode(), False)
        _, payload, _ = pair.broker.queue.popleft()
        assert "version 1" in reason(decode(payload))
        for number in range(TunnelOptions().most):
            pair.tunnels[1].took(f"{topic}{number:032x}", HELLO, False)
        _, payload, _ = pair.broker.queue.pop()
        assert "streams already" in reason(decode(payload))
        assert len(pair.taken) == TunnelOptions().most
        for connection, _ in pair.taken[1:]:
            connection.close()


def test_whoever_sends_more_than_was_granted_is_cut_off() -> None:
    tunnel = Tunnel(window=2)
    tunnel.open(2)
    for number in range(2):
        assert tunnel.take(Packet(PacketKind.DATA, number, b"x")) == b"x"
    with pytest.raises(FrameError, match="granted"):
        tunnel.take(Packet(PacketKind.DATA, 2, b"x"))


def open_tunnels(window: int) -> tuple[Tunnel, Tunnel]:
    """Who writes, and who reads."""
    writer, reader = Tunnel(window), Tunnel(window)
    writer.open(reader.grant)
    reader.open(writer.grant)
    return writer, reader


@given(st.integers(1, 9), st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_who_reads_at_any_pace_is_always_sent_more_and_never_more_than_the_window(
    window: int, waits: list[float]
) -> None:
    writer, reader = open_tunnels(window)
    now, on_the_way = 0.0, 0
    for wait in waits:
        while writer.has_room:
            reader.take(writer.data(b"x"))
            on_the_way += 1
        assert 1 <= on_the_way <= window
        now += wait
        if (credit := reader.note_read(now)) is not None:
            writer.take(credit)
        on_the_way -= 1


@pytest.mark.parametrize(("each_s", "most"), [(0.0, 8), (0.001, 8), (0.15 / 5, 6), (0.15 / 3, 4), (1.0, 2)])
def test_as_much_is_on_the_way_as_is_read_in_a_moment(each_s: float, most: int) -> None:
    writer, reader = open_tunnels(8)
    on_the_way: list[int] = []
    for turn in range(40):
        while writer.has_room:
            reader.take(writer.data(b"x"))
        on_the_way.append(writer._sent - turn)
        if (credit := reader.note_read(turn * each_s)) is not None:
            writer.take(credit)
    assert most - 1 <= max(on_the_way[10:]) <= most


@pytest.mark.parametrize("kind", [PacketKind.HELLO, PacketKind.WELCOME])
def test_what_has_no_place_in_an_open_stream_ends_it(kind: PacketKind) -> None:
    tunnel = Tunnel(window=2)
    tunnel.open(2)
    with pytest.raises(FrameError, match="open stream"):
        tunnel.take(Packet(kind, 4))


def test_nothing_comes_after_the_end() -> None:
    tunnel = Tunnel(window=2)
    tunnel.open(2)
    tunnel.take(Packet(PacketKind.END, 0))
    with pytest.raises(FrameError, match="after the end"):
        tunnel.take(Packet(PacketKind.DATA, 0, b"x"))


@given(st.sampled_from(PacketKind), st.integers(0, 2**64 - 1), st.binary(max_size=50))
def test_a_message_is_read_as_it_was_written(kind: PacketKind, number: int, body: bytes) -> None:
    read_back = decode(Packet(kind, number, body).encode())
    assert (read_back.kind, read_back.number, bytes(read_back.body)) == (kind, number, body)


@given(st.binary(max_size=400))
def test_a_reason_is_printable_whatever_came(body: bytes) -> None:
    assert reason(Packet(PacketKind.RESET, 0, body)).isprintable()
