"""Forms: how a case's bytes are taken apart, mutated, and put together again. Does no I/O."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack

from edgepart.agent.wire.frames import MAGIC, PREFIX
from tests.fuzz.mutating import DEEP, DEPTH, altered, mutated

RAW = 0.25
"""Share of the cases of a form with documents whose bytes are mutated without regard to their meaning."""


class Form(Protocol):
    def mutated(self, draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
        """Return a new case of `largest` bytes at most."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes without a form."""

    def mutated(self, draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
        return mutated(draw, data, others, largest)


def json_bytes(draw: random.Random, document: Any) -> bytes:
    """Encode with constructs that JSON allows but its writers never emit: duplicate keys, huge numbers,
    endless brackets."""
    text = json.dumps(document, default=lambda value: value.decode("latin-1"))
    if DEEP_JSON in text:
        bracket = draw.choice(("[", '{"a":'))
        text = text.replace(DEEP_JSON, bracket * DEPTH)
    chance = draw.random()
    if chance < 0.04 and '": ' in text:
        at = draw.choice([n for n in range(len(text)) if text.startswith('": ', n)])
        key = text[text.rfind('"', 0, at) : at]
        text = f'{text[: text.rfind(chr(34), 0, at)]}{key}": {draw.choice(("1", "null", "[]"))}, {key}{text[at:]}'
    elif chance < 0.08:
        digits = [n for n, letter in enumerate(text) if letter.isdigit()]
        if digits:
            at = draw.choice(digits)
            text = (
                f"{text[:at]}{draw.choice(('9' * 400, '1e999', '1e-999', '-0', '9' * 5000))}{text[at + 1 :]}"
            )
    return text.encode()


DEEP_JSON = json.dumps(DEEP)


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON document."""

    def mutated(self, draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
        if draw.random() >= RAW:
            try:
                document, other = json.loads(data), json.loads(draw.choice(others))
                return json_bytes(draw, _altered(draw, document, other))[:largest]
            except (ValueError, RecursionError):
                return mutated(draw, data, others, largest)  # The case is not JSON any more.
        return mutated(draw, data, others, largest)


def msgpack_bytes(document: Any) -> bytes:
    packed: bytes = msgpack.packb(
        document, unicode_errors="surrogatepass", default=lambda value: int(value) % 2**63
    )
    if DEEP_MSGPACK in packed:
        packed = packed.replace(DEEP_MSGPACK, b"\x91" * DEPTH + b"\xc0")
    return packed


DEEP_MSGPACK: bytes = msgpack.packb(DEEP)


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass", use_list=True)


@dataclass(frozen=True, slots=True)
class MessagePack:
    """A MessagePack document."""

    def mutated(self, draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
        if draw.random() >= RAW:
            try:
                return msgpack_bytes(_altered(draw, _unpacked(data), _unpacked(draw.choice(others))))[
                    :largest
                ]
            except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
                return mutated(
                    draw, data, others, largest
                )  # Not MessagePack any more, or a value that it cannot hold.
        return mutated(draw, data, others, largest)


@dataclass(frozen=True, slots=True)
class Frames:
    """A frame of the agents' protocol. Its header is a document; its lengths are corrected, or not."""

    def mutated(self, draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
        if draw.random() < RAW or len(data) < PREFIX.size:
            return mutated(draw, data, others, largest)
        header_bytes = PREFIX.unpack_from(data)[3]
        header, payload = data[PREFIX.size : PREFIX.size + header_bytes], data[PREFIX.size + header_bytes :]
        other = draw.choice(others)
        if draw.random() < 0.3 and payload:
            payload = mutated(draw, payload, [payload], largest)
        else:
            lending = (
                other[PREFIX.size : PREFIX.size + PREFIX.unpack_from(other)[3]]
                if len(other) > PREFIX.size
                else header
            )
            header = MessagePack().mutated(draw, header, [lending], largest)
        return framed(header, payload)[:largest]


def framed(header: bytes, payload: bytes = b"") -> bytes:
    return PREFIX.pack(MAGIC, 1, 0, len(header), len(payload)) + header + payload


@dataclass(frozen=True, slots=True)
class Headed:
    """A document's length (4 bytes), the document, and bytes that the document describes."""

    inner: Form

    def mutated(self, draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
        if draw.random() < 0.15:
            return mutated(draw, data, others, largest)
        head, rest = parted(data)
        if draw.random() < 0.3:
            return headed(head, mutated(draw, rest, [rest], largest))[:largest]
        return headed(self.inner.mutated(draw, head, [parted(draw.choice(others))[0]], largest), rest)[
            :largest
        ]


LENGTH = struct.Struct("!I")


def headed(head: bytes, rest: bytes = b"") -> bytes:
    return LENGTH.pack(len(head)) + head + rest


def parted(data: bytes) -> tuple[bytes, bytes]:
    """Return head and rest, whatever the length says."""
    if len(data) < LENGTH.size:
        return b"", data
    (length,) = LENGTH.unpack_from(data)
    return data[LENGTH.size : LENGTH.size + length], data[LENGTH.size + length :]


def parts(data: bytes) -> list[bytes]:
    """Return all pieces, each of which follows its length."""
    found = []
    while len(data) >= LENGTH.size:
        head, data = parted(data)
        found.append(head)
    return found


@dataclass(frozen=True, slots=True)
class Sequenced:
    """Several pieces, each of which follows its length: successive messages."""

    inner: Form

    def mutated(self, draw: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
        pieces = parts(data) or [b""]
        other = parts(draw.choice(others)) or [b""]
        for _ in range(1 + int(draw.random() * 3)):
            self._change(draw, pieces, other, largest)
        return b"".join(map(headed, pieces))[:largest]

    def _change(self, draw: random.Random, pieces: list[bytes], other: list[bytes], largest: int) -> None:
        at = int(draw.random() * len(pieces)) if pieces else 0
        chance = draw.random()
        if chance < 0.6 and pieces:
            pieces[at] = self.inner.mutated(draw, pieces[at], other, largest)
        elif chance < 0.75 and len(pieces) > 1:
            del pieces[at]
        elif chance < 0.9:
            pieces.insert(at, draw.choice(other))
        else:
            pieces += other


def _altered(draw: random.Random, document: Any, other: Any) -> Any:
    for _ in range(1 + int(draw.random() ** 2 * 3)):
        document = altered(draw, document, other)
    return document


Seeds = Callable[[], Sequence[bytes]]
