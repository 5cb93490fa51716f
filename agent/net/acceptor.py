"""Acceptor: the listening port, up to a finished handshake. A door: sockets and threads.

Whoever connects is a stranger until its certificate is verified: at most `strangers` of them at once, each
for a few seconds, with small frames (strangers.py). Nothing that they send stops the port.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edgepart.agent.host.open_files import for_strangers, open_files
from edgepart.agent.net.faults import knock
from edgepart.agent.net.sightings import Witness
from edgepart.agent.net.strangers import Stranger, Strangers
from edgepart.agent.net.stream import Stream, tune
from edgepart.agent.security.identity import Identity, peer_id
from edgepart.agent.wire.address import Address, format_address
from edgepart.planner.errors import EdgepartError, Unavailable

log = logging.getLogger(__name__)

Serve = Callable[[Stream, str | None, Address, Callable[[], None]], None]
"""Called in the connection's own thread with the stream, the verified node id (None: no certificate; it may be revoked),
the peer's address, and a function that ends its time as a stranger. The stream is closed when it returns."""


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    strangers: int = 64
    """Connections at once that are not known to be a member's. More lets many boards join at once; fewer
    bounds what a flood costs (a thread and some 100 KiB each). Where the process may open few files, they are fewer."""
    stranger_s: float = 10.0
    """The time limit for a stranger's handshake and join. A longer one suits slow boards; a shorter one frees places
    sooner in a flood."""
    spared_s: float = 0.5
    """The time for which nobody's place is given to another address."""
    dead_after_s: float = 5.0
    """A connection that acknowledges nothing for so long is over."""
    quiet_s: float = 10.0
    """The same complaint is logged once in so long."""


class Complaints:
    """Logs refusals, each kind once per while, so that a flood does not fill the disk."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def log(self, kind: str, text: str) -> None:
        """`kind` is one of few constants."""
        now = time.monotonic()
        with self._lock:
            at, hidden = self._last.get(kind, (-self._quiet_s, 0))
            if now - at < self._quiet_s:
                self._last[kind] = (at, hidden + 1)
                return
            self._last[kind] = (now, 0)
        log.warning("%s%s", text, f" (and {hidden} more like it before)" if hidden else "")


class Acceptor:
    """Listens from `start` to `stop`; one thread accepts, each connection gets one of its own."""

    def __init__(
        self, identity: Identity, serve: Serve, options: AcceptOptions, witness: Witness | None = None
    ) -> None:
        self._identity = identity
        self._serve = serve
        self._options = options
        self._context = identity.server_context()
        self._places = min(options.strangers, for_strangers(open_files()))
        self._strangers = Strangers(self._places, options.spared_s)
        self._complaints = Complaints(options.quiet_s)
        self._witness = witness
        self._stopped = threading.Event()
        self._socket: socket.socket | None = None

    def renew(self) -> None:
        """Connections from now on show the certificate that this node has now."""
        self._context = self._identity.server_context()

    def start(self, host: str, port: int) -> Address:
        """Listen; hosts "" and "::" mean every address, of IPv4 and IPv6. Unavailable where that cannot be."""
        if not 0 <= port <= 65535:
            raise Unavailable(f"cannot listen on port {port}: choose one up to 65535, or 0 for any")
        try:
            both = host in ("", "::") and socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
        except OSError as error:
            text = format_address((host or "*", port))
            raise Unavailable(f"cannot listen on {text}: {error}; choose another address or port") from error
        threading.Thread(target=self._accept, args=[self._socket], name="accept", daemon=True).start()
        bound = self._socket.getsockname()
        return bound[0], bound[1]

    def take(self, connection: socket.socket, peer: Address) -> None:
        """A connection that came by another way than the port; it is ended here. Any thread; does not wait."""
        if self._stopped.is_set():
            connection.close()
        else:
            self._welcome(connection, peer)

    def stop(self) -> None:
        """No connection is taken from now on; those of strangers end."""
        self._stopped.set()
        self._strangers.cut_all()
        if self._socket is not None:
            _cut(self._socket)

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while not self._stopped.is_set():
                try:
                    connection, peer = listener.accept()
                except OSError as error:
                    if not self._stopped.is_set():
                        # Out of descriptors, or a peer that gave up in the queue: others may still come.
                        self._complaints.log("accept", f"a connection could not be accepted: {error}")
                        self._stopped.wait(0.05)
                    continue
                self._welcome(connection, _address(peer))

    def _welcome(self, connection: socket.socket, peer: Address) -> None:
        guest = _Guest(connection)
        if not self._strangers.admit(guest, Stranger(peer[0], time.monotonic(), guest.cut)):
            connection.close()
            self._complaints.log("full", f"refused {peer[0]}: {self._places} strangers wait already")
            return
        try:
            threading.Thread(target=self._converse, args=[guest, peer], name="stranger", daemon=True).start()
        except RuntimeError as error:  # no more threads to be had: others may still come
            connection.close()
            self._strangers.leave(guest)
            self._complaints.log("thread", f"a connection from {peer[0]} could not be served: {error}")

    def _converse(self, guest: _Guest, peer: Address) -> None:
        raw = guest.connection
        try:
            if raw.family != socket.AF_UNIX:
                tune(raw, self._options.dead_after_s)
            raw.settimeout(self._options.stranger_s)
            connection = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            guest.connection = connection
            if guest.over:
                raise Unavailable("its place was needed")
            connection.do_handshake()
            who = peer_id(connection)
            self._serve(Stream(connection), who, peer, lambda: self._strangers.leave(guest))
        except Unavailable as error:
            log.debug("connection from %s ended: %s", peer[0], error)
        except (EdgepartError, OSError) as error:
            self._complaints.log(type(error).__name__, f"connection from {peer[0]} closed: {error}")
            if self._witness is not None:
                self._witness.knocked(peer[0], knock(error))
        finally:
            _cut(guest.connection)
            guest.connection.close()
            self._strangers.leave(guest)


class _Guest:
    """A connection that may be cut while its thread is turning it into another object."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.over = False

    def cut(self) -> None:
        self.over = True
        _cut(self.connection)


def _address(peer: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """The address as one would dial it: IPv4 that came in over IPv6 is IPv4, and a link-local one has its scope."""
    host = peer[0].removeprefix("::ffff:") if "." in peer[0] else peer[0]
    if len(peer) == 4 and peer[3] and "%" not in host:
        host = f"{host}%{peer[3]}"
    return host, peer[1]


def _cut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # It was closed already.
