"""Tunnel sockets: connections to other agents through the broker. A door: sockets; tunnel.py defines the messages.

Each tunnel ends here in one of a pair of local sockets. The agent has the other socket, and uses it like a TCP connection,
with the same mutual TLS, streams, limits and threads. The bytes therefore pass the kernel once more (a tenth of the time
of the way through the broker), and the kernel's buffers make each side wait, or tell it that the other side has closed, as
they do for TCP.

All methods belong to the session's thread, except those that say otherwise.
"""

from __future__ import annotations

import logging
import re
import secrets
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edgepart.agent.mqtt.session import Session
from edgepart.agent.mqtt.tunnel import Packet, PacketKind, Tunnel, decode, reason, reset
from edgepart.agent.net.stream import Stream, shake_hands
from edgepart.agent.wire.address import Address, format_address, mqtt_address, mqtt_node
from edgepart.planner.errors import FrameError, Unavailable

log = logging.getLogger(__name__)

ENDPOINT = re.compile(r"[0-9a-f]{16}")
STREAM_ID = re.compile(r"[0-9a-f]{32}")
VERSION = "1"
OVERHEAD_BYTES = 256
"""The bytes of a message besides its chunk: the topic and the headers."""
LEAST_CHUNK_BYTES = 1 << 10
ASK_AGAIN_S = 2.0
"""Seconds between two questions to the broker about the other side of a stream, however often it is said to be gone."""

OnConnection = Callable[[socket.socket, Address], None]
"""Takes a stream from another agent: our end of it, and the opener's address, which is not verified yet. Must not wait."""


@dataclass(frozen=True, slots=True)
class TunnelOptions:
    chunk_bytes: int = 128 << 10
    """The bytes of a stream in one message, or fewer if the broker demands it. Larger chunks make fewer messages; smaller
    ones make a heartbeat wait for less."""
    window: int = 8
    """The most messages of one stream on the way, which the broker has to keep if the reader is slow. A larger window
    suits a far broker; `window` times the number of streams to one agent has to stay below the broker's
    max_queued_messages (1000)."""
    most: int = 512
    """The most tunnels at once, which bounds the cost of a flood."""
    linger_s: float = 5.0
    """The time limit for sending the rest of the written bytes after the tunnel was closed here."""
    qos: int = 0
    """The QoS of data. With 1 the broker acknowledges each message to its sender, which tells nothing about its
    readers."""


@dataclass(eq=False)
class TunnelEnd:
    """Our end of a tunnel."""

    stream_id: str
    remote: str
    """The other side's endpoint."""
    topic: str
    """The topic that the other side reads."""
    connection: socket.socket
    tunnel: Tunnel
    waiting: deque[memoryview] = field(default_factory=deque)
    """Data that has arrived and that the stream's reader has not taken yet, at most the window."""
    settled: Callable[[str], None] | None = None
    """Called for a tunnel that this side opens: with "" when it is open, or with the reason why it is not."""
    hung_at: float | None = None
    """The time at which the agent's side of the pair was closed."""
    over: bool = False
    """Whether the other side has ended the tunnel, which is closed when all data that arrived is taken."""
    moved: bool = False
    """Whether anything was sent since the last tick."""
    doubt: str = ""
    """The reason that somebody gave who claims that the other side is gone; empty if nobody does. The broker is asked
    whether that is true."""
    asked: tuple[int, float] | None = None
    """The id of the message that asks, and when it was sent."""

    @property
    def events(self) -> int:
        """The poll() events to wait for at the local socket. poll() always reports a closed one."""
        readable = self.tunnel.has_room and not self.over
        return (select.POLLIN if readable else 0) | (select.POLLOUT if self.waiting else 0)


class TunnelSockets:
    """Dials and accepts tunnels, once a `Session` runs with this as a part."""

    def __init__(
        self, session: Session, root: str, endpoint: str, options: TunnelOptions | None = None
    ) -> None:
        """Set up the tunnels. `root` is the cluster's topic. `endpoint` has 16 hex digits: a node id, or random digits for
        a device that joins."""
        self.address: Address = mqtt_address(endpoint)
        self._session = session
        self._root = root
        self._endpoint = endpoint
        self._options = options or TunnelOptions()
        self._ends: dict[str, TunnelEnd] = {}
        self._by_descriptor: dict[int, TunnelEnd] = {}
        self._hellos: dict[int, TunnelEnd] = {}
        """TunnelSockets that are being opened, by the id of the message that opens them."""
        self._welcome: OnConnection | None = None
        self._chunk_bytes = 0

    # From any thread

    def listen(self, welcome: OnConnection) -> None:
        """Accept streams from other agents. Call this before the session starts."""
        self._welcome = welcome

    def dial(
        self, address: Address, context: ssl.SSLContext, *, timeout_s: float, dead_after_s: float = 5.0
    ) -> Stream:
        """Open a stream and shake hands, as stream.dial does. `dead_after_s` is unused, because the session notices dead
        connections. Raises Unavailable."""
        deadline = time.monotonic() + timeout_s
        connection = self.connect(address, timeout_s)
        return shake_hands(connection, context, format_address(address), deadline)

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """Return a connection to that agent, without any protection. Raises Unavailable if the agent does not accept it
        in time."""
        where = format_address(address)
        if (remote := mqtt_node(address)) is None:
            raise Unavailable(f"{where}: this agent reaches others only through the broker")
        self._session.check_up()
        ours, theirs = _pair()
        done, said = threading.Event(), [f"{where}: does not answer"]

        def settled(why: str) -> None:
            said[0] = why and f"{where}: {why}"
            done.set()

        self._session.post(lambda: self._open(remote, ours, settled))
        done.wait(timeout_s)
        if said[0]:
            theirs.close()
            raise Unavailable(said[0])
        return theirs

    # A part of the session

    def topics(self) -> list[str]:
        return [f"{self._root}/to/{self._endpoint}/+"]

    def connected(self) -> None:
        self._chunk_bytes = min(self._options.chunk_bytes, self._session.largest_bytes - OVERHEAD_BYTES)

    def disconnected(self, why: str) -> None:
        for end in list(self._ends.values()):
            self._drop(end, why)

    def took(self, topic: str, payload: bytes, retained: bool) -> None:
        root, _, stream_id = topic.rpartition("/")
        if root != f"{self._root}/to/{self._endpoint}" or retained or not STREAM_ID.fullmatch(stream_id):
            return
        end = self._ends.get(stream_id)
        try:
            message = decode(payload)
            if end is not None:
                self._take(end, message)
            elif message.kind is PacketKind.HELLO:
                self._accept(stream_id, message)
        except FrameError as error:
            if end is not None:
                log.warning("stream with %s ends: %s", end.remote, error)
                self._say(end, reset(str(error)))
                self._drop(end, str(error))

    def unheard(self, message_id: int) -> None:
        if (end := self._hellos.pop(message_id, None)) is not None:
            self._drop(end, "nobody of that id is connected to the broker")
        for end in list(self._ends.values()):
            if end.asked is not None and end.asked[0] == message_id:
                self._drop(end, end.doubt)

    def poll_events(self) -> dict[int, int]:
        """The poll() events to wait for, by descriptor. A closed socket that waits for room is left out, because poll()
        would report it again and again."""
        mask = select.POLLOUT if self._session.is_full else select.POLLIN | select.POLLOUT
        return {
            descriptor: end.events & mask
            for descriptor, end in self._by_descriptor.items()
            if end.hung_at is None or end.events & mask
        }

    def ready(self, descriptor: int, events: int) -> None:
        end = self._by_descriptor.get(descriptor)
        if end is None:
            return
        if events & (select.POLLHUP | select.POLLERR) and end.hung_at is None:
            end.hung_at = time.monotonic()
            end.waiting.clear()
        if events & select.POLLOUT and end.hung_at is None:
            self._pump_in(end)
        if (events & select.POLLIN or end.hung_at is not None) and end.stream_id in self._ends:
            self._pump_out(end)

    def tick(self) -> None:
        now = time.monotonic()
        for end in list(self._ends.values()):
            if end.hung_at is not None and now - end.hung_at > self._options.linger_s:
                self._close(end, "closed; not all of it could be sent")
            elif not end.moved and (count := end.tunnel.count()) is not None:
                self._say(end, count)
            end.moved = False
            if end.asked is not None and now - end.asked[1] > ASK_AGAIN_S:
                end.doubt, end.asked = "", None  # Message ids are reused.

    def doubt(self, remote: str, why: str) -> None:
        """Check a claim that the agent `remote` has left the broker. Anybody who may write to the broker can claim that, so
        the broker is asked whether anybody reads the agent's topics. Its streams end only if nobody does."""
        for end in self._ends.values():
            if end.remote == remote and end.asked is None:
                message_id = self._say(end, Packet(PacketKind.CREDIT, end.tunnel.grant), qos=1)
                end.doubt, end.asked = why, (message_id, time.monotonic())

    # Beginning

    def _open(self, remote: str, connection: socket.socket, settled: Callable[[str], None]) -> None:
        if (why := self._refusal()) is not None:
            connection.close()
            settled(why)
            return
        end = self._add(secrets.token_hex(16), remote, connection)
        end.settled = settled
        who = f"{VERSION} {self._endpoint}".encode()
        message_id = self._session.publish(
            end.topic, Packet(PacketKind.HELLO, end.tunnel.grant, who).encode(), qos=1
        )
        self._hellos[message_id] = end

    def _accept(self, stream_id: str, hello: Packet) -> None:
        version, _, remote = bytes(hello.body[:64]).decode("ascii", "replace").partition(" ")
        if not ENDPOINT.fullmatch(remote):
            raise FrameError("a hello does not say who opens the stream")
        topic = f"{self._root}/to/{remote}/{stream_id}"
        why = self._refusal() if version == VERSION else f"streams of version {VERSION} are spoken here"
        if self._welcome is None or why is not None:
            self._session.publish(topic, reset(why or "nobody is let in here").encode())
            return
        ours, theirs = _pair()
        end = self._add(stream_id, remote, ours)
        end.tunnel.open(hello.number)
        self._say(end, Packet(PacketKind.WELCOME, end.tunnel.grant))
        self._welcome(theirs, mqtt_address(remote))

    def _refusal(self) -> str | None:
        if not self._session.is_up:
            return f"no connection to the broker {self._session.broker}"
        if self._chunk_bytes < LEAST_CHUNK_BYTES:
            return (
                f"the broker takes no messages over {self._session.largest_bytes} bytes, which is too little"
            )
        if len(self._ends) >= self._options.most:
            return f"there are {self._options.most} streams already"
        return None

    def _add(self, stream_id: str, remote: str, connection: socket.socket) -> TunnelEnd:
        topic = f"{self._root}/to/{remote}/{stream_id}"
        end = TunnelEnd(stream_id, remote, topic, connection, Tunnel(self._options.window))
        self._ends[stream_id] = self._by_descriptor[connection.fileno()] = end
        return end

    # Carrying data

    def _take(self, end: TunnelEnd, message: Packet) -> None:
        if message.kind is PacketKind.RESET:
            self._ended(end, reason(message))
            return
        if message.kind is PacketKind.WELCOME and not end.tunnel.opened:
            end.tunnel.open(message.number)
            self._heard(end)
            self._settle(end, "")
            return
        body = end.tunnel.take(message)
        if message.kind is PacketKind.COUNT:
            self._say(end, Packet(PacketKind.CREDIT, end.tunnel.grant))
        if message.kind is PacketKind.DATA and end.hung_at is None:
            end.waiting.append(memoryview(body))
        if message.kind in (PacketKind.DATA, PacketKind.END) and end.hung_at is None:
            self._pump_in(end)

    def _ended(self, end: TunnelEnd, why: str) -> None:
        """Note that the other side ended the tunnel. Data that arrived before is still delivered to the reader."""
        end.over = True
        if not end.waiting or end.hung_at is not None:
            self._drop(end, why)

    def _pump_in(self, end: TunnelEnd) -> None:
        """Send data that arrived to the stream's reader, as far as the reader accepts it."""
        try:
            while end.waiting:
                chunk = end.waiting[0]
                count = end.connection.send(chunk)
                if count < len(chunk):
                    end.waiting[0] = chunk[count:]
                    continue
                end.waiting.popleft()
                if (credit := end.tunnel.note_read(time.monotonic())) is not None and not end.over:
                    self._say(end, credit)
            if end.over:
                self._drop(end, "the other side ended it")
            elif end.tunnel.ended_in:
                end.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            end.waiting.clear()  # The agent closed its side; poll() reports that as well.

    def _pump_out(self, end: TunnelEnd) -> None:
        """Send a chunk from the stream's writer to the broker."""
        if not end.tunnel.has_room or end.over:
            if end.hung_at is not None and (end.over or end.tunnel.ended_out):
                self._close(end, "closed")
            return
        if self._session.is_full:
            return
        try:
            chunk = end.connection.recv(self._chunk_bytes)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""  # The agent closed its side with data unread; all that it wrote was sent.
        if chunk:
            self._say(end, end.tunnel.data(chunk), self._options.qos)
        elif end.hung_at is not None:
            self._close(end, "closed")
        else:
            self._say(end, end.tunnel.end())
        end.moved = True

    def _say(self, end: TunnelEnd, message: Packet, qos: int = 0) -> int:
        return self._session.publish(end.topic, message.encode(), qos=qos)

    # Ending

    def _close(self, end: TunnelEnd, why: str) -> None:
        self._say(end, reset(why))
        self._drop(end, why)

    def _drop(self, end: TunnelEnd, why: str) -> None:
        if self._ends.pop(end.stream_id, None) is None:
            return
        del self._by_descriptor[end.connection.fileno()]
        self._heard(end)
        end.connection.close()
        self._settle(end, why)

    def _heard(self, end: TunnelEnd) -> None:
        """Forget the id of the message that opened this tunnel, because message ids are reused after a while."""
        self._hellos = {key: hello for key, hello in self._hellos.items() if hello is not end}

    def _settle(self, end: TunnelEnd, why: str) -> None:
        if end.settled is not None:
            end.settled(why)
            end.settled = None


def _pair() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets: one for the session, which must not wait, and one for the agent."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs
