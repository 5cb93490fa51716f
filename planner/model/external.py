"""Skim: a model file without the bytes of its weights, which stay where they are and are read from there.

A file's weights become external data of the file itself, so that a model of any size loads in the memory that its
graph takes. Rules over bytes: only as much of protobuf's encoding as it takes to leave a field out. What is not
encoded as expected is left as it is, for protobuf to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

OWN = "\0"
"""The location of what lies in the model file itself; no file can be called that."""

LEAST_BYTES = 4096
"""Smaller values stay: they are read anyway (shapes, axes), and leaving them out saves nothing."""

Piece = bytes | memoryview

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR = "model", "graph", "node", "attribute", "tensor"
_INSIDE: Mapping[str, Mapping[int, str]] = {
    _MODEL: {7: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR},
}
"""By message of onnx.proto, its fields that hold tensors of the main graph. Sub-graphs travel whole."""

_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
"""Fields of a TensorProto."""

_VARINT, _BYTES = 0, 2
"""Kinds of field; the others have four or eight bytes."""


class _Unexpected(Exception):
    """Bytes that are no message."""


def skim(data: memoryview) -> bytes:
    """The model in `data` with its weights as external data at `OWN`; `data` itself where it is not as expected."""
    try:
        return b"".join(_without_weights(data, 0, len(data), _MODEL))
    except _Unexpected:
        return bytes(data)


def _without_weights(data: memoryview, start: int, stop: int, kind: str) -> Iterator[Piece]:
    """The message between two offsets; what does not change is passed on in as few pieces as can be."""
    inside, kept = _INSIDE[kind], start
    for tag, at, first, last in _fields(data, start, stop):
        within = inside.get(tag >> 3)
        if tag & 7 != _BYTES or within is None or last - first <= LEAST_BYTES:
            continue
        shorten = _tensor if within == _TENSOR else partial(_without_weights, kind=within)
        pieces = list(shorten(data, first, last))
        yield data[kept:at]
        yield _varint(tag) + _varint(sum(map(len, pieces)))
        yield from pieces
        kept = last
    yield data[kept:stop]


def _tensor(data: memoryview, start: int, stop: int) -> Iterable[Piece]:
    """A tensor without its raw bytes, but for one that lies elsewhere already or names them twice."""
    raw: list[tuple[int, int, int]] = []
    for tag, at, first, last in _fields(data, start, stop):
        if tag >> 3 in (_EXTERNAL_DATA, _DATA_LOCATION):
            return [data[start:stop]]
        if tag == _RAW_DATA << 3 | _BYTES:
            raw.append((at, first, last))
    if len(raw) != 1 or raw[0][2] - raw[0][1] <= LEAST_BYTES:
        return [data[start:stop]]
    at, first, last = raw[0]
    entries = {"location": OWN, "offset": str(first), "length": str(last - first)}
    places = b"".join(
        _field(_EXTERNAL_DATA, _field(1, key.encode()) + _field(2, value.encode()))
        for key, value in entries.items()
    )
    external = _varint(_DATA_LOCATION << 3 | _VARINT) + _varint(1)
    return [data[start:at], data[last:stop], places, external]


def _fields(data: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(tag, where the field begins, where its value begins, where it ends) of a message's fields."""
    at = start
    while at < stop:
        tag, first = _read_varint(data, at, stop)
        match tag & 7:
            case 0:  # a number
                _, last = _read_varint(data, first, stop)
            case 1:
                last = first + 8
            case 2:  # so many bytes
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
    """The number at an offset, and where it ends."""
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
    """
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
