"""Calls: what all methods share: who calls, the message that comes, the one that goes, and the status of an error. Door:
the library's calls.

Every method is served as a stream of messages each way, which is the same on the wire as one message each way. So the
method itself decides when its message is read, and whether at all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from urllib.parse import unquote

import grpc
from grpc import aio

from edgepart.agent.gateway import statuses
from edgepart.agent.gateway.access import FORWARDED
from edgepart.agent.gateway.rate_limit import Caller
from edgepart.agent.grpc.arrivals import Arrivals
from edgepart.agent.grpc.unread_answers import UnreadAnswers
from edgepart.planner.errors import EdgepartError, RequestError, Unavailable

log = logging.getLogger(__name__)

MAX_DETAILS = 2048
"""The most characters of an error's text, which travels in HTTP/2's trailers: the library refuses those over 8 kB."""
LATE_S = 0.001
"""A call with less time left counts as one whose deadline has passed: the clocks of the library and of the event loop tick
apart."""
SMALL_BYTES = 64 << 10
"""Smaller messages are not accounted for: the library takes them at once."""
HEADERS = ("Authorization", "Origin", *FORWARDED)
"""What access.py asks of HTTP's headers, as far as a call has it in its metadata."""


class Call:
    """One call of a method."""

    def __init__(self, context: Any, arrivals: Arrivals, answers: UnreadAnswers) -> None:
        self._context = context
        self._arrivals = arrivals
        self._answers = answers
        self.caller = Caller(address_of(context.peer()), headers_of(context.invocation_metadata() or ()))

    @property
    def client(self) -> str:
        """The address that the call comes from, by which places and turns are counted."""
        return self.caller.address or ""

    @property
    def left_s(self) -> float | None:
        """How many seconds the client still waits; None if it did not say so."""
        left: float | None = self._context.time_remaining()
        return left

    async def read(self, lane: Hashable) -> bytes:
        """Return the call's message when it is its turn among those of the lane. Raises RequestError if there is none,
        which also is what comes of a message over the limit: the library has refused it already."""
        message = await self._arrivals.read(lane, self.client, self.next)
        if message is None:
            raise RequestError("the call has no message")
        return message

    async def next(self) -> bytes | None:
        """Return the next message of a stream, when it is here; None if there are no more."""
        message = await self._context.read()
        return None if message is aio.EOF else message

    async def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send a message, and return when the client reads it. Raises Unavailable if there is no memory for it."""
        nbytes = sum(map(len, pieces))
        with self._answers.holding(self.client, nbytes) if nbytes >= SMALL_BYTES else nullcontext():
            await self._context.write(b"".join(pieces))


def make_handler(
    name: str, work: Callable[[Call], Awaitable[None]], arrivals: Arrivals, answers: UnreadAnswers
) -> Any:
    """Return the library's handler of a method. Whatever `work` raises becomes the call's status; an unexpected error is
    logged, and the server continues."""

    async def serve(_: Any, context: Any) -> None:
        try:
            await work(Call(context, arrivals, answers))
        except EdgepartError as error:
            await refuse(context, error)
        except Exception as error:
            log.exception("%s failed", name)
            await refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(serve)


async def refuse(context: Any, error: Exception) -> None:
    """End the call with the error's status, or that of its deadline if that has passed. The trailers have what HTTP has in
    its document and its headers."""
    document = statuses.error_document(error)
    trailers = [("edgepart-kind", document["kind"])]
    if isinstance(error, Unavailable):
        trailers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    left_s = context.time_remaining()
    late = left_s is not None and left_s < LATE_S
    code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode[statuses.status_of(error).grpc]
    await context.abort(code, document["error"][:MAX_DETAILS], tuple(trailers))


def address_of(peer: str) -> str | None:
    """Return the address in what the library calls a peer; None if there is none.

    >>> address_of("ipv4:127.0.0.1:50270"), address_of("ipv6:%5Bfe80::1%25eth0%5D:5"), address_of("unix:")
    ('127.0.0.1', 'fe80::1%eth0', None)
    """
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]")
    return host if kind in ("ipv4", "ipv6") and host else None


def headers_of(metadata: Sequence[tuple[str, str | bytes]]) -> Mapping[str, str]:
    """Return the metadata that stands for HTTP's headers. There is no Host, because the library does not tell; access.py
    asks for it because of browsers, and they cannot speak gRPC without a proxy, which is told by its own headers.

    >>> headers_of([("authorization", "Bearer x"), ("user-agent", "grpc")])
    {'Authorization': 'Bearer x', 'Host': 'localhost'}
    """
    given = {key.lower(): value for key, value in metadata if isinstance(value, str)}
    return {name: given[name.lower()] for name in HEADERS if name.lower() in given} | {"Host": "localhost"}
