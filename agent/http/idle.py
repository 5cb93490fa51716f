"""Idle connections: closes connections that send no request, which aiohttp itself leaves open, and makes room for new ones.
Door: aiohttp.

As long as there is room, aiohttp's keep-alive timer closes the connections on which a request was answered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.host.open_files import for_clients, open_files

YOUNG_S = 2.0
"""Seconds for which a connection counts as young: a request on it may be on its way."""


class IdleConnections:
    """Watches the connections of one server."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._most = min(limits.connections, for_clients(open_files()))
        self._heard: set[Any] = set()
        """Connections on which a whole request head has arrived."""
        self._came: dict[Any, tuple[str, asyncio.Transport, float]] = {}
        """The client's address, the transport and the time of arrival of every connection."""
        self._idle: dict[str, dict[Any, None]] = {}
        """Idle connections by the client's address; those that have been idle longest come first."""
        self._idle_since: dict[Any, float] = {}
        """The time since which each idle connection is idle, the longest idle first."""

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def hear(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            if connection not in self._heard:
                self._heard.add(connection)
                _let_go(connection.transport, self._limits.stall_s)
            self._set_busy(connection)
            try:
                return await handler(request)
            finally:
                self._set_idle(connection)

        return hear

    def watch(self, server: web.Server) -> None:
        """Watch the server's connections from now on."""
        server.connection_made = self._seen(server.connection_made)  # type: ignore[assignment, method-assign]
        server.connection_lost = self._unseen(server.connection_lost)  # type: ignore[method-assign]

    async def sweep_for_ever(self) -> None:
        """Sweep again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._limits.head_s / 2)
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """Close connections that have sent no complete request head within `head_s`."""
        for connection, (_, transport, since) in list(self._came.items()):
            if connection not in self._heard and now - since >= self._limits.head_s:
                transport.abort()

    def _seen(
        self, before: Callable[[Any, asyncio.Transport], None]
    ) -> Callable[[Any, asyncio.Transport], None]:
        def made(connection: Any, transport: asyncio.Transport) -> None:
            before(connection, transport)
            address = str((transport.get_extra_info("peername") or ("",))[0])
            self._came[connection] = address, transport, asyncio.get_running_loop().time()
            if len(self._came) > self._most:
                self._make_room(transport)
            self._set_idle(connection)

        return made

    def _unseen(self, before: Callable[..., None]) -> Callable[..., None]:
        def lost(connection: Any, error: BaseException | None = None) -> None:
            before(connection, error)
            self._set_busy(connection)
            self._came.pop(connection, None)
            self._heard.discard(connection)

        return lost

    def _make_room(self, newest: asyncio.Transport) -> None:
        """Close the longest idle connection of the client that has most idle ones. If even that one is young, close the
        longest idle one of all clients. If no connection is idle, close the new one."""
        fullest = max(self._idle.values(), key=len, default=None)
        if not fullest:
            newest.abort()
            return
        oldest = next(iter(fullest))
        if asyncio.get_running_loop().time() - self._idle_since[oldest] < YOUNG_S:
            oldest = next(iter(self._idle_since))
        self._set_busy(oldest)
        self._came[oldest][1].abort()

    def _set_busy(self, connection: Any) -> None:
        """Remove a connection, which may be closed already, from the idle ones."""
        known = self._came.get(connection)
        self._idle_since.pop(connection, None)
        if known is not None and (idle := self._idle.get(known[0])) is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[known[0]]

    def _set_idle(self, connection: Any) -> None:
        known = self._came.get(connection)
        if known is not None:
            self._idle.setdefault(known[0], {})[connection] = None
            self._idle_since[connection] = asyncio.get_running_loop().time()


def _let_go(transport: asyncio.BaseTransport | None, stall_s: float) -> None:
    """Make the system end the connection when the client has acknowledged nothing for `stall_s` seconds, even if the
    connection was closed here and only waits for acknowledgements."""
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_s * 1000))
