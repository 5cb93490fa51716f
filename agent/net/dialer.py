"""Dialer: connects to agents at given addresses and checks their certificates. A door: sockets.

Addresses are tried in parallel, each a moment after the one before it, so that an address where nobody answers (a
container's bridge, an old lease, the other end of a pulled cable) costs that moment and not its whole time limit.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from edgepart.agent.net import dialer
from edgepart.agent.net.addresses import Interface, rank
from edgepart.agent.net.faults import Fault, Mistrusted, Unreached, blame, fault_of
from edgepart.agent.net.sightings import LinkObserver
from edgepart.agent.net.stream import Stream, shake_hands, tune
from edgepart.agent.security.identity import Identity, peer_id
from edgepart.agent.wire.address import Address, format_address, mqtt_node
from edgepart.planner.errors import EdgepartError, NotAuthorised, Unavailable

STAGGER_S = 0.2
"""Seconds between the starts of two tries. A longer time saves useless connections; a shorter one loses less time."""

MOST_OF_A_NAME = 4
"""The most addresses of one host name that are tried."""

Dial = Callable[[Address, ssl.SSLContext], Stream]
"""Opens a stream by another way than TCP. Raises Unavailable."""
Connected = tuple[Address, Stream | EdgepartError]
Reached = tuple[Address, tuple[str, Stream] | EdgepartError]
"""An address with the node id that answered and a stream to it, or with the reason why no link is possible there."""


def race(
    addresses: Sequence[Address], context: ssl.SSLContext, *, timeout_s: float, dead_after_s: float
) -> Generator[Connected, None, None]:
    """Yield each address, as soon as it is settled, with a stream to the agent that answers or the reason why there is
    none. `timeout_s` limits each step of each address. Closing the iterator gives up the tries that still run."""
    waiting, going = deque(addresses), selectors.DefaultSelector()
    begin_at = time.monotonic()
    try:
        while waiting or going.get_map():
            if waiting and (time.monotonic() >= begin_at or not going.get_map()):
                address = waiting.popleft()
                begin_at = time.monotonic() + STAGGER_S
                if (error := _begin(address, going, timeout_s)) is not None:
                    yield address, error
                    begin_at = time.monotonic()
                continue
            for connection, address, reason in _wait_settled(going, begin_at if waiting else None):
                if reason is not None:
                    connection.close()
                    yield address, _describe_unreached(address, reason)
                    begin_at = time.monotonic()
                else:
                    yield address, _shake_hands(connection, context, address, timeout_s, dead_after_s)
    finally:
        for key in list(going.get_map().values()):
            key.data[2].close()
        going.close()


def _begin(address: Address, going: selectors.BaseSelector, timeout_s: float) -> Unreached | None:
    """Begin to connect. Return the error if that is impossible. A name with several addresses is tried at up to
    MOST_OF_A_NAME of them."""
    if mqtt_node(address) is not None:
        return Unreached(
            Fault.UNREACHABLE,
            f"{format_address(address)}: is reached through a broker only: --transport mqtt",
        )
    if not 0 < address[1] <= 65535:  # the system would take the port modulo 65536
        return Unreached(Fault.UNREACHABLE, f"{format_address(address)}: there is no such port")
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
        return _describe_unreached(address, error)
    begun, last = 0, _error(errno.EADDRNOTAVAIL)
    for family, kind, protocol, _, where in found[:MOST_OF_A_NAME]:
        try:
            connection = _start_connecting(socket.socket(family, kind, protocol), where)
        except OSError as error:
            last = error
            continue
        data = (address, time.monotonic() + timeout_s, connection)
        going.register(connection, selectors.EVENT_WRITE, data)
        begun += 1
    return None if begun else _describe_unreached(address, last)


def _start_connecting(connection: socket.socket, where: Any) -> socket.socket:
    """Start to connect without waiting. If that is impossible, close the socket and raise OSError."""
    try:
        connection.setblocking(False)
        code = connection.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            raise _error(code)
    except BaseException:
        connection.close()
        raise
    return connection


def _error(code: int) -> Exception:
    return OSError(code, os.strerror(code))


def _wait_settled(
    going: selectors.BaseSelector, begin_at: float | None
) -> list[tuple[socket.socket, Address, Exception | None]]:
    """Return the connections that succeeded, failed or timed out, no later than `begin_at`, and stop watching them."""
    ends = [key.data[1] for key in going.get_map().values()]
    until = min(ends if begin_at is None else [*ends, begin_at])
    ready = {key.fd for key, _ in going.select(max(0.0, until - time.monotonic()))}
    now, settled = time.monotonic(), list[tuple[socket.socket, Address, Exception | None]]()
    for key in list(going.get_map().values()):
        address, end, connection = key.data
        if key.fd not in ready and now < end:
            continue
        going.unregister(connection)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        reason = _error(code) if code else None
        settled.append((connection, address, reason if key.fd in ready else TimeoutError()))
    return settled


def _shake_hands(
    connection: socket.socket,
    context: ssl.SSLContext,
    address: Address,
    timeout_s: float,
    dead_after_s: float,
) -> Stream | EdgepartError:
    try:
        connection.setblocking(True)
        tune(connection, dead_after_s)
        return shake_hands(connection, context, format_address(address), time.monotonic() + timeout_s)
    except OSError as error:  # the connection has ended already
        connection.close()
        return _describe_unreached(address, error)
    except Unavailable as error:
        return error


def _describe_unreached(address: Address, error: Exception) -> Unreached:
    fault, text = blame(error)
    return Unreached(fault, f"{format_address(address)}: {text}")


class Dialer:
    """Connects one agent to others."""

    def __init__(
        self,
        identity: Identity,
        interfaces: Callable[[], Sequence[Interface]],
        timeout_s: float,
        dead_after_s: float,
        another_way: Dial | None = None,
    ) -> None:
        """`another_way` replaces TCP."""
        self._identity = identity
        self._interfaces = interfaces
        self._context = identity.client_context()
        self._timeout_s = timeout_s
        self._dead_after_s = dead_after_s
        self._another_way = another_way

    def each(self, expected: str | None, addresses: Sequence[Address]) -> Generator[Reached, None, None]:
        """Yield the outcome of each address as soon as it is known. The caller closes the streams. `expected` is the
        node id that has to answer (None: any member)."""
        for address, found in self._race(addresses):
            if isinstance(found, EdgepartError):
                yield address, found
                continue
            try:
                where = format_address(address)
                yield address, (dialer.identify(self._identity, found.connection, expected, where), found)
            except NotAuthorised as error:
                found.close()
                yield address, error

    def renew(self) -> None:
        """Show this node's current certificate in all new connections."""
        self._context = self._identity.client_context()

    def again(self, node_id: str, address: Address) -> Stream:
        """Return another stream to the node that answered at `address`. Raises Unavailable or NotAuthorised."""
        for _, found in self.each(node_id, [address]):
            if isinstance(found, EdgepartError):
                raise found
            return found[1]
        raise Unreached(Fault.UNREACHABLE, f"{format_address(address)}: leads nowhere from here")

    def _race(self, addresses: Sequence[Address]) -> Iterator[Connected]:
        if self._another_way is None:
            order = rank(addresses, self._interfaces())
            yield from race(order, self._context, timeout_s=self._timeout_s, dead_after_s=self._dead_after_s)
            return
        for address in addresses:
            try:
                yield address, self._another_way(address, self._context)
            except Unavailable as error:
                yield address, error


class DialAttempts:
    """The outcomes of trying the addresses of one call."""

    def __init__(self, expected: str | None, witness: LinkObserver | None) -> None:
        self._expected = expected
        self._witness = witness
        self._refusals: list[EdgepartError] = []

    def refused(self, address: Address, error: EdgepartError, node_id: str = "") -> None:
        self._refusals.append(error)
        self._tell(node_id or self._expected or "", address, error)

    def led(self, address: Address, node_id: str) -> None:
        self._tell(node_id, address, None)

    def _tell(self, node_id: str, address: Address, error: EdgepartError | None) -> None:
        if self._witness is not None:
            fault = None if error is None else fault_of(error)
            self._witness.tried(node_id, format_address(address), fault, str(error or ""))

    def failure(self) -> EdgepartError:
        """Return the error to raise if no address led to a link, with the reason of each address."""
        if len(self._refusals) == 1 and isinstance(self._refusals[0], NotAuthorised):
            return self._refusals[0]
        told = "; ".join(map(str, self._refusals))
        return Unavailable(told or f"no address is known for {self._expected}")


def identify(me: Identity, connection: ssl.SSLSocket, expected: str | None, where: str) -> str:
    """Return the node id that answered at `where`. Raises Mistrusted if it showed no certificate, is this agent itself,
    is not `expected` (None: any member), or is revoked."""
    node_id = peer_id(connection)
    if node_id is None:
        raise Mistrusted(Fault.NO_TLS, f"{where} shows no certificate")
    if node_id == me.node_id:
        raise Mistrusted(Fault.ITSELF, f"{where} is this agent itself, or a copy of its state directory")
    if expected is not None and node_id != expected:
        raise Mistrusted(Fault.OTHER_NODE, f"{where} is node {node_id}, not {expected}")
    if node_id in me.revoked_nodes():
        raise Mistrusted(Fault.REVOKED, f"{where} is node {node_id}, which is revoked")
    return node_id
