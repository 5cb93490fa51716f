"""Silence: closes connections that take a place and ask for nothing, which aiohttp itself leaves open.
Door: aiohttp.

A kept-alive connection that has been answered before is aiohttp's own business (its keep-alive timer).
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from edgepart.agent.gateway.bodies import Limits


class Silence:
    """Watches one server's connections."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._heard: set[asyncio.BaseProtocol] = set()
        """Connections on which a whole request head has come."""
        self._since: dict[asyncio.BaseProtocol, float] = {}
        """When each other one was seen first."""

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def hear(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._heard.add(request.protocol)
            return await handler(request)

        return hear

    async def watch(self, server: web.Server) -> None:
        """Until cancelled."""
        while True:
            self.sweep(server, asyncio.get_running_loop().time())
            await asyncio.sleep(self._limits.head_s / 2)

    def sweep(self, server: web.Server, now: float) -> None:
        """Closes what has been silent for too long; beyond the limit of connections, all that are silent."""
        connections = set(server.connections)
        self._heard &= connections
        self._since = {one: since for one, since in self._since.items() if one in connections}
        crowded = len(connections) > self._limits.connections
        for connection in connections:
            if connection in self._heard or connection.transport is None:
                continue
            since = self._since.setdefault(connection, now)
            if crowded or now - since >= self._limits.head_s:
                connection.transport.abort()
