"""Tunnels: connections to other agents through the broker. A door: sockets; what travels is in tunnel.py.

Each tunnel ends here in one of a pair of local sockets; the agent has the other one, and uses it as it would a TCP
connection: the same mutual TLS, the same streams, limits and threads. Bytes go once more through the kernel for that (a
tenth of what the way through the broker takes), and the kernel's buffers tell each side to wait, or that the other one has
closed, as they do for TCP.

All methods that do not say otherwise belong to the session's thread.
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
"""The broker is asked of a stream's other side once in so long, however often somebody says that it is gone."""

OnConnection = Callable[[socket.socket, Address], None]
"""A stream from another agent: our end of it, and who opened it (nothing is verified yet). Must not wait."""


@dataclass(frozen=True, slots=True)
class TunnelOptions:
    chunk_bytes: int = 128 << 10
    """The bytes of a stream in one message, or less if the broker says so. Larger chunks make fewer messages; smaller
    ones let a heartbeat wait for less."""
    window: int = 8
    """Messages of one stream on the way: what the broker keeps of it at most when its reader is slow. More suits a far
    broker; `window` times the streams to one agent has to stay below the broker's max_queued_messages (1000)."""
    most: int = 512
    """Tunnels at once; bounds what a flood costs."""
    linger_s: float = 5.0
    """The time that what was written to a tunnel has to leave after the tunnel was closed here."""
    qos: int = 0
    """The QoS of data. With 1 the broker acknowledges each message to its sender, which says nothing of its readers."""


@dataclass(eq=False)
class End:
    """Our end of a tunnel."""

    stream_id: str
    remote: str
    """The other side's endpoint."""
    topic: str
    """The topic that the other side reads."""
    connection: socket.socket
    tunnel: Tunnel
    waiting: deque[memoryview] = field(default_factory=deque)
    """Came, and is not taken by the stream's reader yet; no more than the window."""
    settled: Callable[[str], None] | None = None
    """Called for a tunnel that this side opens: with "" when it is open, or with the reason why it is not."""
    hung_at: float | None = None
    """When the agent's side of the pair was closed."""
    over: bool = False
    """The other side has ended it: it is closed when all that came is taken."""
    moved: bool = False
    """Whether anything was sent since the last tick."""
    doubt: str = ""
    """Somebody says so of the other side, and the broker is to be asked, or was."""
    asked: tuple[int, float] | None = None
    """The id of the message that asks, and when it was sent."""

    @property
    def events(self) -> int:
        """What to wait for at the local socket; being closed is told always."""
        readable = self.tunnel.has_room and not self.over
        return (select.POLLIN if readable else 0) | (select.POLLOUT if self.waiting else 0)


class Tunnels:
    """Dials and accepts, once `Session` runs with this as a part."""

    def __init__(
        self, session: Session, root: str, endpoint: str, options: TunnelOptions | None = None
    ) -> None:
        """`root` is the cluster's topic, `endpoint` 16 hex digits: the node's id, or a joiner's random ones."""
        self.address: Address = mqtt_address(endpoint)
        self._session = session
        self._root = root
        self._endpoint = endpoint
        self._options = options or TunnelOptions()
        self._ends: dict[str, End] = {}
        self._by_descriptor: dict[int, End] = {}
        self._hellos: dict[int, End] = {}
        """By the id of the message that opens it."""
        self._welcome: OnConnection | None = None
        self._chunk_bytes = 0

    # From any thread

    def listen(self, welcome: OnConnection) -> None:
        """Take streams from others; before the session starts."""
        self._welcome = welcome

    def dial(
        self, address: Address, context: ssl.SSLContext, *, timeout_s: float, dead_after_s: float = 5.0
    ) -> Stream:
        """Open a stream and shake hands, as stream.dial does. (What is dead, the session notices.) Unavailable."""
        deadline = time.monotonic() + timeout_s
        connection = self.connect(address, timeout_s)
        return shake_hands(connection, context, format_address(address), deadline)

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """A connection to that agent, without any protection. Unavailable where it does not take it in time."""
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
        """A closed socket that has to wait for room would be told of again and again."""
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
                end.doubt, end.asked = "", None  # Ids of messages come again.

    def doubt(self, remote: str, why: str) -> None:
        """Somebody says that this agent is gone from the broker. As whoever may write there can say it, the broker is
        asked whether anybody reads where it listens; only if nobody does, its streams end."""
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

    def _add(self, stream_id: str, remote: str, connection: socket.socket) -> End:
        topic = f"{self._root}/to/{remote}/{stream_id}"
        end = End(stream_id, remote, topic, connection, Tunnel(self._options.window))
        self._ends[stream_id] = self._by_descriptor[connection.fileno()] = end
        return end

    # Going on

    def _take(self, end: End, message: Packet) -> None:
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

    def _ended(self, end: End, why: str) -> None:
        """By the other side. What came before is still for whoever reads the stream."""
        end.over = True
        if not end.waiting or end.hung_at is not None:
            self._drop(end, why)

    def _pump_in(self, end: End) -> None:
        """To the stream's reader, as far as it takes it."""
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
            end.waiting.clear()  # It was closed here; poll() tells that as well.

    def _pump_out(self, end: End) -> None:
        """A chunk from the stream's writer to the broker."""
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
            chunk = b""  # Closed before it had read all: what it wrote has come.
        if chunk:
            self._say(end, end.tunnel.data(chunk), self._options.qos)
        elif end.hung_at is not None:
            self._close(end, "closed")
        else:
            self._say(end, end.tunnel.end())
        end.moved = True

    def _say(self, end: End, message: Packet, qos: int = 0) -> int:
        return self._session.publish(end.topic, message.encode(), qos=qos)

    # Ending

    def _close(self, end: End, why: str) -> None:
        self._say(end, reset(why))
        self._drop(end, why)

    def _drop(self, end: End, why: str) -> None:
        if self._ends.pop(end.stream_id, None) is None:
            return
        del self._by_descriptor[end.connection.fileno()]
        self._heard(end)
        end.connection.close()
        self._settle(end, why)

    def _heard(self, end: End) -> None:
        """Ids of messages come again after a while, so none is kept for longer than it is of use."""
        self._hellos = {key: hello for key, hello in self._hellos.items() if hello is not end}

    def _settle(self, end: End, why: str) -> None:
        if end.settled is not None:
            end.settled(why)
            end.settled = None


def _pair() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets: one for the session, which must not wait, and one for the agent."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs
