"""Spans: the parts of a trace, each of which says what a device did, and when. Facts and their packing; no clock.

Times are seconds of the recording agent's monotonic clock; clock_offset.py converts them to another agent's clock.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from reprlib import repr as shortly  # Data from peers may have any size and depth.

import msgpack

from edgepart.agent.wire.frames import Buffer
from edgepart.agent.wire.inference import NO_EPOCH, Epoch
from edgepart.planner.errors import FrameError

COMPUTE = "compute"
COPY = "copy"
"""Cropping pieces, or putting them together from several."""
SEND = "send"
"""Handing over a message: it is packed and queued; small messages are written at once."""
WRITE = "write"
"""Encrypting bytes and giving them to the kernel, in the connection's own thread or in the thread that sends."""
RECEIVE = "receive"
"""The time from a message's first bytes until its receiver has it, decrypting included."""
WAIT = "wait"
"""The time in which the compute thread has nothing to do because a transfer has not arrived."""
REQUEST = "request"
"""The time at the gateway from a request's acceptance to its answer."""
QUEUE = "queue"
"""The time at the gateway in which a request is accepted and no attempt at it is under way."""
ATTEMPT = "attempt"
"""The time at the gateway of an attempt that was lost."""
BODY = "body"
"""Receiving the body of a client's request."""
DECODE = "decode"
ENCODE = "encode"

COMPUTING, GATEWAY_LANE, REQUESTS, QUEUES = "compute", "gateway", "requests", "queue"
HTTP, GRPC = "http", "grpc"
"""The lanes, besides those of `sending_lane` and `receiving_lane`."""


def sending_lane(node: str) -> str:
    return f"to {node}"


def receiving_lane(node: str) -> str:
    return f"from {node}"


@dataclass(frozen=True, slots=True)
class Subject:
    """The deployment, epoch and request that a span belongs to."""

    deployment: str = ""
    """The name of the deployment, or of its variant if the plan is a variant's."""
    epoch: Epoch = NO_EPOCH
    request: str = ""
    """The request of the attempt, as in Tensors; empty if the span belongs to none."""


NOTHING = Subject()


@dataclass(frozen=True, slots=True)
class Span:
    """One activity of a device, and its time."""

    lane: str
    """The row of a trace in which the span is shown. Spans of a lane that has a thread of its own do not overlap."""
    kind: str
    began_s: float
    took_s: float
    about: Subject = NOTHING
    what: str = ""
    """A name for people: a segment's name and operators, or a message's kind."""
    peer: str = ""
    """Node id of the device that data is sent to, comes from or is awaited from; "" if that is the request's gateway."""
    transfer: int = -1
    """The number of the plan's transfer; -1 if it is none."""
    nbytes: int = 0
    cpu_s: float = 0.0
    """Seconds of CPU time that the thread itself used, for WRITE and RECEIVE mostly in TLS; 0 if that is not known."""


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
    """The spans in a message's payload. Raises FrameError if these are no packed spans, or one has a negative time."""
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
    # Written so that a NaN is refused, too.
    if not (0 <= took_s < float("inf") and abs(began_s) < float("inf")):
        raise FrameError(f"a span cannot begin at {began_s} and take {took_s} s")
    return Span(lane, kind, began_s, took_s, Subject(deployment, Epoch(term, number), request), *rest)
