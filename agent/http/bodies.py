"""Bodies: reads request bodies with bounds on their size, their time, and the memory of all of them together. Door: aiohttp
streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import numpy as np
from aiohttp import web

from edgepart.agent.gateway.intake import Intake
from edgepart.agent.gateway.limits import TooLarge
from edgepart.agent.gateway.rate_limit import Caller
from edgepart.agent.http.buffers import ALIGN_BYTES
from edgepart.planner.errors import RequestError, Unavailable


class Bodies:
    """Reads the bodies of inference requests, for whose memory and places `intake` accounts."""

    def __init__(self, intake: Intake) -> None:
        self.limits = intake.limits
        self._intake = intake
        self._unpacking = 0
        self._reading: dict[asyncio.Timeout, None] = {}
        """The timers of bodies that are arriving, the oldest first."""

    @asynccontextmanager
    async def read(
        self, request: web.Request, align_at: int | None = None
    ) -> AsyncIterator[bytearray | memoryview]:
        """Yield the whole body, which is accounted for until the block ends. Its byte `align_at` lies at an address where
        any array may begin. A place is taken only when the body has arrived, so that slow clients do not keep others out.
        Raises TooLarge, Unavailable, and RequestError if the body comes too slowly."""
        announced = request.content_length or 0
        if announced > self.limits.request_bytes:
            raise TooLarge(f"the body has {announced} bytes; the limit is {self.limits.request_bytes}")
        client = client_of(request)
        self._intake.places.check(client)
        # The size of a compressed or chunked body is not known before it is read.
        packed = bool(request.headers.get("Content-Encoding"))
        place = _BodyPlace() if packed else _BodyPlace(announced, align_at or 0)
        try:
            try:
                with self._unpacks() if packed else nullcontext():
                    await self._fill(place, request, packed=packed)
            except TimeoutError:
                message = f"the body stood still or took too long; {place.nbytes} bytes came"
                raise RequestError(message) from None
            with self._intake.place(client):
                yield place.content()
        finally:
            self._intake.release(place.nbytes)

    @contextmanager
    def _unpacks(self) -> Iterator[None]:
        if self._unpacking >= self.limits.unpacking:
            raise Unavailable(
                "as many compressed requests are read as may be at once; try again, or send it as it is"
            )
        self._unpacking += 1
        try:
            yield
        finally:
            self._unpacking -= 1

    async def _fill(self, place: _BodyPlace, request: web.Request, *, packed: bool) -> None:
        if not request.body_exists:
            return  # All such requests share one empty stream in aiohttp, which tells its end to the first of them only.
        most_bytes = self.limits.request_bytes
        if packed:
            most_bytes = min(most_bytes, self.limits.unpacked_bytes)
        now = asyncio.get_running_loop().time
        began = now()
        self._make_room(began)
        async with asyncio.timeout(None) as timer:
            self._reading[timer] = None
            try:
                while True:
                    if timer in self._reading:  # Otherwise the body was aborted just now.
                        timer.reschedule(self.limits.until(began, now(), place.nbytes))
                    # Not readany, which joins the pieces that came: _BodyPlace does that once.
                    data, ends_a_chunk = await request.content.readchunk()
                    if data:
                        self._take(place, data, most_bytes)
                    elif not ends_a_chunk:
                        return
            finally:
                self._reading.pop(timer, None)

    def _make_room(self, now: float) -> None:
        """Abort the bodies that have taken longest, if as many are being read as are allowed."""
        while len(self._reading) >= self.limits.reading:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            if not oldest.expired():
                oldest.reschedule(now)

    def _take(self, place: _BodyPlace, data: bytes, most_bytes: int) -> None:
        if place.nbytes + len(data) > most_bytes:
            raise TooLarge(f"the body is over the limit of {most_bytes} bytes")
        self._intake.hold(len(data))
        place.add(data)


def caller_of(request: web.Request) -> Caller:
    """Return who sent the request, as access.py and rate_limit.py ask."""
    return Caller(request.remote, request.headers)


def client_of(request: web.Request) -> str:
    """Return the address that the request comes from, by which places and turns are counted."""
    return request.remote or ""


class _BodyPlace:
    """The memory of one body. A body of known size is written directly to its final place. numpy does not clear its memory
    first and takes pages only as bytes arrive, so a client that announces much and sends little takes little."""

    def __init__(self, announced: int = 0, align_at: int = 0) -> None:
        self.nbytes = 0
        self._growing = bytearray()
        self._fixed: memoryview | None = None
        if announced:
            try:
                room = np.empty(announced + ALIGN_BYTES, np.uint8)
            except MemoryError:
                raise Unavailable(f"there is no memory for a body of {announced} bytes now") from None
            begin = -(room.__array_interface__["data"][0] + align_at) % ALIGN_BYTES
            self._fixed = room[begin : begin + announced].data

    def add(self, data: bytes) -> None:
        if self._fixed is None:
            self._growing += data
        else:
            self._fixed[self.nbytes : self.nbytes + len(data)] = data
        self.nbytes += len(data)

    def content(self) -> bytearray | memoryview:
        return self._growing if self._fixed is None else self._fixed[: self.nbytes]
