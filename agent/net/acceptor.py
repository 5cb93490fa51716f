"""Acceptor: listens on a port and takes connections up to a finished handshake. A door: sockets and threads.

A connecting node is a stranger until its certificate is verified. At most `strangers` of them are served at once, each
for a few seconds, with small frames (strangers.py). Nothing that strangers send closes the port.
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
from edgepart.agent.net.sightings import LinkObserver
from edgepart.agent.net.strangers import Stranger, Strangers
from edgepart.agent.net.stream import Stream, tune
from edgepart.agent.security.identity import Identity, peer_id
from edgepart.agent.wire.address import Address, format_address
from edgepart.planner.errors import EdgepartError, Unavailable

log = logging.getLogger(__name__)

Serve = Callable[[Stream, str | None, Address, Callable[[], None]], None]
"""Serves a connection, in the connection's own thread. The arguments are the stream, the verified node id (None: no
certificate; the node may be revoked), the peer's address, and a function to call once the peer is no longer a stranger.
The stream is closed when this returns."""


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    strangers: int = 64
    """The most simultaneous connections that are not known to be a member's. A higher number lets many boards join at
    once; a lower one bounds the cost of a flood (a thread and some 100 KiB for each connection). It is reduced if the
    process may open few files."""
    stranger_s: float = 10.0
    """The time limit for a stranger's handshake and join. A longer one suits slow boards; a shorter one frees places
    sooner in a flood."""
    spared_s: float = 0.5
    """The time for which a stranger's place is not given to another address."""
    dead_after_s: float = 5.0
    """A connection that acknowledges nothing for this time is over."""
    quiet_s: float = 10.0
    """The same complaint is logged at most once in this time."""


class Complaints:
    """Logs refusals, each kind at most once in `quiet_s`, so that a flood does not fill the disk."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def log(self, kind: str, text: str) -> None:
        """Log `text` unless a complaint of the same kind was logged just now. `kind` is one of a few constants."""
        now = time.monotonic()
        with self._lock:
            at, hidden = self._last.get(kind, (-self._quiet_s, 0))
            if now - at < self._quiet_s:
                self._last[kind] = (at, hidden + 1)
                return
            self._last[kind] = (now, 0)
        log.warning("%s%s", text, f" (and {hidden} more like it before)" if hidden else "")


class Acceptor:
    """Listens from `start` to `stop`. One thread accepts connections, and each connection gets its own thread."""

    def __init__(
        self, identity: Identity, serve: Serve, options: AcceptOptions, witness: LinkObserver | None = None
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
        """Show this node's current certificate in all new connections."""
        self._context = self._identity.server_context()

    def start(self, host: str, port: int) -> Address:
        """Listen, and return the address in use. The hosts "" and "::" mean all IPv4 and IPv6 addresses. Raises
        Unavailable if that is impossible."""
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
        """Serve, and in the end close, a connection that did not come through the port. Any thread may call this; it does
        not wait."""
        if self._stopped.is_set():
            connection.close()
        else:
            self._welcome(connection, peer)

    def stop(self) -> None:
        """Accept no further connections, and end those of strangers."""
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
                        # The process is out of descriptors, or a peer gave up in the queue: others may still come.
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
        except RuntimeError as error:  # no more threads are available: others may still come
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
    """A connection that may be cut while its thread wraps it in another object."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.over = False

    def cut(self) -> None:
        self.over = True
        _cut(self.connection)


def _address(peer: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """Return the address in the form for dialling: IPv4 that came in over IPv6 becomes IPv4, and a link-local address
    gets its scope."""
    host = peer[0].removeprefix("::ffff:") if "." in peer[0] else peer[0]
    if len(peer) == 4 and peer[3] and "%" not in host:
        host = f"{host}%{peer[3]}"
    return host, peer[1]


def _cut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # The connection was closed already.
