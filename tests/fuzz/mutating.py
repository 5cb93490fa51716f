"""Mutator: changes bytes and documents reproducibly, as a fuzzer does. Chance is an argument.

Bytes are flipped, cut, doubled, spliced with others, and get numbers at places where a length may be.
Documents (what JSON and MessagePack can hold) keep their form while one value is replaced, lost, doubled,
moved or nested, so that readers get further than to the first brace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 3, 7, 16, 63, 64, 65, 127, 128, 255, 256, 4095, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**53), -(2**63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf"))
TEXTS = (
    "", " ", "a", "x", "..", "../x", "/", "\0", "%", "@", "=", ":", "[::]:1", "mqtt:" + "0" * 16, "é", "\U0001f600",
    "\ud800", "\udcff", "NaN", "1e999", "null", "0" * 16, "f" * 64, "a" * 300, "float", "float32", "int8", "float16",
    "alive", "latency",
)  # fmt: skip
BYTES = (b"", b"\0", b"\xff" * 8, b"\xc1", b"\x80" * 70)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": None}, [None] * 70, [0] * 40)
DEEP = "\x7fdeep\x7f"
"""Stands for a value nested deeper than any reader allows; the encoder of the document substitutes that value."""
DEPTH = 3000

Edit = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def _somewhere(draw: random.Random, data: bytearray) -> int:
    return int(draw.random() * len(data)) if data else 0


def _flip(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[_somewhere(draw, data)] ^= 1 << int(draw.random() * 8)


def _set(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[_somewhere(draw, data)] = int(draw.random() * 256)


def _cut(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start = _somewhere(draw, data)
    del data[start : start + 1 + int(draw.random() ** 3 * len(data))]


def _truncate(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    del data[_somewhere(draw, data) :]


def _double(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start = _somewhere(draw, data)
    run = data[start : start + 1 + int(draw.random() ** 3 * len(data))]
    data[start:start] = run * int(1 + draw.random() ** 6 * 30)


def _insert(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _somewhere(draw, data)
    data[at:at] = draw.randbytes(1 + int(draw.random() ** 2 * 12))


def _splice(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = others[int(draw.random() * len(others))]
    start, at = int(draw.random() * (len(other) + 1)), _somewhere(draw, data)
    run = other[start : start + 1 + int(draw.random() * len(other))]
    if draw.random() < 0.5:
        data[at : at + len(run)] = run
    else:
        data[at:] = run


def _number(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    """Write a number at a place where a length or a count may be, in any width and byte order."""
    width = 1 << int(draw.random() * 4)
    number = NUMBERS[int(draw.random() * len(NUMBERS))] + int(draw.random() * 3) - 1
    at = _somewhere(draw, data)
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(
        width, "big" if draw.random() < 0.7 else "little"
    )


EDITS: tuple[Edit, ...] = (_flip, _flip, _set, _cut, _truncate, _double, _insert, _splice, _number, _number)


def mutated(draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
    """Return `data` after one to four edits, cut to `largest` bytes. `others` may be spliced in and is not empty."""
    changed = bytearray(data)
    for _ in range(1 + int(draw.random() ** 2 * 4)):
        EDITS[int(draw.random() * len(EDITS))](draw, changed, others)
    del changed[largest:]
    return bytes(changed)


def strange(draw: random.Random) -> Any:
    """Return a value that a reader may not have been written for."""
    chance = draw.random()
    if chance < 0.35:
        return draw.choice(NUMBERS) + draw.choice((-1, 0, 0, 1))
    if chance < 0.5:
        return draw.choice(FLOATS)
    if chance < 0.75:
        return draw.choice(TEXTS)
    if chance < 0.82:
        return draw.choice(BYTES)
    return DEEP if chance < 0.84 else draw.choice(OTHERS)


def altered(draw: random.Random, document: Any, other: Any) -> Any:
    """Return `document` with one value changed; it shares all other containers. Values may come from `other`."""
    if isinstance(document, dict) and document and draw.random() < 0.93:
        key = draw.choice(list(document))
        return _altered_map(draw, document, key, other)
    if isinstance(document, list | tuple) and document and draw.random() < 0.9:
        return _altered_list(draw, list(document), other)
    return _instead(draw, document, other)


def _altered_map(draw: random.Random, document: dict[Any, Any], key: Any, other: Any) -> dict[Any, Any]:
    changed = dict(document)
    chance = draw.random()
    if chance < 0.86:
        changed[key] = altered(draw, document[key], other)
    elif chance < 0.92:
        del changed[key]
    elif chance < 0.96:
        changed[draw.choice(TEXTS)] = changed.pop(key)
    else:
        changed[draw.choice(TEXTS)] = strange(draw)
    return changed


def _altered_list(draw: random.Random, changed: list[Any], other: Any) -> list[Any]:
    at = int(draw.random() * len(changed))
    chance = draw.random()
    if chance < 0.8:
        changed[at] = altered(draw, changed[at], other)
    elif chance < 0.86:
        del changed[at]
    elif chance < 0.92:
        changed.insert(at, changed[int(draw.random() * len(changed))])
    elif chance < 0.96:
        changed.insert(at, strange(draw))
    else:
        changed.reverse()
    return changed


def _instead(draw: random.Random, value: Any, other: Any) -> Any:
    chance = draw.random()
    if type(value) is int and chance < 0.3:
        return value + draw.choice((-1, 1, 8, -8))
    if isinstance(value, str) and value and chance < 0.4:
        at = int(draw.random() * len(value))
        return value[:at] + draw.choice(TEXTS) + value[at + int(draw.random() * 2) :]
    if isinstance(value, bytes) and value and chance < 0.6:
        return mutated(draw, value, [value], 1 << 16)
    if chance < 0.7:
        return strange(draw)
    if chance < 0.85:
        return lent(draw, other)
    return [value] if chance < 0.95 else {"x": value}


def lent(draw: random.Random, document: Any) -> Any:
    """Return any part of a document."""
    while draw.random() < 0.8:
        if isinstance(document, dict) and document:
            document = document[draw.choice(list(document))]
        elif isinstance(document, list | tuple) and document:
            document = document[int(draw.random() * len(document))]
        else:
            break
    return document
