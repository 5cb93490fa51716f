"""Spans: recorded only while somebody wants them, bounded, and packed without loss."""

from __future__ import annotations

from threading import Thread
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.trace.recorder import Recorder, subject_of
from edgepart.agent.trace.spans import COMPUTE, COMPUTING, NOTHING, Span, Subject, pack, unpack
from edgepart.agent.wire.codec import message_to_frame
from edgepart.agent.wire.frames import Frame
from edgepart.agent.wire.inference import NO_EPOCH, Epoch, Tensors
from edgepart.planner.errors import FrameError

NUMBERS = st.integers(-(2**63), 2**63)
SUBJECTS = st.builds(Subject, st.text(), st.builds(Epoch, NUMBERS, NUMBERS), st.text())
FLOATS = st.floats(0, allow_infinity=False)
SPANS = st.builds(
    Span, st.text(), st.text(), FLOATS, FLOATS, SUBJECTS, st.text(), st.text(), NUMBERS, NUMBERS, FLOATS
)


def test_off_it_keeps_nothing() -> None:
    recorder = Recorder()
    recorder.add(COMPUTING, COMPUTE, 0.0)
    assert not recorder.on and recorder.stop().spans == []
    recorder.start()
    assert recorder.on
    recorder.stop()
    recorder.add(COMPUTING, COMPUTE, 0.0)
    assert recorder.stop().spans == []


@given(st.integers(1, 20), st.integers(0, 50))
def test_it_keeps_the_last_ones_and_says_how_many_it_forgot(most: int, count: int) -> None:
    recorder = Recorder()
    recorder.start(most)
    for number in range(count):
        recorder.add(COMPUTING, COMPUTE, float(number), ended_s=number + 0.5)
    found = recorder.stop()
    assert [span.began_s for span in found.spans] == [float(n) for n in range(count)][-most:]
    assert all(span.took_s == 0.5 for span in found.spans)
    assert found.forgotten == max(0, count - most)


def test_threads_lose_nothing() -> None:
    recorder = Recorder()
    recorder.start(500)

    def record() -> None:
        for _ in range(300):
            recorder.add(COMPUTING, COMPUTE, 0.0)

    threads = [Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = recorder.stop()
    assert (len(found.spans), found.forgotten) == (500, 700)


def test_a_clock_that_seems_to_go_back_gives_no_negative_span() -> None:
    recorder = Recorder()
    recorder.start()
    recorder.add(COMPUTING, COMPUTE, 5.0, ended_s=4.0)
    assert recorder.stop().spans[0].took_s == 0.0


@given(st.lists(SPANS, max_size=5))
def test_packed_and_unpacked_they_are_the_same(spans: list[Span]) -> None:
    assert unpack(pack(spans)) == spans


GOOD: list[Any] = ["l", "k", 1.0, 2.0, "d", 1, 2, "r", "w", "p", 3, 4, 0.5]


@pytest.mark.parametrize(
    "rows",
    [
        5,
        {"a": 1},
        [5],
        [GOOD[:-1]],
        [[*GOOD, 1]],
        [[*GOOD[:3], -1.0, *GOOD[4:]]],
        [[*GOOD[:3], float("nan"), *GOOD[4:]]],
        [[*GOOD[:2], float("inf"), *GOOD[3:]]],
        [[*GOOD[:10], "3", *GOOD[11:]]],
    ],
)
def test_what_is_no_spans_is_refused(rows: Any) -> None:
    assert len(unpack(msgpack.packb([GOOD]))) == 1
    with pytest.raises(FrameError):
        unpack(msgpack.packb(rows))


@given(st.binary())
def test_any_bytes_are_spans_or_refused(data: bytes) -> None:
    try:
        assert isinstance(unpack(data), list)
    except FrameError as error:
        assert str(error)


def test_what_a_frame_is_about() -> None:
    frame = message_to_frame(Tensors("photos", Epoch(3, 4), "n/b/7", 12, ()))
    assert subject_of(frame) == (Subject("photos", Epoch(3, 4), "n/b/7"), 12)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["deployment", "request", "epoch", "transfer"]), VALUES))
def test_a_frame_of_anything_is_about_something(header: dict[str, Any]) -> None:
    about, transfer = subject_of(Frame("Tensors", header))
    assert isinstance(about.deployment, str) and type(transfer) is int
    assert about == NOTHING or isinstance(header["request"], str)
    assert isinstance(about.epoch, Epoch) and (about.epoch == NO_EPOCH or "epoch" in header)
