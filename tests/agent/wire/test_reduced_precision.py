"""Rounding of what travels: how far off numbers come back, what is sent as it is, and frames that lie."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgepart.agent.execution.schedule import check_pieces
from edgepart.agent.wire.inference import Tensors
from edgepart.agent.wire.reduced_precision import (
    STEPS,
    Rounded,
    RoundingTally,
    restore_array,
    round_all,
    round_array,
)
from edgepart.agent.wire.tensors import pack_arrays, unpack_arrays, value_bytes
from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.plans.plan import GATEWAY, Piece, Plan, Transfer
from edgepart.planner.plans.reduced_precision import EXACT, FLOAT16, INT8, KINDS, count_rows, wire_bytes
from edgepart.planner.region import Region
from tests.agent import handmade
from tests.agent.execution.test_executor import EPOCH, GATE, Net, assert_right

SHAPES = arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6) | st.sampled_from(
    [(1, 8, 2, 40), (2, 3, 33), (3, 1, 64), (1, 1, 0, 40)]
)
ROUNDING = st.sampled_from([FLOAT16, INT8])


def floats(least: float, most: float) -> st.SearchStrategy[Any]:
    numbers = st.floats(least, most, width=32)
    return SHAPES.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=numbers))


def over_the_wire(value: Any) -> Any:
    """As a receiver has it."""
    metas, buffers = pack_arrays([value])
    (found,) = unpack_arrays(metas, memoryview(b"".join(buffers)))
    return found


def plainly_to_int8(array: Any) -> Any:
    """What comes back, worked out with all digits, row by row."""
    rows = np.asarray(array, np.float64).reshape(count_rows(array.shape), -1)
    found = np.empty_like(rows)
    for n, row in enumerate(rows):
        step = (row.max() - row.min()) / STEPS
        found[n] = row.min() + np.round((row - row.min()) / step) * step if step else row
    return found.reshape(array.shape)


@given(floats(-6e4, 6e4))
def test_float16_is_off_by_half_of_its_last_digit_of_the_largest(array: Any) -> None:
    value = round_array(array, FLOAT16)
    if not isinstance(value, Rounded):
        assert 0 < np.abs(array).max() < np.finfo(np.float16).tiny
        return
    back = restore_array(over_the_wire(value))
    assert back.dtype == np.float32 and back.shape == array.shape
    # The plain twin of it all: numpy's own conversion.
    assert np.array_equal(back, array.astype(np.float16).astype(np.float32))
    assert np.all(np.abs(back - array) <= value.error * np.abs(array).max(initial=0.0))


@given(floats(-(2.0**100), 2.0**100))
def test_int8_is_off_by_half_a_step_of_its_row(array: Any) -> None:
    value = round_array(array, INT8)
    if not isinstance(value, Rounded):
        least = np.finfo(np.float32).tiny
        ranges = np.ptp(array.reshape(count_rows(array.shape), -1), axis=1)
        assert ((ranges > 0) & (ranges < STEPS * least * 1.01)).any()
        return
    back = restore_array(over_the_wire(value))
    assert back.dtype == np.float32 and back.shape == array.shape
    if not array.size:
        return
    rows = array.reshape(count_rows(array.shape), -1).astype(np.float64)
    half = np.ptp(rows, axis=1, keepdims=True) / STEPS / 2
    digits = 4 * np.finfo(np.float32).eps * np.abs(rows).max(1, keepdims=True)
    off = np.abs(back.reshape(rows.shape) - rows)
    assert np.all(off <= half * (1 + 1e-4) + digits)
    assert off.max() <= value.error * np.abs(array).max() * (1 + 1e-4) + digits.max()


@given(arrays.arrays(np.float32, (1, 3, 5, 9), elements=st.integers(-1000, 1000).map(float)))
def test_int8_is_what_all_digits_would_give(array: Any) -> None:
    back = restore_array(round_array(array, INT8))
    steps = np.ptp(array.reshape(3, -1), axis=1).reshape(1, 3, 1, 1) / STEPS
    # Of two that are as near, either.
    assert np.all(np.abs(back - plainly_to_int8(array)) <= steps + 1e-3)
    assert np.mean(np.abs(back - plainly_to_int8(array)) > 1e-3 + 1e-3 * steps) < 0.1


@given(SHAPES, st.floats(-6e4, 6e4, width=16), ROUNDING)
def test_equal_numbers_come_back_as_they_were(shape: tuple[int, ...], number: float, kind: str) -> None:
    array = np.full(shape, number, np.float32)
    assert np.array_equal(restore_array(round_array(array, kind)), array)


@given(floats(-1e4, 1e4), ROUNDING)
def test_what_travels_is_as_long_as_the_plan_says(array: Any, kind: str) -> None:
    value = round_array(array, kind)
    planned = wire_bytes(kind, array.shape)
    assert value_bytes(value) == (planned if isinstance(value, Rounded) else array.nbytes)
    assert pack_arrays([value])[1] == [] or sum(map(len, pack_arrays([value])[1])) == value_bytes(value)


@pytest.mark.parametrize("odd", [nan, inf, -inf, 3e38, 1e5, 65520.0])
@pytest.mark.parametrize("kind", [FLOAT16, INT8])
def test_what_cannot_be_rounded_is_sent_as_it_is(odd: float, kind: str) -> None:
    array = np.array([[odd, 1.0, -odd]], np.float32)
    fits = kind == INT8 and odd in (1e5, 65520.0)
    value = round_array(array, kind)
    assert isinstance(value, Rounded) is fits
    assert fits or np.array_equal(over_the_wire(value), array, equal_nan=True)
    tally = RoundingTally()
    tally.count((kind, EXACT), round_all((kind, EXACT), (array, array)))
    assert (tally.rounded, tally.as_they_are) == ((1, 0) if fits else (0, 1))


@pytest.mark.parametrize("kind", [FLOAT16, INT8])
def test_numbers_below_all_digits_are_not_lost(kind: str) -> None:
    array = np.array([1e-42, -3e-43, 0.0], np.float32)
    assert round_array(array, kind) is array
    beside = np.array([1e-42, 1.0], np.float32)
    assert abs(restore_array(round_array(beside, kind))[0]) <= 2.0**-11


def test_the_largest_that_float16_has_is_kept() -> None:
    array = np.array([65504.0, 65519.0], np.float32)
    assert np.array_equal(restore_array(round_array(array, FLOAT16)), [65504.0, 65504.0])


def test_rows_have_ranges_of_their_own() -> None:
    array = np.zeros((1, 2, 1, 64), np.float32)
    array[0, 0] = np.linspace(0, 1, 64)
    array[0, 1] = np.linspace(0, 1e6, 64)
    back = restore_array(round_array(array, INT8))
    assert np.abs(back[0, 0] - array[0, 0]).max() <= 1 / 500
    assert round_array(array, INT8).error == pytest.approx(0.5 / 255)


@pytest.mark.parametrize("value", [np.zeros(3), np.zeros(3, np.int32), [1.0], None])
def test_only_float32_is_rounded(value: Any) -> None:
    assert round_array(value, EXACT) is value
    with pytest.raises(InternalError):
        round_array(value, FLOAT16)


def test_a_frame_may_bring_what_is_planned_or_all_digits() -> None:
    piece = Piece("x", Region.full((1, 4, 1, 64)))
    array = np.random.default_rng(0).standard_normal((1, 4, 1, 64)).astype(np.float32)
    planned = Transfer(0, "a", "b", (piece,), wire_bytes(INT8, (1, 4, 1, 64)), (INT8,))
    plain = Transfer(0, "a", "b", (piece,), array.nbytes)
    dtypes = {"x": np.dtype(np.float32)}
    for value in (array, over_the_wire(round_array(array, INT8))):
        assert check_pieces(planned, 0, [value], dtypes) == (piece,)
    for transfer, value in ((planned, round_array(array, FLOAT16)), (plain, round_array(array, INT8))):
        with pytest.raises(FrameError, match="not as planned"):
            check_pieces(transfer, 0, [value], dtypes)
    with pytest.raises(FrameError, match="in shape"):
        check_pieces(planned, 0, [round_array(array[:, :2], INT8)], dtypes)


@pytest.mark.parametrize(
    "meta",
    [
        ("rounded", "int4", (1, 2, 64)),
        ("rounded", INT8, (1, 2, 65)),
        ("rounded", FLOAT16, (1, -2, 64)),
        ("rounded", INT8, (2**40, 2**40)),
        ("rounded", INT8),
        ("list", (("rounded", INT8, (1, 2, 64)),)),
    ],
)
def test_frames_that_lie_are_refused(meta: Any) -> None:
    _, buffers = pack_arrays([round_array(np.ones((1, 2, 64), np.float32), INT8)])
    with pytest.raises(FrameError):
        unpack_arrays((meta,), memoryview(b"".join(buffers)))


@given(st.binary(min_size=wire_bytes(INT8, (1, 2, 40)), max_size=wire_bytes(INT8, (1, 2, 40))))
def test_any_bytes_are_numbers_of_some_kind(raw: bytes) -> None:
    """A peer that sends nonsense gets nonsense, and does no harm."""
    (found,) = unpack_arrays((("rounded", INT8, (1, 2, 40)),), memoryview(raw))
    assert restore_array(found).shape == (1, 2, 40)


def test_kinds_are_what_is_said() -> None:
    assert KINDS == (EXACT, FLOAT16, INT8) and wire_bytes(EXACT, (3, 5)) == 4 * prod((3, 5))


def rounding_plan(kind: str) -> Plan:
    """All that goes from device to device is rounded, however small."""
    plan = handmade.split_plan()
    inner = [GATEWAY not in (t.source, t.target) for t in plan.transfers]
    changed = (replace(t, dtypes=(kind,)) if one else t for t, one in zip(plan.transfers, inner, strict=True))
    return replace(plan, transfers=tuple(changed))


@pytest.fixture(params=[FLOAT16, INT8])
def rounding_net(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    net = Net(rounding_plan(request.param))
    net.install()
    yield net
    net.stop()


def tallies(net: Net) -> list[RoundingTally]:
    return [net.at[node].counters().rounding.get("m", RoundingTally()) for node in handmade.NODES.values()]


def test_executors_round_what_the_plan_says(rounding_net: Net) -> None:
    x = handmade.request_input(3)
    rounding_net.submit("r", x)
    answer, expected = rounding_net.answers(3)["r"], handmade.expected(x)
    y = np.concatenate([answer[4], answer[5]], axis=2)
    off = np.abs(y - expected["y"]).max() / np.abs(expected["y"]).max()
    assert 0 < off < 0.02
    assert [(one.rounded, one.as_they_are) for one in tallies(rounding_net)] == [(2, 0), (2, 0), (0, 0)]
    assert 0 < max(one.error for one in tallies(rounding_net)) <= 1 / 255
    assert rounding_net.at["node-a"].counters().sent_bytes["node-c"] < 2 * 4 * 6 * 4


def test_a_request_that_is_to_be_exact_is(rounding_net: Net) -> None:
    """From the gateway on, every device passes on that it is."""
    x = handmade.request_input(4)
    for transfer in (t for t in rounding_net.plan.transfers if t.source == GATEWAY):
        values = [piece.region.crop(x) for piece in transfer.pieces]
        message = Tensors("m", EPOCH, f"{GATE}/0/r", transfer.number, (), exact=True)
        rounding_net.at[handmade.NODES[transfer.target]].deliver(message, values, GATE)
    assert_right(rounding_net.answers(3)["r"], x)
    assert tallies(rounding_net) == [RoundingTally()] * 3


def test_numbers_that_cannot_be_rounded_reach_the_others_all_the_same(rounding_net: Net) -> None:
    x = handmade.request_input(5)
    x[0, 0, 3, 2] = nan
    rounding_net.submit("r", x)
    answer = rounding_net.answers(3)["r"]
    y = np.concatenate([answer[4], answer[5]], axis=2)
    assert np.array_equal(np.isnan(y), np.isnan(handmade.expected(x)["y"]))
    assert sum(one.as_they_are for one in tallies(rounding_net)) > 0
