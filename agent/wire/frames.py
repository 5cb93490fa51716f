"""Frames: the bytes of one message, their limits, and how they are encoded and decoded. Rules: no socket, clock or thread.

    magic "EPRT" | version u8 | flags u8 (0) | header length u32 | payload length u64 | header | payload

All numbers are big-endian. The header is MessagePack of [kind, fields]; the payload is raw bytes. Lengths are
checked against FrameLimits before any memory is allocated for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgpack

from edgepart.planner.errors import FrameError, InternalError

if TYPE_CHECKING:
    from edgepart.agent.wire.tensors import ArrayLayout

MAGIC = b"EPRT"
VERSION = 1
PREFIX = struct.Struct("!4sBBIQ")
_BEGIN = MAGIC + bytes((VERSION, 0))
_LENGTHS = struct.Struct(f"!{len(_BEGIN)}sIQ")
"""The prefix, with all that comes before the lengths in one piece."""


Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest sizes of the parts of a frame. Larger limits admit larger messages; smaller ones bound the memory that
    one peer can make this agent allocate."""

    header_bytes: int
    payload_bytes: int


UNAUTHENTICATED = FrameLimits(header_bytes=64 << 10, payload_bytes=0)
"""The limits for a peer that has shown no certificate: it may only send the frames of joining, which have no payload."""
MEMBER = FrameLimits(header_bytes=16 << 20, payload_bytes=1 << 30)
"""The limits for a member of the cluster."""


@dataclass(slots=True)
class Frame:
    """One message; `header` maps the kind's field names to values that MessagePack can hold (sequences are tuples).

    Nobody changes one. It is not frozen because a frozen record takes longer to make (see `Tensors`)."""

    kind: str
    header: dict[str, Any] = field(default_factory=dict)
    payload: tuple[Buffer, ...] = ()
    """The buffers of the payload, which are sent as one run of bytes; a received frame has one, or none."""
    message: Any = None
    """The message, if it is known already (transfer_headers.py). `header` is then empty."""
    layout: ArrayLayout | None = None
    """Where the arrays of that message lie in the payload, if that is known, too."""
    packed: bytes = b""
    """The bytes of the header of a frame with a message that is to be sent. The buffers of its payload are not empty, and
    views of bytes, as pack_arrays returns them."""

    @property
    def body(self) -> memoryview:
        """The payload in one piece; it is copied only if it has several buffers."""
        views = list(byte_views(self.payload))
        return views[0] if len(views) == 1 else memoryview(b"".join(views))

    @property
    def payload_bytes(self) -> int:
        return sum(view.nbytes for view in byte_views(self.payload))


def byte_views(payload: Sequence[Buffer]) -> Iterator[memoryview]:
    """Yield each non-empty buffer as a flat view of bytes. InternalError if a buffer is not C-contiguous."""
    for buffer in payload:
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise InternalError("a payload buffer is not C-contiguous: pack arrays with pack_arrays")
        if view.nbytes:
            yield view.cast("B")


def encode(frame: Frame) -> list[Buffer]:
    """Return the frame's bytes, in order: prefix and header first, then the payload's buffers, which are not copied.

    InternalError if MessagePack cannot hold a field.
    """
    if frame.packed:
        return _join(frame.kind, frame.packed, frame.payload, sum(map(len, frame.payload)))
    payload = list(byte_views(frame.payload))
    try:
        header = msgpack.packb([frame.kind, frame.header], use_bin_type=True, unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError) as error:
        raise InternalError(f"{frame.kind} cannot be sent: {error}") from error
    return _join(frame.kind, header, payload, sum(view.nbytes for view in payload))


def _join(kind: str, header: bytes, payload: Sequence[Buffer], payload_bytes: int) -> list[Buffer]:
    if len(header) > MEMBER.header_bytes:
        raise InternalError(f"{kind} has a header of {len(header)} bytes: put large things in the payload")
    return [_LENGTHS.pack(_BEGIN, len(header), payload_bytes) + header, *payload]


def parse_prefix(prefix: Buffer, limits: FrameLimits, start: int = 0) -> tuple[int, int]:
    """Return the lengths of the header and of the payload that follow the `PREFIX.size` bytes from `start` on. FrameError
    if the bytes are not a prefix or a length is over `limits`."""
    if len(prefix) < start + PREFIX.size:
        raise FrameError(f"a frame starts with {PREFIX.size} bytes, these are {len(prefix) - start}")
    begin, header_bytes, payload_bytes = _LENGTHS.unpack_from(prefix, start)
    if begin != _BEGIN:
        raise _describe_begin(prefix[start : start + PREFIX.size])
    if header_bytes > limits.header_bytes or payload_bytes > limits.payload_bytes:
        raise FrameError(
            f"a frame announces {header_bytes} bytes of header and {payload_bytes} of payload; "
            f"the limits are {limits.header_bytes} and {limits.payload_bytes}"
        )
    return header_bytes, payload_bytes


def _describe_begin(prefix: Buffer) -> FrameError:
    magic, version, flags, _, _ = PREFIX.unpack(prefix)
    if magic != MAGIC:
        return FrameError(f"these bytes are no edgepart frame (they start with {bytes(magic)!r})")
    return FrameError(
        f"a frame of version {version}, flags {flags}; this agent speaks {VERSION}: update the older"
    )


def parse_frame(header: Buffer, payload: Buffer | None) -> Frame:
    """Return the frame of this header and payload. FrameError if the header is not MessagePack of [kind, fields]."""
    found = read_header(header)
    return found if payload is None else replace(found, payload=(payload,))


def read_header(header: Buffer) -> Frame:
    """Return a frame without a payload, of this header. FrameError if the header is not MessagePack of [kind, fields]."""
    try:
        document = msgpack.unpackb(
            header, raw=False, use_list=False, strict_map_key=False, unicode_errors="surrogatepass"
        )
    # A key that cannot be hashed raises TypeError; the other errors are subclasses of ValueError.
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        # The error's text and not its repr, which may hold everything that was unpacked.
        raise FrameError(f"a frame's header is not MessagePack: {type(error).__name__}: {error}") from error
    match document:
        case (str() as kind, dict() as fields) if all(isinstance(name, str) for name in fields):
            return Frame(kind, fields)
    raise FrameError("a frame's header is not [kind, fields]")
