"""Reading request bodies with bounds on size, on time, and on what all of them take together. Door: aiohttp
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
    """What one agent's HTTP side lets clients take."""

    request_bytes: int = 256 << 20
    """Of one inference request, after decompression. More lets bigger inputs in, and one client take more
    memory."""
    unpacked_bytes: int = 64 << 20
    """Of one that comes compressed: a little of that can stand for very much."""
    unpacking: int = 4
    """Compressed ones that are read at once. More serve more such clients at a time; fewer leave more to others."""
    all_requests_bytes: int = 512 << 20
    """Of all inference requests that are being read or run. Beyond it clients are told to come back."""
    all_answers_bytes: int = 256 << 20
    """Of all answers that clients have not read yet. Beyond it those are given up that read slowest."""
    in_flight: int = 256
    """Inference requests at once whose bodies are in. Fewer keep the queue short; more make fewer clients try again."""
    reading: int = 512
    """Inference requests whose bodies are on their way in. Beyond it the one that takes longest is given up."""
    upload_bytes: int = 64 << 30
    """Of one deployment's files; the disk's free space bounds it as well."""
    upload_files: int = 4096
    stall_s: float = 20.0
    """How long a body, or a client that reads an answer, may stand still."""
    least_bytes_per_s: float = 4096.0
    """Of a body, and of an answer, after its first `stall_s`. What trickles is cut off; less lets slower links in."""
    body_s: float = 300.0
    """How long an inference request's body may take in all, and how long reading an answer."""
    head_s: float = 20.0
    """How long a connection may take to say what it wants."""
    linger_s: float = 2.0
    """How long what is left of a refused body is still read, so that the client sees why it was refused."""
    connections: int = 4096
    """At once. Beyond it one that idles is closed, of the client that has most; the files that the process may open bound
    it as well."""
    client_rate: float = 100.0
    """Requests a second of one address that shows no credential and is not this machine. More serves busier clients; fewer
    leave more to others."""
    client_burst: float = 200.0
    """So many at once before that counts."""
    deadline_s: float = 60.0
    """Of an inference request that names none."""
    longest_deadline_s: float = 3600.0

    def until(self, began: float, now: float, nbytes: int) -> float:
        """Until when something more has to come, of what began then and has brought so many bytes by now."""
        fast_enough = began + self.stall_s + nbytes / self.least_bytes_per_s
        return min(now + self.stall_s, fast_enough, began + self.body_s)


class TooLarge(RequestError):
    """The body is larger than it may be."""


class Bodies:
    """The account of requests: whose bodies come in, and who is served."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self._unpacking = 0
        self._places = AdmissionPlaces(limits.in_flight)
        self._reading: dict[asyncio.Timeout, None] = {}
        """Bodies that are on their way in, the oldest first."""

    @property
    def in_flight(self) -> int:
        return self._places.taken

    @asynccontextmanager
    async def read(
        self, request: web.Request, align_at: int | None = None
    ) -> AsyncIterator[bytearray | memoryview]:
        """The whole body, accounted for until the block ends; its byte `align_at` lies where any array may begin.
        TooLarge, Unavailable, or RequestError when too slow. A place is taken once the body is in, so that who sends it
        slowly keeps nobody out."""
        announced = request.content_length or 0
        if announced > self.limits.request_bytes:
            raise TooLarge(f"the body has {announced} bytes; the limit is {self.limits.request_bytes}")
        client, now = client_of(request), asyncio.get_running_loop().time
        self._places.check(client)
        # What is compressed or in chunks says nothing of its size.
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
                yield place.filled()
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
                    if timer in self._reading:  # else it was given up just now
                        timer.reschedule(self.limits.until(began, now(), place.nbytes))
                    # Not readany, which puts together what came in pieces: that is done here, once.
                    data, ends_a_chunk = await request.content.readchunk()
                    if data:
                        self._take(place, data, most_bytes)
                    elif not ends_a_chunk:
                        return
            finally:
                self._reading.pop(timer, None)

    def _make_room(self, now: float) -> None:
        """Gives up the body that has taken longest, where there are as many as there may be."""
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
    """Whom places and turns are counted by: the address that the request comes from."""
    return request.remote or ""


class _BodyPlace:
    """Where one body is put. One whose size is known is put where it stays: numpy's memory is not cleared first, and
    takes real pages only as bytes come in, so a client that announces much and sends little takes little."""

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

    def filled(self) -> bytearray | memoryview:
        return self._growing if self._fixed is None else self._fixed[: self.nbytes]
