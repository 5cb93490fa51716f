"""Raw contents: takes the raw tensors of a message apart from the rest of it, and puts them to it, without copies of their
bytes. Rules: no door.

protobuf would copy each tensor twice. It would also take a hundred bytes of memory and more for each of the countless empty
parts that a few bytes can stand for: so the number of parts, and the size of all but the tensors, are checked before it
parses anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgepart.planner.errors import RequestError

MAX_PARTS = 4096
"""The most fields of a message, each input, output, parameter and raw tensor counted."""
MAX_HEAD_BYTES = 16 << 20
"""The largest size of a message without its raw tensors: four million numbers of four bytes."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""The wire types of protobuf that are in use."""
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def split_message(message: bytes, number: int) -> tuple[bytes, list[memoryview]]:
    """Return the message without its field `number`, and that field's values, which are views. Raises RequestError if the
    bytes are no message, or the message is too large without the field."""
    view, at, parts = memoryview(message), 0, 0
    head: list[memoryview] = []
    values: list[memoryview] = []
    while at < len(view):
        parts += 1
        if parts > MAX_PARTS:
            raise RequestError(f"the message has over {MAX_PARTS} inputs, outputs, parameters and tensors")
        begin = at
        key, at = _varint(view, at)
        value = at
        if key & 7 == _BYTES:
            length, value = _varint(view, at)
            at = value + length
        elif key & 7 == _VARINT:
            at = _varint(view, at)[1]
        elif key & 7 in _FIXED_BYTES:
            at += _FIXED_BYTES[key & 7]
        else:
            raise RequestError(f"the message is damaged: byte {begin} begins no field")
        if at > len(view):
            raise RequestError(f"the message is damaged: a field ends {at - len(view)} bytes after it")
        if key == number << 3 | _BYTES:
            values.append(view[value:at])
        else:
            head.append(view[begin:at])
    if (nbytes := sum(map(len, head))) > MAX_HEAD_BYTES:
        raise RequestError(
            f"the message has {nbytes} bytes beside raw tensors; the limit is {MAX_HEAD_BYTES}: send tensors raw"
        )
    return b"".join(head), values


def join_message(head: bytes, number: int, values: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the pieces of a message: `head`, which is a message without its field `number`, and that field's values."""
    pieces: list[bytes | memoryview] = [head]
    for value in values:
        pieces += (_key(number, len(value)), value)
    return pieces


def wrap_message(number: int, pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the pieces of a message whose only field, `number`, is the message of `pieces`."""
    return [_key(number, sum(map(len, pieces))), *pieces]


def _key(number: int, length: int) -> bytes:
    return _encode(number << 3 | _BYTES) + _encode(length)


def _encode(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number at `at`, and where it ends."""
    value = 0
    for index, byte in enumerate(view[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise RequestError(f"the message is damaged: byte {at} begins no number")
