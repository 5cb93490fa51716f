"""Likely entries: which they are, what the rest comes to, when they travel, and frames that lie."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgepart.agent.execution.schedule import check_pieces
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.agent.wire.frames import Frame, read_header
from edgepart.agent.wire.inference import Epoch, Tensors
from edgepart.agent.wire.likely_entries import (
    SUM_ERROR,
    TYPES,
    LikelyEntries,
    check_likely,
    find_likely,
    keep_likely,
)
from edgepart.agent.wire.tensors import pack_arrays, unpack_arrays, value_bytes
from edgepart.agent.wire.transfer_headers import TransferHeaders, pack_header
from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.plans.plan import GATEWAY, Piece, Transfer
from edgepart.planner.region import Region

levels = st.integers(-20, 20).map(lambda n: n / 2) | st.just(-math.inf)
"""Few different numbers, so that many are equal."""
shapes = st.sampled_from([(1,), (7,), (130,), (1, 1, 60), (4, 1, 90), (2, 3, 1), (2, 2, 400)])
rows_of_levels = st.builds(
    lambda array, kind: array.astype(kind),
    shapes.flatmap(lambda shape: arrays.arrays(np.float64, shape, elements=levels)),
    st.sampled_from([np.float16, np.float32, np.float64]),
)


def over_the_wire(value: Any) -> Any:
    """As a receiver has it."""
    metas, buffers = pack_arrays([value])
    metas = read_header(msgpack.packb(["x", {"m": metas}])).header["m"]
    (found,) = unpack_arrays(metas, memoryview(b"".join(buffers)))
    return found


def same(one: LikelyEntries, other: LikelyEntries) -> bool:
    parts = [(each.ids, each.values, each.log_sums) for each in (one, other)]
    return one.shape == other.shape and all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in zip(*parts, strict=True)
    )


@given(rows_of_levels, st.integers(1, 50))
def test_they_are_the_greatest_by_value_and_then_by_place(array: Any, count: int) -> None:
    found = find_likely(array, count)
    assert found.shape == array.shape and found.values.dtype == array.dtype
    for n, row in enumerate(array.reshape(-1, array.shape[-1]).tolist()):
        order = sorted(range(len(row)), key=lambda place: (-row[place], place))[:count]
        assert found.ids[n].tolist() == order
        assert found.values[n].tolist() == [row[place] for place in order]
        total = math.fsum(map(math.exp, row))
        expected = math.log(total) if total else -math.inf
        assert found.log_sums[n] == pytest.approx(expected, abs=SUM_ERROR)


@given(st.integers(0, 2**32), st.integers(1, 3000), st.sampled_from([0.1, 3.0, 20.0]), st.sampled_from(TYPES))
def test_sums_are_as_right_as_is_said(seed: int, size: int, spread: float, kind: Any) -> None:
    row = (np.random.default_rng(seed).standard_normal(size) * spread).astype(kind)
    total = math.fsum(map(math.exp, row.tolist()))
    assert find_likely(row, 1).log_sums[0] == pytest.approx(math.log(total), abs=SUM_ERROR / 2)


@given(rows_of_levels, st.integers(1, 50))
def test_they_travel_if_they_are_fewer_bytes(array: Any, count: int) -> None:
    value = keep_likely(array, count)
    if isinstance(value, LikelyEntries):
        assert same(over_the_wire(value), value) and same(value, find_likely(array, count))
        assert check_likely(value) is value and value.count == count
        assert value_bytes(value) == value.nbytes
        for number in range(len(value.ids)):
            row = array.reshape(-1, array.shape[-1])[number]
            assert same(value.row(number), find_likely(row, count))
    else:
        some_row_is_impossible = np.isneginf(array.max(axis=-1)).any()
        assert value is array and (2 * count >= array.shape[-1] or some_row_is_impossible)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 5, 199])
@pytest.mark.parametrize("count", [1, 4])
def test_a_row_with_what_is_no_number_is_sent_whole(odd: float, place: int, count: int) -> None:
    array = np.linspace(0, 1, 400, dtype=np.float32).reshape(2, 200)
    array[1, place] = odd
    assert keep_likely(array, count) is array
    found = find_likely(array, count)
    assert np.isfinite(found.log_sums[0]) and np.isnan(found.log_sums[1])


@pytest.mark.parametrize(
    "value",
    [
        np.arange(200),
        np.array(["a"] * 200, object),
        np.float32(1).reshape(()),
        np.zeros((0, 200), np.float32),
        [np.zeros(200, np.float32)],
        None,
    ],
    ids=repr,
)
def test_what_are_no_logits_is_sent_as_it_is(value: Any) -> None:
    assert keep_likely(value, 3) is value


def test_none_are_kept_unless_some_are_wanted() -> None:
    array = np.zeros((1, 1, 300), np.float32)
    assert keep_likely(array, 0) is array and isinstance(keep_likely(array, 1), LikelyEntries)


GOOD = find_likely(np.arange(64, dtype=np.float32).reshape(2, 32) / 10, 3)


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, ids=GOOD.ids + np.uint32(1)),
        replace(GOOD, ids=GOOD.ids * np.uint32(0)),
        replace(GOOD, ids=GOOD.ids[:1]),
        replace(GOOD, values=GOOD.values[:, ::-1]),
        replace(GOOD, values=GOOD.values * np.float32(math.nan)),
        replace(GOOD, values=np.where(GOOD.values == GOOD.values.max(), np.float32(math.inf), GOOD.values)),
        replace(GOOD, values=GOOD.values.astype(np.int64)),
        replace(GOOD, values=np.ones_like(GOOD.values)),
        replace(GOOD, log_sums=np.array([0.0, math.nan])),
        replace(GOOD, log_sums=np.array([0.0, -math.inf])),
        replace(GOOD, log_sums=np.zeros(3)),
        replace(GOOD, shape=(2, 2)),
        replace(GOOD, shape=(3, 32)),
        replace(GOOD, shape=()),
    ],
    ids=range(14),
)
def test_entries_that_lie_are_refused(bad: LikelyEntries) -> None:
    with pytest.raises(FrameError):
        check_likely(bad)


def test_equal_values_have_to_be_in_the_order_of_their_places() -> None:
    equal = replace(GOOD, values=np.ones_like(GOOD.values), ids=np.array([[1, 2, 3]] * 2, np.uint32))
    assert check_likely(equal) is equal
    with pytest.raises(FrameError, match="order"):
        check_likely(replace(equal, ids=equal.ids[:, ::-1]))


@pytest.mark.parametrize(
    "meta",
    [
        ("likely", "float", (2, 32), 0),
        ("likely", "float", (2, 32), -1),
        ("likely", "float", (2, 32), True),
        ("likely", "float", (2, 32), 3.0),
        ("likely", "float", (2, 32), 4),
        ("likely", "float", (2, 32), 2**40),
        ("likely", "float", (2, 2), 3),
        ("likely", "float", (0, 32), 3),
        ("likely", "float", (-2, 32), 3),
        ("likely", "float", (2**40, 2**40, 32), 3),
        ("likely", "float", (), 3),
        ("likely", "int32", (2, 32), 3),
        ("likely", "float16", (2, 32), 3),
        ("likely", "text", (2, 32), 3),
        ("likely", "float", (2, 32)),
        ("list", (("likely", "float", (2, 32), 3),)),
    ],
    ids=str,
)
def test_frames_that_lie_are_refused(meta: Any) -> None:
    _, buffers = pack_arrays([GOOD])
    with pytest.raises(FrameError):
        unpack_arrays((meta,), memoryview(b"".join(buffers)))


@given(st.binary(min_size=152, max_size=152))
def test_any_bytes_are_likely_entries_or_refused(raw: bytes) -> None:
    try:
        (found,) = unpack_arrays((("likely", "float", (2, 32), 3),), memoryview(raw))
    except FrameError:
        return
    assert check_likely(found) is found


def test_they_are_no_part_of_a_sequence() -> None:
    with pytest.raises(InternalError, match="LikelyEntries"):
        pack_arrays([[GOOD]])


def test_only_who_asked_for_so_many_gets_them() -> None:
    piece = Piece("logits", Region.full((2, 32)))
    transfer = Transfer(0, "a", GATEWAY, (piece,), 256)
    assert check_pieces(transfer, 0, [GOOD], {}, 3) == (piece,)
    for likely, found in ((0, GOOD), (4, GOOD), (3, replace(GOOD, shape=(2, 33)))):
        with pytest.raises(FrameError, match="likely entries"):
            check_pieces(transfer, 0, [found], {}, likely)
    unknown = replace(transfer, pieces=(Piece("logits", Region(())),))
    with pytest.raises(FrameError, match="likely entries"):
        check_pieces(unknown, 0, [GOOD], {}, 0)


def test_a_request_says_how_many_it_wants() -> None:
    metas, _ = pack_arrays([GOOD])
    plain = Tensors("m", Epoch(1, 1), "gate/0/1", 3, metas)
    assert "likely" not in message_to_frame(plain).header
    asked = replace(plain, likely=40)
    frame = message_to_frame(asked)
    assert frame_to_message(Frame(frame.kind, frame.header, ()), kinds(Tensors)) == asked
    headers = TransferHeaders()
    for message in (plain, asked, plain, asked):
        found = headers.read(pack_header(message))
        assert found is not None and found.message == message == replace(message, arrays=metas)
