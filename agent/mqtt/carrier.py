"""Carrier: connects an agent, or a device that joins, to a broker, through which it finds other agents and opens streams to
them. Wires the session and its parts together.
"""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from edgepart.agent.mqtt.broker import Broker
from edgepart.agent.mqtt.presence import Presence, Present, will
from edgepart.agent.mqtt.session import Session
from edgepart.agent.mqtt.tunnel_sockets import TunnelSockets
from edgepart.agent.net import stream
from edgepart.agent.net.addresses import rank
from edgepart.agent.net.interfaces import interfaces
from edgepart.agent.net.sightings import FINGERPRINT_DIGITS, AgentHint
from edgepart.agent.net.stream import Stream
from edgepart.agent.wire.address import Address, mqtt_node

MORE_S = 0.2
"""Seconds for which to listen for more members after the first one was heard."""


def root_of(fingerprint: str) -> str:
    """The root of the topics of a cluster's agents."""
    return f"edgepart/{fingerprint[:FINGERPRINT_DIGITS]}"


class BrokerCarrier:
    """A member's use of the broker, from `start`, when the member knows where it listens, to `stop`."""

    def __init__(
        self, broker: Broker, fingerprint: str, node: str, on_seen: Callable[[AgentHint], None]
    ) -> None:
        """Set up the session and its parts. The session's thread calls `on_seen`."""
        root, self.boot = root_of(fingerprint), secrets.token_hex(8)
        # Random, because whoever knew the client id could make the broker end our connection by connecting under it.
        client = f"edgepart-{node}-{secrets.token_hex(8)}"
        self._session = Session(broker, client, will(root, node, self.boot))
        self.tunnels = TunnelSockets(self._session, root, node)
        self._presence = Presence(self._session, root, fingerprint, on_seen, self.tunnels.doubt)

    @property
    def is_up(self) -> bool:
        return self._session.is_up

    def start(self, node: str, name: str, version: str, addresses: Callable[[], Sequence[Address]]) -> None:
        """Connect and announce this member. `addresses` returns the addresses at which members reach it now; the
        session's thread calls it too."""
        self._presence.say(lambda: Present(node, self.boot, name, version, tuple(addresses())))
        self._session.start([self._presence, self.tunnels])

    def stop(self) -> None:
        self._session.stop(self._presence.goodbye)


class JoinerCarrier:
    """The use of the broker by a device that joins: a context manager in which it finds and reaches members."""

    def __init__(self, broker: Broker, fingerprint: str, connect_s: float = 10.0) -> None:
        root, endpoint = root_of(fingerprint), secrets.token_hex(8)
        self._connect_s = connect_s
        self._changed = threading.Condition()
        self._seen: dict[Address, None] = {}
        self._session = Session(broker, f"edgepart-join-{endpoint}", None)
        self._tunnels = TunnelSockets(self._session, root, endpoint)
        self._presence = Presence(self._session, root, fingerprint, self._heard, self._tunnels.doubt)

    def __enter__(self) -> JoinerCarrier:
        """Connect to the broker. Raises Unavailable if the broker cannot be reached."""
        self._session.start([self._presence, self._tunnels])
        try:
            self._session.await_up(self._connect_s)
        except BaseException:
            self._session.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.stop()

    def _heard(self, seen: AgentHint) -> None:
        with self._changed:
            self._seen.update(dict.fromkeys(seen.addresses))
            self._changed.notify_all()

    def find(self, fingerprint: str, timeout_s: float) -> tuple[Address, ...]:
        """Return the addresses at which members claim to listen, as `mdns.find_members` does; () if none was heard in
        time."""
        with self._changed:
            if self._changed.wait_for(lambda: bool(self._seen), timeout_s):
                # The records of all members come at once; the first may be stale, of a member that has gone.
                self._changed.wait_for(lambda: False, MORE_S)
            return tuple(rank(self._seen, interfaces()))

    def dial(
        self, address: Address, context: ssl.SSLContext, *, timeout_s: float, dead_after_s: float = 5.0
    ) -> Stream:
        """Connect through the broker or by TCP, depending on the address."""
        reach = stream.dial if mqtt_node(address) is None else self._tunnels.dial
        return reach(address, context, timeout_s=timeout_s, dead_after_s=dead_after_s)
