"""Spans: what a device did when, as a trace holds it. Facts and their packing, no clock, no thread.

Times are seconds of the recording agent's monotonic clock; clock_offset.py takes them to another agent's.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from reprlib import repr as shortly  # what others sent may be of any size and depth

import msgpack

from edgepart.agent.wire.frames import Buffer
from edgepart.agent.wire.inference import NO_EPOCH, Epoch
from edgepart.planner.errors import FrameError

COMPUTE = "compute"
COPY = "copy"
"""Pieces cropped, or put together from several."""
SEND = "send"
"""A message handed over: packed and queued; small ones are written at once."""
WRITE = "write"
"""Bytes encrypted and given to the kernel, by a connection's own thread or by whoever sends."""
RECEIVE = "receive"
"""The time from a message's first bytes until its receiver has it, decrypting included."""
WAIT = "wait"
"""The compute thread has nothing to do because a transfer has not come."""
REQUEST = "request"
"""The time at the gateway from a request's acceptance to its answer."""
QUEUE = "queue"
"""The time at the gateway in which a request is accepted and no attempt at it is under way."""
ATTEMPT = "attempt"
"""An attempt of a request, at the gateway, that was lost."""
BODY = "body"
"""A client's request on its way in."""
DECODE = "decode"
ENCODE = "encode"

COMPUTING, GATEWAY_LANE, REQUESTS, QUEUES, HTTP = "compute", "gateway", "requests", "queue", "http"
"""Lanes; with `sending_lane` and `receiving_lane` all that there are."""


def sending_lane(node: str) -> str:
    return f"to {node}"


def receiving_lane(node: str) -> str:
    return f"from {node}"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a span was about."""

    deployment: str = ""
    """A variant's own name, where it is one."""
    epoch: Epoch = NO_EPOCH
    request: str = ""
    """The request of the attempt, as in Tensors; empty if the span belongs to none."""


NOTHING = Subject()


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that took time."""

    lane: str
    """Spans of one lane that has a thread of its own do not overlap."""
    kind: str
    began_s: float
    took_s: float
    about: Subject = NOTHING
    what: str = ""
    """A name for people: a segment's name and operators, or a message's kind."""
    peer: str = ""
    """Node id of whom it is sent to, comes from, or is waited for; empty where it is this agent's gateway."""
    transfer: int = -1
    """The number of the plan's transfer; -1 if it is none."""
    nbytes: int = 0
    cpu_s: float = 0.0
    """The part of the time that the thread computed itself, which for WRITE and RECEIVE is mostly TLS; 0 if it is not
    known."""


_TYPES = (str, str, float, float, str, int, int, str, str, str, int, int, float)
"""The types of a packed span's fields."""


def pack(spans: list[Span]) -> bytes:
    """Pack spans as a message's payload."""
    rows = []
    for span in spans:
        lane, kind, began_s, took_s, (deployment, (term, number), request), *rest = astuple(span)
        rows.append((lane, kind, began_s, took_s, deployment, term, number, request, *rest))
    return bytes(msgpack.packb(rows))


def unpack(payload: Buffer) -> list[Span]:
    """FrameError where these are no packed spans, or one lasts less than nothing."""
    try:
        rows = msgpack.unpackb(payload, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise FrameError(f"these bytes are no spans: {type(error).__name__}: {error}") from error
    if not isinstance(rows, tuple):
        raise FrameError(f"expected spans, got {type(rows).__name__}")
    return [_span(row) for row in rows]


def _span(row: object) -> Span:
    if not isinstance(row, tuple) or tuple(map(type, row)) != _TYPES:
        raise FrameError(f"a span has {len(fields(Span))} fields, and {shortly(row)} is none")
    lane, kind, began_s, took_s, deployment, term, number, request, *rest = row
    # Written so that it is false for what is no number.
    if not (0 <= took_s < float("inf") and abs(began_s) < float("inf")):
        raise FrameError(f"a span cannot begin at {began_s} and take {took_s} s")
    return Span(lane, kind, began_s, took_s, Subject(deployment, Epoch(term, number), request), *rest)
