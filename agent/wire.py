"""The wire codec in one place: frames (frames.py), messages as frames (records.py), values (arrays.py).

Rules only: no socket, no clock, no thread. docs/protocol.md tells the format to people.
"""

from __future__ import annotations

from edgepart.agent.arrays import ALIGNMENT, dtype_of, name_of, pack_arrays, unpack_arrays
from edgepart.agent.frames import (
    MAGIC,
    MEMBER,
    PREFIX,
    UNAUTHENTICATED,
    Decoder,
    Frame,
    Limits,
    Sizes,
    encode,
    parse_frame,
    parse_prefix,
)
from edgepart.agent.records import Kinds, frame_to_message, kinds, message_to_frame

__all__ = [
    "ALIGNMENT",
    "MAGIC",
    "MEMBER",
    "PREFIX",
    "UNAUTHENTICATED",
    "Decoder",
    "Frame",
    "Kinds",
    "Limits",
    "Sizes",
    "dtype_of",
    "encode",
    "frame_to_message",
    "kinds",
    "message_to_frame",
    "name_of",
    "pack_arrays",
    "parse_frame",
    "parse_prefix",
    "unpack_arrays",
]
