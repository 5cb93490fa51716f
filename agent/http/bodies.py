"""Bodies: reads request bodies with bounds on their size, their time, and the memory of all of them together. Door: aiohttp
streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from edgepart.agent.http.admission import AdmissionPlaces
from edgepart.agent.http.buffers import ALIGN_BYTES
from edgepart.planner.errors import RequestError, Unavailable


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on the memory, time and connections that clients may take of one agent over HTTP."""

    request_bytes: int = 256 << 20
    """The largest inference request, after decompression. A larger limit allows bigger inputs, and lets one client take
    more memory."""
    unpacked_bytes: int = 64 << 20
    """The largest compressed request, after decompression: few compressed bytes can stand for very many."""
    unpacking: int = 4
    """The most compressed requests that are read at once. A higher number serves more such clients at a time; a lower one
    leaves more to others."""
    all_requests_bytes: int = 512 << 20
    """The memory of all inference requests that are being read or run. Requests beyond it get 503 with Retry-After."""
    all_answers_bytes: int = 256 << 20
    """The memory of all answers that clients have not read yet. Beyond it the oldest deliveries are aborted."""
    in_flight: int = 256
    """The most inference requests at once whose bodies have arrived. A lower number keeps the queue short; with a higher
    one, fewer clients have to try again."""
    reading: int = 512
    """The most inference requests whose bodies are arriving. Beyond it the one that has taken longest is aborted."""
    upload_bytes: int = 64 << 30
    """The largest size of one deployment's files; the disk's free space is another limit."""
    upload_files: int = 4096
    stall_s: float = 20.0
    """Seconds for which a client may send nothing of a body, or read nothing of an answer."""
    least_bytes_per_s: float = 4096.0
    """The least rate of a body or an answer after its first `stall_s`; slower ones are aborted. A lower rate admits slower
    links."""
    body_s: float = 300.0
    """Seconds that an inference request's body may take in all, and that reading an answer may take."""
    head_s: float = 20.0
    """Seconds that a connection may take to send a request's head."""
    linger_s: float = 2.0
    """Seconds for which the rest of a refused body is still read, so that the client sees why it was refused."""
    connections: int = 4096
    """The most connections at once. Beyond it an idle connection of the client with most of them is closed. The number of
    files that the process may open is another limit."""
    client_rate: float = 100.0
    """Requests per second from one address without the credential, other than this machine. A higher rate serves busier
    clients; a lower one leaves more to others."""
    client_burst: float = 200.0
    """The requests that such an address may send at once before its rate counts."""
    deadline_s: float = 60.0
    """The deadline of an inference request that names none."""
    longest_deadline_s: float = 3600.0

    def until(self, began: float, now: float, nbytes: int) -> float:
        """Return the time by which more bytes have to move, for a transfer that began at `began` and has moved `nbytes` so
        far."""
        fast_enough = began + self.stall_s + nbytes / self.least_bytes_per_s
        return min(now + self.stall_s, fast_enough, began + self.body_s)


class TooLarge(RequestError):
    """The body is larger than it may be."""


class Bodies:
    """Reads the bodies of inference requests, and accounts for their memory and places."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self._unpacking = 0
        self._places = AdmissionPlaces(limits.in_flight)
        self._reading: dict[asyncio.Timeout, None] = {}
        """The timers of bodies that are arriving, the oldest first."""

    @property
    def in_flight(self) -> int:
        return self._places.taken

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
        client, now = client_of(request), asyncio.get_running_loop().time
        self._places.check(client)
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
            self._places.take(client)
            try:
                yield place.content()
            finally:
                self._places.leave(client, now())
        finally:
            self.held_bytes -= place.nbytes

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
        if self.held_bytes + len(data) > self.limits.all_requests_bytes:
            raise Unavailable("the requests in flight here take all the memory they may; try again")
        place.add(data)
        self.held_bytes += len(data)


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
