"""Fuzz targets for anyone who may write to the broker: presence, and the messages of streams."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from edgepart.agent.mqtt.presence import Presence, Present, read_present
from edgepart.agent.mqtt.tunnel import Packet, PacketKind, Tunnel, decode, reason, reset
from edgepart.agent.mqtt.tunnel_sockets import TunnelOptions, TunnelSockets
from edgepart.agent.wire.address import Address
from edgepart.planner.errors import FrameError
from tests.agent.mqtt.fakes import FakeBroker, FakeSession
from tests.fuzz.forms import Bytes, Json, Sequenced, headed, parts
from tests.fuzz.target import Take, Target, expect, plainly

ROOT = "edgepart/" + "0" * 16
NODE, OTHER = "1" * 16, "2" * 16
STREAM = "a" * 32
BIG = 1 << 20


def _present(data: bytes) -> None:
    found = read_present(f"{ROOT}/presence/{NODE}", data)
    expect(
        read_present(f"{ROOT}/presence/{NODE}", found.encode()) == found,
        "presence is another after a round trip",
    )


def _present_seeds() -> list[bytes]:
    here = Present(
        NODE, "b" * 16, "pi-a", "1.0+traces", (("1.2.3.4", 5), ("fe80::1%eth0", 6), (f"mqtt:{NODE}", 0))
    )
    return [here.encode(), here.gone.encode()]


@contextmanager
def _listening() -> Iterator[Take]:
    """Yield a function that sends a message to the presence of an agent that announces itself and hears
    others. A case that starts with "{" counts as retained."""
    seen: list[object] = []
    session = FakeSession(FakeBroker(), BIG)
    presence = Presence(session, ROOT, "0" * 64, seen.append, lambda node, why: seen.append(node))  # type: ignore[arg-type]
    presence.say(lambda: Present(OTHER, "c" * 16, "pi-b", "1", (("1.2.3.5", 5),)))
    presence.connected()

    def take(data: bytes) -> int:
        for node in (NODE, OTHER):
            presence.took(f"{ROOT}/presence/{node}", data, bool(data[:1] == b"{"))
        presence.tick()
        session.network.queue.clear()
        came = len(seen)
        seen.clear()
        return came

    yield take


def _tunnel(data: bytes) -> None:
    """Take a stream's messages one after the other, as they arrive from the other side."""
    tunnel, came = Tunnel(8), 0
    for number, piece in enumerate(parts(data)):
        message = decode(piece)
        if message.kind is PacketKind.RESET:
            expect(all(letter.isprintable() for letter in reason(message)), "a reason that is not printable")
            continue
        came += len(tunnel.take(message))
        tunnel.note_read(number * 0.01)
        if tunnel.has_room:
            tunnel.data(b"x").encode()
        expect(tunnel.grant - number <= 9 + 8, "more is granted than the window")
    expect(came <= len(data), "more came than was sent")


def _messages() -> list[bytes]:
    ends = (
        Packet(PacketKind.CREDIT, 4),
        Packet(PacketKind.COUNT, 2),
        Packet(PacketKind.END, 2),
        reset("closed"),
    )
    return [
        m.encode() for m in (Packet(PacketKind.DATA, 0, b"abc"), Packet(PacketKind.DATA, 1, b"d" * 60), *ends)
    ]


def _tunnel_seeds() -> list[bytes]:
    every = [headed(message) for message in _messages()]
    return [b"".join(every), *every[:3]]


@contextmanager
def _tunnels() -> Iterator[Take]:
    """Yield a function that sends messages of streams that others open with us. Local sockets stand behind
    the streams."""
    session = FakeSession(FakeBroker(), BIG)
    inside: list[socket.socket] = []

    def welcome(connection: socket.socket, address: Address) -> None:
        inside.append(connection)

    tunnels = TunnelSockets(session, ROOT, NODE, TunnelOptions(most=4))  # type: ignore[arg-type]
    tunnels.listen(welcome)
    session.start(tunnels)

    def take(data: bytes) -> str:
        for piece in parts(data):
            tunnels.took(f"{ROOT}/to/{NODE}/{STREAM}", piece, False)
            expect(len(tunnels.poll_events()) <= 4, "more streams than may be")
        _turn(tunnels)
        for connection in inside:
            connection.close()
        inside.clear()
        tunnels.disconnected("the case is over")
        said = "".join(str(decode(payload).kind.value) for _, payload, _ in session.network.queue)
        session.network.queue.clear()
        expect(not tunnels.poll_events(), "a stream outlives its connection")
        return said[:8]

    yield take


def _turn(tunnels: TunnelSockets) -> None:
    poll = select.poll()
    for descriptor, events in tunnels.poll_events().items():
        poll.register(descriptor, events)
    for descriptor, events in poll.poll(0):
        tunnels.ready(descriptor, events)
    tunnels.tick()


def _tunnels_seeds() -> list[bytes]:
    hello = Packet(PacketKind.HELLO, 4, b"1 " + OTHER.encode()).encode()
    return [b"".join(map(headed, [hello, *_messages()])), headed(hello) * 2]


TARGETS = (
    Target("MQTT presence", _present_seeds, plainly(_present), (FrameError,), Json()),
    Target("MQTT presence, heard", _present_seeds, _listening, (), Json()),
    Target("MQTT stream messages", _tunnel_seeds, plainly(_tunnel), (FrameError,), Sequenced(Bytes())),
    Target("MQTT streams", _tunnels_seeds, _tunnels, (), Sequenced(Bytes()), 0.3),
)
