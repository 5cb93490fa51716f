"""Reading request bodies with bounds on size, on time, and on what all of them take together. Door: aiohttp
streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from edgepart.planner.errors import RequestError, Unavailable


@dataclass(frozen=True, slots=True)
class Limits:
    """What one agent's HTTP side lets clients take."""

    request_bytes: int = 256 << 20
    """Of one inference request, after decompression. More lets bigger inputs in, and one client take more
    memory."""
    all_requests_bytes: int = 512 << 20
    """Of all inference requests that are being read or run. Beyond it clients are told to come back."""
    in_flight: int = 256
    """Inference requests at once. Fewer keep the queue short; more make fewer clients try again."""
    upload_bytes: int = 64 << 30
    """Of one deployment's files; the disk's free space bounds it as well."""
    upload_files: int = 4096
    stall_s: float = 20.0
    """How long a body may stand still."""
    body_s: float = 300.0
    """How long an inference request's body may take in all; a body that trickles is cut off then."""
    head_s: float = 20.0
    """How long a connection may take to say what it wants."""
    linger_s: float = 2.0
    """How long what is left of a refused body is still read, so that the client sees why it was refused."""
    connections: int = 1024
    deadline_s: float = 60.0
    """Of an inference request that names none."""
    longest_deadline_s: float = 3600.0


class TooLarge(RequestError):
    """The body is larger than it may be."""


class Bodies:
    """The account of the memory that request bodies take."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self.in_flight = 0

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytearray]:
        """The whole body, accounted for until the block ends. TooLarge, Unavailable, or RequestError when
        too slow."""
        announced = request.content_length or 0
        if announced > self.limits.request_bytes:
            raise TooLarge(f"the body has {announced} bytes; the limit is {self.limits.request_bytes}")
        if self.in_flight >= self.limits.in_flight:
            raise Unavailable(f"{self.in_flight} requests are in flight here, and no more are taken now")
        body = bytearray()
        self.in_flight += 1
        try:
            try:
                async with asyncio.timeout(self.limits.body_s):
                    await self._fill(body, request)
            except TimeoutError:
                message = f"the body stood still or took too long; {len(body)} bytes came"
                raise RequestError(message) from None
            yield body
        finally:
            self.held_bytes -= len(body)
            self.in_flight -= 1

    async def _fill(self, body: bytearray, request: web.Request) -> None:
        while True:
            async with asyncio.timeout(self.limits.stall_s):
                chunk = await request.content.readany()
            if not chunk:
                return
            if len(body) + len(chunk) > self.limits.request_bytes:
                raise TooLarge(f"the body is over the limit of {self.limits.request_bytes} bytes")
            if self.held_bytes + len(chunk) > self.limits.all_requests_bytes:
                raise Unavailable("the requests in flight here take all the memory they may; try again")
            self.held_bytes += len(chunk)
            body += chunk
