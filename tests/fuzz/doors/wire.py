"""Fuzz targets for the agents' own protocol: frames, every kind of message, arrays, spans."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from edgepart.agent.admission.joining import JOIN_KINDS
from edgepart.agent.net.dispatch import CONTROL_KINDS, DATA_KINDS
from edgepart.agent.net.links import LINK_KINDS
from edgepart.agent.trace.spans import Span, Subject, pack, unpack
from edgepart.agent.wire.codec import Kinds, frame_to_message, message_to_frame
from edgepart.agent.wire.frames import (
    MEMBER,
    UNAUTHENTICATED,
    Frame,
    FrameLimits,
    encode,
    parse_frame,
    read_header,
)
from edgepart.agent.wire.inference import Epoch, SequenceStep, Tensors
from edgepart.agent.wire.likely_entries import LikelyEntries, find_likely
from edgepart.agent.wire.reduced_precision import Rounded, restore_array, round_array
from edgepart.agent.wire.tensors import pack_arrays, unpack_arrays
from edgepart.agent.wire.transfer_headers import TransferHeaders, pack_header
from edgepart.planner.errors import FrameError
from tests.agent.wire.decoder import Decoder
from tests.fuzz.doors.samples import sample
from tests.fuzz.forms import Bytes, Frames, Headed, MessagePack, headed, parted
from tests.fuzz.target import Target, expect, plainly

SMALL = FrameLimits(header_bytes=4096, payload_bytes=4096)


def _stream(*frames: Frame) -> bytes:
    return b"".join(bytes(piece) for frame in frames for piece in encode(frame))


def _frames(data: bytes) -> None:
    """Feed frames in pieces. A decoder that has refused once has to refuse for ever, and to hold nothing."""
    decoder, step = Decoder(SMALL), 1 + data[-1] if data else 1
    got: list[Frame] = []
    try:
        for at in range(0, len(data), step):
            got += decoder.feed(data[at : at + step])
    except FrameError:
        try:
            decoder.feed(b"")
        except FrameError:
            raise
        expect(False, "a broken stream goes on")
    again = Decoder(MEMBER).feed(_stream(*got))
    expect(
        [(f.kind, repr(f.header), bytes(f.body)) for f in again]
        == [(f.kind, repr(f.header), bytes(f.body)) for f in got],
        "frames are others after a round trip",
    )


def _frame_seeds() -> list[bytes]:
    plain = {"a": 1, "b": (2.5, None, True), "c": {"d": b"e"}, "f": "g" * 40}
    one, two = Frame("Echo", plain, (b"x" * 70,)), Frame("Cancel", {})
    return [_stream(one), _stream(two, one, two), _stream(Frame("", {})), b""]


def _messages(
    registry: Kinds, limits: FrameLimits
) -> tuple[Callable[[bytes], None], Callable[[], list[bytes]]]:
    def take(data: bytes) -> None:
        for frame in Decoder(limits).feed(data):
            message = frame_to_message(frame, registry)
            told = message_to_frame(message, frame.payload)
            again = frame_to_message(Decoder(MEMBER).feed(_stream(told))[0], registry)
            expect(repr(again) == repr(message), f"{frame.kind} is another after a round trip")

    def seeds() -> list[bytes]:
        draw = random.Random(7)
        found = [message_to_frame(sample(cls, draw)) for cls in registry.values() for _ in range(4)]
        return [_stream(frame) for frame in found]

    return take, seeds


VALUES: tuple[Any, ...] = (
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.zeros((0, 2), np.int64),
    np.array(5, np.uint8),
    None,
    np.array(["a", "é", b"x"], object),
    [np.ones(2), {"k": 1.5, "l": "t"}],
    {1: np.ones(1, np.float16), 2: None},
    round_array(np.arange(3000, dtype=np.float32).reshape(1, 30, 100), "int8"),
    round_array(np.arange(32, dtype=np.float32), "float16"),
    find_likely(np.arange(300, dtype=np.float32).reshape(2, 150), 3),
    find_likely(np.zeros(40, np.float16), 1),
)


def _packed(values: Sequence[Any]) -> bytes:
    metas, buffers = pack_arrays(values)
    return headed(msgpack.packb(metas, unicode_errors="surrogatepass"), b"".join(map(bytes, buffers)))


def _arrays(data: bytes) -> None:
    """Read arrays whose metas come in a frame's header, as they do on the wire."""
    head, payload = parted(data)
    frame = parse_frame(b"\x92\xa1x\x81\xa1m" + head, memoryview(payload))
    metas = frame.header["m"]
    if not isinstance(metas, tuple):
        raise FrameError("codec.py takes care of that")
    values = unpack_arrays(metas, memoryview(payload))
    for value in values:
        if isinstance(value, LikelyEntries):
            expect(bool((value.ids < value.shape[-1]).all()), "a likely entry is outside its row")
        if isinstance(value, Rounded):
            expect(restore_array(value).shape == value.shape, "a rounded array has another shape")
            float(value.error)
    metas, buffers = pack_arrays(values)
    again = unpack_arrays(metas, memoryview(b"".join(map(bytes, buffers))))
    expect(list(map(_shown, again)) == list(map(_shown, values)), "arrays are others after a round trip")


def _shown(value: Any) -> Any:
    """Return a form of the value that can be compared, whatever it contains."""
    match value:
        case np.ndarray() if value.dtype.hasobject:
            return ("texts", value.shape, repr(value.tolist()))
        case np.ndarray():
            return (str(value.dtype), value.shape, value.tobytes())
        case Rounded():
            return (value.kind, value.shape, value.data.tobytes())
        case LikelyEntries():
            return (value.shape, *map(_shown, (value.ids, value.values, value.log_sums)))
        case list():
            return [_shown(item) for item in value]
        case dict():
            return [(key, _shown(item)) for key, item in value.items()]
    return repr(value)


def _transfer_headers(data: bytes) -> None:
    """Read a header twice, the second time with its parts known, and then as the codec does."""
    headers, found = TransferHeaders(), []
    for seed in _header_seeds():
        headers.read(seed)
    for _ in range(2):
        read = headers.read(data)
        found.append(repr(None if read is None else read.message))
    frame = read_header(data)
    if frame.kind == Tensors.__name__ and found[0] != repr(None):
        expect(repr(frame_to_message(frame, DATA_KINDS)) == found[0], "the codec reads another message")
    expect(found[0] == found[1], "a header is another when its parts are known")


def _header_seeds() -> list[bytes]:
    metas, _ = pack_arrays([np.ones(2, np.float32)])
    step = SequenceStep("gate/0/1", 4, 5)
    made = [Tensors("m", Epoch(3, 1), "gate/0/1", n, metas, step=step) for n in (2, 300)]
    return [pack_header(one) for one in (*made, Tensors("m", Epoch(3, 1), "gate/0/2", 2, ()))]


SPANS = [
    Span("compute", "wait", 1.0, 2.0),
    Span("to a", "send", 0.0, 1e-9, Subject("net"), "x", "b", 3, 4, 0.5),
]


def _spans(data: bytes) -> None:
    found = unpack(data)
    expect(repr(unpack(pack(found))) == repr(found), "spans are others after a round trip")


_control, _control_seeds = _messages(CONTROL_KINDS, MEMBER)
_data, _data_seeds = _messages(DATA_KINDS, MEMBER)
_link, _link_seeds = _messages(LINK_KINDS, MEMBER)
_join, _join_seeds = _messages(JOIN_KINDS, UNAUTHENTICATED)

TARGETS = (
    Target("frames", _frame_seeds, plainly(_frames), (FrameError,), Bytes()),
    Target("control messages", _control_seeds, plainly(_control), (FrameError,), Frames()),
    Target("data messages", _data_seeds, plainly(_data), (FrameError,), Frames()),
    Target("link messages", _link_seeds, plainly(_link), (FrameError,), Frames()),
    Target("join messages", _join_seeds, plainly(_join), (FrameError,), Frames()),
    Target(
        "arrays",
        lambda: [_packed([v]) for v in VALUES] + [_packed(VALUES)],
        plainly(_arrays),
        (FrameError,),
        Headed(MessagePack()),
    ),
    Target("headers of transfers", _header_seeds, plainly(_transfer_headers), (FrameError,), MessagePack()),
    Target("spans", lambda: [pack(SPANS), pack([])], plainly(_spans), (FrameError,), MessagePack()),
)
