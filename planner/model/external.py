"""Skims a model file: leaves out the bytes of its weights, which stay in the file and are read from there. Rules over
bytes.

The weights become external data of the file itself, so that a model of any size loads in the memory that its graph
takes. The module knows just enough of protobuf's encoding to leave out a field. Bytes that are not encoded as expected
are left as they are, for protobuf to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

OWN_FILE = "\0"
"""The location of weights that lie in the model file itself; no file can have this name."""

SMALLEST_SKIMMED_BYTES = 4096
"""Values up to this size stay in place, because they are read anyway (shapes, axes), and leaving them out
saves nothing."""

Piece = bytes | memoryview

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR = "model", "graph", "node", "attribute", "tensor"
_INSIDE: Mapping[str, Mapping[int, str]] = {
    _MODEL: {7: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR},
}
"""Maps each message of onnx.proto to its fields that can hold tensors of the main graph: the number and the
message of each field. Sub-graphs stay whole."""

_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
"""Field numbers of a TensorProto."""

_VARINT, _BYTES = 0, 2
"""Wire types of fields; the other wire types have four or eight bytes."""


class _Unexpected(Exception):
    """Raised if bytes are not a message."""


def skim_weights(data: memoryview) -> bytes:
    """The model in `data` with its weights as external data at `OWN_FILE`; a copy of `data` if it is not
    encoded as expected."""
    try:
        return b"".join(_without_weights(data, 0, len(data), _MODEL))
    except _Unexpected:
        return bytes(data)


def _without_weights(data: memoryview, start: int, stop: int, kind: str) -> Iterator[Piece]:
    """Yields the message between two offsets without weights. Parts that do not change come in as few pieces
    as possible."""
    inside, kept = _INSIDE[kind], start
    for tag, at, first, last in _fields(data, start, stop):
        within = inside.get(tag >> 3)
        if tag & 7 != _BYTES or within is None or last - first <= SMALLEST_SKIMMED_BYTES:
            continue
        shorten = _tensor if within == _TENSOR else partial(_without_weights, kind=within)
        pieces = list(shorten(data, first, last))
        yield data[kept:at]
        yield _varint(tag) + _varint(sum(map(len, pieces)))
        yield from pieces
        kept = last
    yield data[kept:stop]


def _tensor(data: memoryview, start: int, stop: int) -> Iterable[Piece]:
    """A tensor without its raw bytes; unchanged if it is external already, is small, or has the field of raw
    bytes twice."""
    raw: list[tuple[int, int, int]] = []
    for tag, at, first, last in _fields(data, start, stop):
        if tag >> 3 in (_EXTERNAL_DATA, _DATA_LOCATION):
            return [data[start:stop]]
        if tag == _RAW_DATA << 3 | _BYTES:
            raw.append((at, first, last))
    if len(raw) != 1 or raw[0][2] - raw[0][1] <= SMALLEST_SKIMMED_BYTES:
        return [data[start:stop]]
    at, first, last = raw[0]
    entries = {"location": OWN_FILE, "offset": str(first), "length": str(last - first)}
    places = b"".join(
        _field(_EXTERNAL_DATA, _field(1, key.encode()) + _field(2, value.encode()))
        for key, value in entries.items()
    )
    external = _varint(_DATA_LOCATION << 3 | _VARINT) + _varint(1)
    return [data[start:at], data[last:stop], places, external]


def _fields(data: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the fields of a message: (tag, start of the field, start of its value, end of the field)."""
    at = start
    while at < stop:
        tag, first = _read_varint(data, at, stop)
        match tag & 7:
            case 0:  # A varint.
                _, last = _read_varint(data, first, stop)
            case 1:
                last = first + 8
            case 2:  # A length and that many bytes.
                size, first = _read_varint(data, first, stop)
                last = first + size
            case 5:
                last = first + 4
            case _:
                raise _Unexpected
        if last > stop:
            raise _Unexpected
        yield tag, at, first, last
        at = last


def _read_varint(data: memoryview, at: int, stop: int) -> tuple[int, int]:
    """The number at an offset, and the offset after it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= stop:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Unexpected


def _varint(value: int) -> bytes:
    """The encoding of a number as a varint.

    >>> _varint(300).hex()
    'ac02'
    """
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
