"""Acceptor: the listening port, up to a finished handshake. A door: sockets and threads.

Whoever connects is a stranger until its certificate is verified: at most `strangers` of them at once, each
for a few seconds, with small frames. Nothing that they send stops the port.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edgepart.agent.identity import Identity, peer_id
from edgepart.agent.options import Address, format_address
from edgepart.agent.stream import Stream, tune
from edgepart.planner.errors import EdgepartError, NotAuthorised, Unavailable

log = logging.getLogger(__name__)

Serve = Callable[[Stream, str | None, Address, Callable[[], None]], None]
"""Called in the connection's own thread with the stream, the verified node id (None: no certificate), the
peer's address, and a function that ends its time as a stranger. The stream is closed when it returns."""


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    strangers: int = 64
    """Connections at once that are not known to be a member's. More lets many boards join at once; fewer
    bounds what a flood costs (a thread and some 100 KiB each)."""
    stranger_s: float = 10.0
    """For a handshake and a join. Longer suits slow boards; shorter frees places sooner in a flood."""
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

    def __init__(self, identity: Identity, serve: Serve, options: AcceptOptions) -> None:
        self._identity = identity
        self._serve = serve
        self._options = options
        self._context = identity.server_context()
        self._places = threading.BoundedSemaphore(options.strangers)
        self._complaints = Complaints(options.quiet_s)
        self._stopped = threading.Event()
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        """Connections that are not yet a member's: cut at the end."""

    def start(self, host: str, port: int) -> Address:
        """Listen; host "" means every address, of IPv6 too. Unavailable where that cannot be."""
        if not 0 <= port <= 65535:
            raise Unavailable(f"cannot listen on port {port}: choose one up to 65535, or 0 for any")
        try:
            both = host == "" and socket.has_dualstack_ipv6()
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
        with self._lock:
            waiting = list(self._open)
        if self._socket is not None:
            waiting.append(self._socket)
        for connection in waiting:
            _cut(connection)

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
        if not self._places.acquire(blocking=False):
            connection.close()
            self._complaints.log(
                "full", f"refused {peer[0]}: {self._options.strangers} strangers wait already"
            )
            return
        threading.Thread(target=self._converse, args=[connection, peer], name="stranger", daemon=True).start()

    def _converse(self, raw: socket.socket, peer: Address) -> None:
        known = threading.Event()
        connection: socket.socket = raw

        def leave() -> None:
            if not known.is_set():
                known.set()
                with self._lock:
                    self._open.discard(connection)
                self._places.release()

        try:
            if raw.family != socket.AF_UNIX:
                tune(raw, self._options.dead_after_s)
            raw.settimeout(self._options.stranger_s)
            connection = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            with self._lock:
                self._open.add(connection)
            connection.do_handshake()
            self._serve(Stream(connection), self._who(connection), peer, leave)
        except Unavailable as error:
            log.debug("connection from %s ended: %s", peer[0], error)
        except (EdgepartError, OSError) as error:
            self._complaints.log(type(error).__name__, f"connection from {peer[0]} closed: {error}")
        finally:
            _cut(connection)
            connection.close()
            leave()

    def _who(self, connection: ssl.SSLSocket) -> str | None:
        node_id = peer_id(connection)
        if node_id in self._identity.revoked():
            raise NotAuthorised(f"node {node_id} is revoked")
        return node_id


def _address(peer: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """As one would dial it: IPv4 that came in over IPv6 is IPv4, a link-local one has its scope."""
    host = peer[0].removeprefix("::ffff:") if "." in peer[0] else peer[0]
    if len(peer) == 4 and peer[3] and "%" not in host:
        host = f"{host}%{peer[3]}"
    return host, peer[1]


def _cut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # It was closed already.
