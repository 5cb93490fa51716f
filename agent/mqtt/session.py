"""Session: this agent's connection to the broker, which its own thread maintains. A door: paho-mqtt, sockets, a thread.

Two threads must not use paho at once, and its own network thread dies silently of a TLS error. Therefore one thread here
does everything: it waits in poll() for the broker, for the sockets of its parts (tunnel_sockets.py) and for the work that
other threads `post`. When a connection ends, everything that went over it ends; the next one starts afresh.

Only this module imports paho: an agent without a broker does not need it.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgepart.agent.mqtt.broker import Broker
from edgepart.agent.net.stream import tune
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

NOBODY_LISTENS = 0x10
"""The reason code of a PUBACK: no matching subscribers."""
UNSENT_BYTES = 128 << 10
"""The most unsent bytes that the kernel holds for the broker, so that a heartbeat does not wait behind many."""
READS = 16
"""The most reads from the broker before the other sockets have their turn."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    connect_s: float = 5.0
    """The time limit for a connection and the broker's welcome. A longer one suits a far broker."""
    keepalive_s: int = 5
    """The broker announces that this device is gone after 1.5 times this time without a sign of life. A shorter time
    notices a pulled cable sooner, and sends more when idle."""
    dead_after_s: float = 5.0
    """A broker that acknowledges nothing for this time is considered gone."""
    retry_first_s: float = 0.2
    retry_most_s: float = 2.0
    """The wait before a new connection doubles from `retry_first_s` up to this."""
    tick_s: float = 1.0
    largest_message_bytes: int = 1 << 20
    """Larger messages are not accepted, so that other writers at the broker cannot fill this device's memory."""


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the broker publishes in this device's name when the device is gone."""

    topic: str
    payload: bytes
    expiry_s: int
    """Seconds after which the broker forgets the message."""


class SessionUser(Protocol):
    """A part that uses a session. The session's thread calls all methods, and they must not wait."""

    def topics(self) -> Sequence[str]: ...
    def connected(self) -> None: ...
    def disconnected(self, why: str) -> None: ...
    def took(self, topic: str, payload: bytes, retained: bool) -> None: ...
    def unheard(self, message_id: int) -> None:
        """Note that the broker knows no reader of a message that was published with QoS 1."""

    def poll_events(self) -> Mapping[int, int]:
        """The poll() events to wait for, by descriptor."""

    def ready(self, descriptor: int, events: int) -> None: ...
    def tick(self) -> None:
        """Do periodic work. Called about once in `tick_s`."""


class Session:
    """Keeps a connection to the broker, and renews it when it ends, from `start` to `stop`."""

    def __init__(
        self, broker: Broker, client_id: str, will: Will | None, options: SessionOptions | None = None
    ) -> None:
        self.broker = broker
        self.options = options or SessionOptions()
        self._client_id = client_id
        self._will = will
        self._parts: list[SessionUser] = []
        self._client: Client | None = None
        self._took_any = False
        self._lost: str | None = None
        """The reason why this connection is over; None while it is not."""
        self._why_not = "not connected yet"
        """The reason why there is no connection, for people."""
        self._state = threading.Condition()
        self._up = False
        self._refused = False
        self._stopped = False
        self._closed = False
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._watched: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)
        self.largest_bytes = self.options.largest_message_bytes
        """Bytes of the largest message that the broker accepts, and that other agents accept by their own settings."""

    # From any thread

    def start(self, parts: Iterable[SessionUser]) -> None:
        self._parts = list(parts)
        self._thread.start()

    def stop(self, farewell: Callable[[], None] | None = None) -> None:
        """Call `farewell` in the session's thread, if there is a connection, and end the session."""

        def leave() -> None:
            if self._up and farewell is not None:
                farewell()
            self._stopped = True

        self.post(leave)
        if self._thread.ident is not None:
            self._thread.join(self.options.connect_s + 1.0)
        if not self._thread.is_alive():
            with self._state:
                self._closed = True
                os.close(self._wake)

    def post(self, work: Callable[[], None]) -> None:
        """Make the session's thread do `work` soon. If the session has been stopped, it is never done."""
        with self._state:
            if not self._closed:
                self._posted.append(work)
                os.eventfd_write(self._wake, 1)

    def check_up(self) -> None:
        """Raise Unavailable, with the reason, if there is no connection."""
        with self._state:
            if not self._up:
                raise Unavailable(f"no connection to the broker {self.broker}: {self._why_not}")

    def await_up(self, timeout_s: float) -> None:
        """Wait for a connection. Raises Unavailable, with the reason, if there is none in time or the broker refuses this
        agent."""
        with self._state:
            self._state.wait_for(lambda: self._up or self._refused, timeout_s)
        self.check_up()

    # From the session's thread

    @property
    def is_up(self) -> bool:
        return self._up

    @property
    def is_full(self) -> bool:
        """Whether the broker, or the network on the way, accepts no more bytes for now."""
        return self._client is None or self._client.want_write()

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False, expiry_s: int | None = None
    ) -> int:
        """Publish a message and return its id. Without a connection the message is dropped, 0 is returned, and
        `disconnected` has been called or will be."""
        if self._client is None or not self._up:
            return 0
        properties = None
        if expiry_s is not None:
            properties = _properties(PacketTypes.PUBLISH, MessageExpiryInterval=expiry_s)
        return self._client.publish(topic, payload, qos, retain, properties).mid

    def _run(self) -> None:
        wait_s = self.options.retry_first_s
        while not self._stopped:
            try:
                self._client = self._connect()
                began = time.monotonic()
                self._serve(self._client)
                if time.monotonic() - began > self.options.retry_most_s:
                    wait_s = self.options.retry_first_s
            # ValueError: an impossible host name. TLS errors are OSErrors.
            except (OSError, ValueError) as error:
                self._lost = str(error)
            except Exception as error:
                # The fault is ours and not the broker's. The connection is made anew, and the agent stays up.
                log.exception("what came from the broker could not be handled")
                self._lost = repr(error)
            self._down(self._lost or "the connection ended")
            self._pause(wait_s)
            wait_s = min(2 * wait_s, self.options.retry_most_s)
        self._do_posted()

    def _connect(self) -> Client:
        self._lost = None
        options, broker = self.options, self.broker
        client = Client(CallbackAPIVersion.VERSION2, self._client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.connect_timeout = options.connect_s
        client.on_connect, client.on_subscribe = self._welcomed, self._subscribed
        client.on_message, client.on_publish = self._message, self._published
        client.on_disconnect = self._disconnected
        if broker.tls:
            client.tls_set_context(ssl.create_default_context(cafile=broker.ca))
        if broker.user is not None:
            client.username_pw_set(broker.user, broker.password)
        if (will := self._will) is not None:
            last = _properties(PacketTypes.WILLMESSAGE, MessageExpiryInterval=will.expiry_s)
            client.will_set(will.topic, will.payload, qos=1, retain=True, properties=last)
        wishes = _properties(PacketTypes.CONNECT, MaximumPacketSize=options.largest_message_bytes)
        client.connect(broker.host, broker.port, options.keepalive_s, clean_start=True, properties=wishes)
        connection = client.socket()
        assert isinstance(connection, socket.socket)
        tune(connection, options.dead_after_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        return client

    # Waiting, and handling what arrives

    def _serve(self, client: Client) -> None:
        """Serve the connection until it ends; `_lost` then says why."""
        connection: Any = client.socket()
        descriptor = connection.fileno()
        give_up_at = time.monotonic() + self.options.connect_s
        tick_at = 0.0
        try:
            while not self._stopped and self._lost is None and client.socket() is not None:
                now = time.monotonic()
                if now >= tick_at:
                    tick_at = now + self.options.tick_s
                    self._tick(client)
                    if not self._up and now > give_up_at:
                        self._lost = "it does not answer"
                self._watch(descriptor, client)
                self._turn(client, connection, self._poll.poll(1000 * self.options.tick_s))
            if self._stopped:
                self._part(client, connection)
        finally:
            for each in self._watched:
                self._poll.unregister(each)
            self._watched = {}

    def _watch(self, descriptor: int, client: Client) -> None:
        wanted = {self._wake: select.POLLIN}
        for part in self._parts:
            wanted.update(part.poll_events())
        wanted[descriptor] = select.POLLIN | (select.POLLOUT if client.want_write() else 0)
        for gone in self._watched.keys() - wanted.keys():
            self._poll.unregister(gone)
        for each, events in wanted.items():
            if self._watched.get(each) != events:
                self._poll.register(each, events)
        self._watched = wanted

    def _turn(self, client: Client, connection: Any, happened: Sequence[tuple[int, int]]) -> None:
        """Handle the events of one poll(). The parts' sockets come first, because the other handlers may close some of
        them and open others with the same descriptor."""
        which = dict(happened)
        woken, broker = which.pop(self._wake, 0), which.pop(connection.fileno(), 0)
        for descriptor, events in which.items():
            for part in self._parts:
                part.ready(descriptor, events)
        if woken:
            os.eventfd_read(self._wake)
            self._do_posted()
        if broker:
            self._read(client, connection)
        if client.want_write():
            client.loop_write()

    def _read(self, client: Client, connection: Any) -> None:
        for _ in range(READS):
            self._took_any = False
            client.loop_read()
            waiting = isinstance(connection, ssl.SSLSocket) and connection.pending()
            if client.socket() is None or not (self._took_any or waiting):
                break
        if client.socket() is not None:
            # A broker that waits for full packets (mosquitto's default) waits until we acknowledge the last one.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _tick(self, client: Client) -> None:
        client.loop_misc()
        if self._up:
            for part in self._parts:
                part.tick()

    def _do_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _pause(self, seconds: float) -> None:
        """Wait without a connection. Posted work is still done."""
        until = time.monotonic() + seconds
        waiter = select.poll()
        waiter.register(self._wake, select.POLLIN)
        while not self._stopped and (left := until - time.monotonic()) > 0:
            if waiter.poll(1000 * left):
                os.eventfd_read(self._wake)
                self._do_posted()

    def _part(self, client: Client, connection: Any) -> None:
        """Send the queued messages, if the broker accepts them within a second, and disconnect."""
        until = time.monotonic() + 1.0
        while client.want_write() and client.socket() is not None and time.monotonic() < until:
            select.select([], [connection], [], 0.1)
            client.loop_write()
        client.disconnect()

    def _down(self, why: str) -> None:
        client, self._client = self._client, None
        if client is not None and (connection := client.socket()) is not None:
            connection.close()
        with self._state:
            was_up, self._up = self._up, False
            self._state.notify_all()
            new, self._why_not = why != self._why_not, why
        if (was_up or new) and not self._stopped:
            log.warning("no connection to the broker %s: %s", self.broker, why)
        for part in self._parts:
            part.disconnected(f"the connection to the broker {self.broker} ended: {why}")

    # paho's callbacks, within loop_read

    def _welcomed(
        self, client: Client, _: Any, flags: Any, code: ReasonCode, wishes: Properties | None
    ) -> None:
        if code.is_failure:
            self._lost, self._refused = f"it refuses this agent ({code})", True
            return
        theirs = getattr(wishes, "MaximumPacketSize", self.options.largest_message_bytes)
        self.largest_bytes = min(theirs, self.options.largest_message_bytes)
        topics = [topic for part in self._parts for topic in part.topics()]
        if topics:
            client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in topics])
        else:
            self._is_ready()

    def _subscribed(
        self, client: Client, _: Any, message_id: int, codes: list[ReasonCode], __: Properties | None
    ) -> None:
        if refused := [code for code in codes if code.is_failure]:
            self._lost = f"it does not let this agent read its topics ({refused[0]})"
            return
        self._is_ready()

    def _is_ready(self) -> None:
        with self._state:
            self._up = True
            self._why_not = ""
            self._state.notify_all()
        log.info("connected to the broker %s", self.broker)
        for part in self._parts:
            part.connected()

    def _message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        self._took_any = True
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return  # The topic is not one of ours.
        for part in self._parts:
            part.took(topic, bytes(message.payload), message.retain)

    def _published(
        self, client: Client, _: Any, message_id: int, code: ReasonCode, __: Properties | None
    ) -> None:
        if code.value == NOBODY_LISTENS or code.is_failure:
            for part in self._parts:
                part.unheard(message_id)

    def _disconnected(
        self, client: Client, _: Any, flags: Any, code: ReasonCode, __: Properties | None
    ) -> None:
        if self._lost is None:
            self._lost = str(code)


def _properties(kind: int, **values: int) -> Properties:
    made = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made
