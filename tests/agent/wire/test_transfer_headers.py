"""Headers of transfers are those of the codec, however often their parts were read before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.wire import transfer_headers
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.agent.wire.frames import Frame, read_header
from edgepart.agent.wire.inference import Epoch, Failed, SequenceStep, Tensors
from edgepart.agent.wire.tensors import pack_arrays
from edgepart.agent.wire.transfer_headers import TransferHeaders, pack_header
from edgepart.planner.errors import FrameError

STEPS = st.builds(
    SequenceStep, st.sampled_from(["gate/0/1", "gate/0/2"]), st.integers(0, 3), st.integers(0, 3)
)
METAS = st.one_of(
    st.tuples(st.just("array"), st.sampled_from(["float", "int64"]), st.tuples(st.integers(0, 200))),
    st.tuples(st.just("likely"), st.just("float"), st.tuples(st.integers(0, 200)), st.integers(0, 2)),
    st.none(),
    st.sampled_from(
        [("list", (("plain", 0.0),)), ("list", (("plain", -0.0),)), ("list", (("plain", False),))]
    ),
)
MESSAGES = st.builds(
    Tensors,
    st.sampled_from(["chat", "chat\ud800", "photos"]),
    st.builds(Epoch, st.sampled_from([0, 1, 1 << 40]), st.integers(0, 2)),
    st.sampled_from(["gate/0/1", "gate/0/22"]),
    st.integers(-1, 200),
    st.lists(METAS, max_size=2).map(tuple),
    st.booleans(),
    st.none() | STEPS,
    st.booleans(),
    st.lists(STEPS, max_size=2).map(tuple),
    st.integers(0, 2),
)
KINDS = kinds(Tensors)


def by_codec(message: Any) -> bytes:
    frame = message_to_frame(message)
    packed: bytes = msgpack.packb([frame.kind, frame.header], unicode_errors="surrogatepass")
    return packed


@given(st.lists(MESSAGES, max_size=12))
def test_what_is_packed_and_read_is_what_the_codec_reads(messages: list[Tensors]) -> None:
    headers = TransferHeaders()
    for message in messages:
        bare, sent = replace(message, arrays=()), pack_header(message)
        assert pack_header(bare, message.arrays) == sent
        for header in (sent, by_codec(message)):
            assert frame_to_message(read_header(header), KINDS) == message
            found = headers.read(header)
            assert found is not None and found.message == message
            # Equal numbers of other types, and zeros of another sign, are other bytes.
            assert repr(found.message) == repr(message)


@pytest.mark.parametrize(
    "metas",
    [
        ((),),
        (7,),
        ({"a": ()},),
        (("array", ({},), (1,)),),
        (("array", "float", (1.0,)),),
        (("likely", "float", (1,), 1.0),),
    ],
    ids=str,
)
def test_what_a_peer_sends_in_place_of_metas_is_read_as_by_the_codec(metas: Any) -> None:
    headers, header = TransferHeaders(), by_codec(Tensors("m", Epoch(1, 1), "gate/0/1", 3, metas))
    for _ in range(2):
        found = headers.read(header)
        assert found is not None
        assert repr(found.message) == repr(frame_to_message(read_header(header), KINDS))


def test_a_header_of_another_kind_is_not_read() -> None:
    assert TransferHeaders().read(by_codec(Failed("m", Epoch(1, 1), "gate/0/1", True, "why"))) is None
    assert TransferHeaders().read(b"") is None


@given(st.data(), st.lists(MESSAGES, min_size=1, max_size=4))
def test_changed_bytes_are_read_or_refused_as_by_the_codec(data: Any, messages: list[Tensors]) -> None:
    headers = TransferHeaders()
    for message in messages:
        headers.read(pack_header(message))
    header = bytearray(pack_header(messages[-1]))
    header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    begins = bytes(header).startswith(pack_header(messages[-1])[:9])
    try:
        expected = frame_to_message(read_header(bytes(header)), KINDS)
    except FrameError:
        if begins:
            with pytest.raises(FrameError):
                headers.read(bytes(header))
    else:
        found = headers.read(bytes(header))
        assert (found and found.message) == expected


def test_known_parts_are_bounded_and_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    headers, read = TransferHeaders(), []

    def note(header: bytes) -> Frame:
        read.append(header)
        return read_header(header)

    monkeypatch.setattr(transfer_headers, "KNOWN", 3)
    monkeypatch.setattr(transfer_headers, "read_header", note)
    metas, _ = pack_arrays([np.zeros(3, np.float32)])
    for request in ("gate/0/1", "gate/0/2"):
        for transfer in range(3):
            headers.read(pack_header(Tensors("m", Epoch(1, 1), request, transfer, metas)))
    assert len(read) == 4, "Each of three transfers once, and the second request once."
    headers.read(pack_header(Tensors("m", Epoch(1, 1), "gate/0/1", 3, metas)))
    headers.read(pack_header(Tensors("m", Epoch(1, 1), "gate/0/1", 0, metas)))
    assert len(read) == 6, "The first transfer was forgotten for the fourth."
