"""A fuzz target for states that other devices send, to a device that mirrors another one and is about to go on with a
sequence."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from edgepart.agent.net.dispatch import DATA_KINDS
from edgepart.agent.wire.codec import frame_to_message, message_to_frame
from edgepart.agent.wire.frames import MEMBER, encode
from edgepart.agent.wire.inference import (
    Epoch,
    MirroredRows,
    ResumeSequence,
    RowsMessage,
    RowsOf,
    SentRows,
    StateMessage,
    WantRows,
)
from edgepart.agent.wire.tensors import pack_arrays, unpack_arrays
from edgepart.planner.errors import FrameError, StateLost, Unavailable
from edgepart.planner.region import Array
from tests.agent.serving.carrying import GATE, SEQUENCE, World
from tests.agent.wire.decoder import Decoder
from tests.fuzz.forms import Frames
from tests.fuzz.target import Target, expect, plainly

BEFORE, NOW = ("m", Epoch(1, 1)), ("m", Epoch(1, 2))


def _rows(heads: int, count: int) -> list[Array]:
    return [np.zeros((1, heads, count, 2), np.float32)] * 2


def _seeds() -> list[bytes]:
    plain: list[tuple[Any, list[Array]]] = [
        (MirroredRows(*BEFORE, SEQUENCE, 1, 4, 6), _rows(2, 2)),
        (MirroredRows(*BEFORE, SEQUENCE, 2, 0, 3), _rows(2, 3)),
        (MirroredRows(*BEFORE, SEQUENCE, 1, 0, 0), []),
        (SentRows(*BEFORE, SEQUENCE, 1, "", 0, question=1), []),
        (WantRows(*NOW, SEQUENCE, 1, 4), []),
        (WantRows(*NOW, SEQUENCE, 2, 4, 3, 5, RowsOf(*BEFORE, ("b",))), []),
        (ResumeSequence(*NOW, SEQUENCE, 1, 4, ("a", "b", "c")), []),
    ]
    offer = SentRows(*BEFORE, SEQUENCE, 1, "a", 4, (0, 1), question=1)
    answers = _encoded(offer, []) + _encoded(replace(offer, question=2), _rows(2, 4))
    return [*(_encoded(message, values) for message, values in plain), answers]


def _encoded(message: Any, values: list[Array]) -> bytes:
    metas, buffers = pack_arrays(values)
    shown = message_to_frame(replace(message, arrays=metas) if values else message, buffers)
    return b"".join(bytes(piece) for piece in encode(shown))


def _world() -> World:
    world = World("abc", Random(0))
    world.switch({"a": (0, 2), "b": (2, 4)}, {"a": "b", "b": "a"})
    for token in range(4):
        world.read(token)
        if not token:
            world.mirror()
            world.deliver()
    world.switch({"b": (0, 4)}, {})
    world.nodes["b"].exchange.take(ResumeSequence(*NOW, SEQUENCE, 1, 4, ("a", "b")), (), GATE, 0.0)
    return world


def _take(data: bytes) -> int:
    """Let device b take messages from a, which is its neighbour, mirror and source. Returns the number of those taken."""
    world, taken = _world(), 0
    exchange = world.nodes["b"].exchange
    before = exchange.mirrors.nbytes
    for frame in Decoder(MEMBER).feed(data):
        message = frame_to_message(frame, DATA_KINDS)
        if isinstance(message, StateMessage):
            values = unpack_arrays(message.arrays if isinstance(message, RowsMessage) else (), frame.body)
            source = GATE if isinstance(message, ResumeSequence) else "a"
            exchange.take(message, values, source, 1.0)
            taken += 1
        world.wires.pop(("a", "b"), None)
        world.deliver()
    expect(exchange.mirrors.nbytes <= 2 * before, "a device mirrors more than it may")
    return taken


TARGETS = (
    Target(
        "carried states", _seeds, plainly(_take), (FrameError, StateLost, Unavailable), Frames(), share=0.2
    ),
)
