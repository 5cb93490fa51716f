"""The law for operators that move elements, views and resizing among them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Region, span
from tests.planner.access.law import Case, check_any_region, check_law, check_whole, declared, floats, ints

SHAPE = (2, 6, 4, 5)
SECOND = frozenset({1})
PADDING = np.asarray(0.5, np.float32)
INT_MIN = np.iinfo(np.int64).min

DRAWN = {"Reshape", "Slice", "Pad", "Resize"}
"""Operators that have a test of their own below."""


def _slice(*bounds: tuple[int, int, int, int]) -> Case:
    starts, ends, axes, steps = (ints(*column) for column in zip(*bounds, strict=True))
    return Case("Slice", [floats(*SHAPE), starts, ends, axes, steps], constants=frozenset({1, 2, 3, 4}))


CASES: list[Case] = [
    Case("Concat", [floats(2, 3, 4), floats(2, 1, 4, seed=1), floats(2, 5, 4, seed=2)], {"axis": 1}),
    Case("Concat", [floats(2, 3, 4), floats(2, 3, 2, seed=1)], {"axis": -1}),
    Case("Concat", [floats(4)], {"axis": 0}),
    Case("Split", [floats(*SHAPE)], {"axis": 1}, version=11, outputs=3),
    Case("Split", [floats(*SHAPE)], {"axis": 1, "split": [1, 2, 3]}, version=11, outputs=3),
    Case("Split", [floats(*SHAPE), ints(4, 1)], {"axis": -1}, version=13, outputs=2, constants=SECOND),
    Case("Split", [floats(*SHAPE)], {"axis": 3, "num_outputs": 2}, version=18, outputs=2),
    Case("Transpose", [floats(*SHAPE)], {"perm": [0, 2, 3, 1]}),
    Case("Transpose", [floats(3, 4, 5)]),
    Case("Flatten", [floats(*SHAPE)], {"axis": 1}),
    Case("Flatten", [floats(*SHAPE)], {"axis": 0}),
    Case("Flatten", [floats(*SHAPE)], {"axis": -1}),
    Case("Squeeze", [floats(2, 1, 4, 1)], {"axes": [1, 3]}, version=11),
    Case("Squeeze", [floats(2, 1, 4, 1), ints(1)], version=13, constants=SECOND),
    Case("Squeeze", [floats(2, 1, 4, 1)], version=13),
    Case("Unsqueeze", [floats(2, 4)], {"axes": [0, 2]}, version=11),
    Case("Unsqueeze", [floats(2, 4), ints(-1, 1)], version=13, constants=SECOND),
    Case("Expand", [floats(3, 1, 5), ints(2, 3, 4, 5)], constants=SECOND),
    Case("Expand", [floats(3, 4), ints(1, 1)]),
    Case("Tile", [floats(2, 3), ints(1, 4)], constants=SECOND),
    Case("Tile", [floats(2, 3), ints(3, 2)]),
    Case("Gather", [floats(*SHAPE), ints(1, 1, -1, 0)], {"axis": 1}),
    Case("Gather", [floats(*SHAPE), ints(1, 5, -1, 0)], {"axis": 1}, constants=SECOND),
    Case("Gather", [floats(*SHAPE), np.asarray(3)], {"axis": 2}, constants=SECOND),
    Case("Gather", [floats(*SHAPE), np.asarray(3)], {"axis": 2}),
    Case("Gather", [floats(9, 4), np.asarray([[3, 8, 8], [0, -9, 1]])], constants=SECOND),
    Case("Gather", [floats(9, 4), np.asarray([[3, 8, 8], [0, -9, 1]])]),
    Case("GatherElements", [floats(4, 5), np.asarray([[0, 3, 1], [2, 2, -1]])], {"axis": 0}),
    Case("DepthToSpace", [floats(1, 8, 3, 4)], {"blocksize": 2}),
    Case("DepthToSpace", [floats(1, 8, 3, 4)], {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", [floats(1, 2, 6, 4)], {"blocksize": 2}),
    Case("GatherElements", [floats(4, 5), np.asarray([[0, 4], [2, -1], [1, 1], [3, 3]])], {"axis": -1}),
    Case("GatherElements", [floats(4, 5), np.asarray([[0, 3, 1]])]),
    Case("DepthToSpace", [floats(2, 9, 2, 3)], {"blocksize": 3}, version=9),
    Case("SpaceToDepth", [floats(2, 1, 6, 9)], {"blocksize": 3}, version=9),
    Case("Reshape", [floats(2, 6, 4), ints(0, -1)], {"allowzero": 0}, version=14, constants=SECOND),
    Case("Reshape", [floats(2, 6, 4), ints(4, -1)], {"allowzero": 1}, version=14, constants=SECOND),
    Case("Transpose", [floats(3)]),
    Case("Transpose", [np.asarray(1.5, np.float32)]),
    Case("Unsqueeze", [np.asarray(1.5, np.float32), ints(0)], version=13, constants=SECOND),
    Case("Expand", [np.asarray(1.5, np.float32), ints(2, 3)], constants=SECOND),
    Case("Upsample", [floats(1, 3, 4, 5)], {"scales": [1.0, 1.0, 2.0, 3.0]}, version=7),
    Case("Upsample", [floats(1, 3, 4, 5), np.asarray([1, 1, 2, 2], np.float32)], {"mode": "linear"}, version=9,
         constants=SECOND),
    # Slices of the opsets before 10 are attributes.
    Case("Slice", [floats(*SHAPE)], {"starts": [1, -3], "ends": [9, -1], "axes": [1, 3]}, version=9),
    _slice((1, 5, 1, 1)),
    _slice((0, 6, 1, 2), (-1, INT_MIN, 3, -1)),
    _slice((5, 0, 1, -2), (1, 4, -2, 1), (0, 100, 3, 3)),
    # Pads
    Case("Pad", [floats(*SHAPE)], {"pads": [0, 1, 2, 0, 0, 0, 1, 3], "value": 0.5}, version=9),
    Case("Pad", [floats(*SHAPE)], {"pads": [0, 0, 2, 1, 0, 0, 1, 3], "mode": "reflect"}, version=9),
    Case("Pad", [floats(*SHAPE), ints(0, 1, 2, 0, 0, 0, 1, 3), PADDING], constants=SECOND),
    Case("Pad", [floats(*SHAPE), ints(0, -1, 2, 0, 0, 0, 1, -3)], constants=SECOND),
    Case("Pad", [floats(*SHAPE), ints(0, -2, 2, 0, 0, 1, -2, 0)], constants=SECOND),
    Case("Pad", [floats(*SHAPE), ints(0, 0, 2, 0, 0, 0, 1, 0)], {"mode": "edge"}, constants=SECOND),
    Case("Pad", [floats(*SHAPE), ints(2, 3), PADDING, ints(-1)], version=18, constants=frozenset({1, 3})),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    check_any_region(declared(CASES[number]), data)


@st.composite
def factors(draw: st.DrawFn, total: int) -> list[int]:
    """A shape with that many elements, some of its axes of extent 1."""
    shape = []
    while total > 1:
        part = draw(st.sampled_from([d for d in range(2, total + 1) if total % d == 0]))
        shape.append(part)
        total //= part
        if draw(st.integers(0, 4)) == 0:
            shape.append(1)
    return shape or [1]


@settings(max_examples=40)
@given(st.sampled_from([12, 24, 30, 36, 48]), st.data())
def test_reshape(total: int, data: st.DataObject) -> None:
    before, after = data.draw(factors(total), "before"), data.draw(factors(total), "after")
    constants = SECOND if data.draw(st.booleans(), "constant") else frozenset()
    check_any_region(declared(Case("Reshape", [floats(*before), ints(*after)], constants=constants)), data)


@settings(max_examples=15)
@given(st.data())
def test_slice(data: st.DataObject) -> None:
    bounds: list[tuple[int, int, int, int]] = []
    for axis in data.draw(st.sets(st.integers(0, 3), min_size=1), "axes"):
        extent = SHAPE[axis]
        step = data.draw(st.sampled_from([1, 1, 2, 3, -1, -2]), "step")
        low = data.draw(st.integers(0, extent - 1), "low")
        high = data.draw(st.integers(low + 1, extent), "high")
        first, last = (low, high) if step > 0 else (high - 1, low - 1 if low else INT_MIN)
        bounds.append((first, last, axis, step))
    check_any_region(declared(_slice(*bounds)), data)


@settings(max_examples=15)
@given(st.data())
def test_pad(data: st.DataObject) -> None:
    begins = [data.draw(st.integers(-1, 3)) for _ in SHAPE]
    ends = [data.draw(st.integers(0 if b < 0 else -1, 3)) for b in begins]
    case = Case("Pad", [floats(*SHAPE), ints(*begins, *ends), PADDING], constants=SECOND)
    check_any_region(check_whole(case), data)


def test_heads_of_attention_can_be_cut_apart() -> None:
    """[batch, sequence, heads * size] to [batch, sequence, heads, size] and back: whole heads are quanta."""
    apart = declared(Case("Reshape", [floats(1, 4, 12), ints(1, 4, 3, 4)])).access
    assert [(axis.index, axis.quantum) for axis in apart.axes()] == [(1, 1), (2, 1)]
    assert apart.needs({0: Region.box((0, 1), (0, 4), (1, 2), (0, 4))})[0] == Region.box(
        (0, 1), (0, 4), (4, 8)
    )
    back = declared(Case("Reshape", [floats(1, 4, 3, 4), ints(1, 4, 12)])).access
    assert [(axis.index, axis.quantum) for axis in back.axes()] == [(1, 1), (2, 4)]


def test_concat_does_not_read_what_is_not_wanted() -> None:
    case = Case("Concat", [floats(1, 2, 3), floats(1, 3, 3), floats(1, 4, 3)], {"axis": 1})
    access = declared(case).access
    needs = access.needs({0: Region.box((0, 1), (3, 5), (0, 3))})
    assert needs == (None, Region.box((0, 1), (1, 3), (0, 3)), None)


def test_known_indices_read_their_rows_only() -> None:
    case = Case("Gather", [floats(9, 4), ints(7, 2, 2)], constants=SECOND)
    rows = declared(case).access.needs({0: Region.full((3, 4))})[0]
    assert rows == Region((span((2, 3), (7, 8)), span((0, 4))))


@st.composite
def resizes(draw: st.DrawFn) -> Case:
    extents = [draw(st.integers(3, 9)), draw(st.integers(4, 8))]
    version = draw(st.sampled_from([10, 11, 13, 18, 19]))
    mode = draw(st.sampled_from(["nearest", "linear"] + (["cubic"] if version > 10 else [])))
    attributes: dict[str, Any] = {"mode": mode}
    if version > 10:
        how = ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners"]
        attributes["coordinate_transformation_mode"] = draw(st.sampled_from(how))
        if mode == "nearest":
            rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
            attributes["nearest_mode"] = draw(st.sampled_from(rounding))
        if mode == "cubic":
            attributes["exclude_outside"] = draw(st.integers(0, 1))
    x = floats(1, 2, *extents)
    none = None if version > 12 else np.zeros(0, np.float32)  # roi and scales were obligatory before 13
    scales = [1.0, 1.0] + [draw(st.sampled_from([1.0, 2.0, 2.0, 3.0, 4.0, 0.5, 1.5, 0.7])) for _ in extents]
    if version > 10 and draw(st.booleans()):
        sizes = ints(1, 2, *(max(int(e * s), 1) for e, s in zip(extents, scales[2:], strict=True)))
        return Case("Resize", [x, none, none, sizes], attributes, version=version, constants=frozenset({3}))
    given_scales = np.asarray(scales, np.float32)
    if version == 10:
        return Case("Resize", [x, given_scales], attributes, version=10, constants=SECOND)
    return Case("Resize", [x, none, given_scales], attributes, version=version, constants=frozenset({2}))


@settings(max_examples=60)
@given(resizes(), st.data())
def test_resize(case: Case, data: st.DataObject) -> None:
    check_any_region(declared(case), data)


RESIZED: list[tuple[dict[str, Any], tuple[float, ...]]] = [
    ({"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}, (1, 1, 2, 2)),
    ({"mode": "cubic", "exclude_outside": 1, "coordinate_transformation_mode": "asymmetric"}, (1, 1, 2, 4)),
    ({"mode": "linear", "antialias": 1}, (1, 1, 0.5, 0.5)),
    ({"mode": "linear", "axes": [2, 3]}, (2, 3)),
    ({"mode": "nearest", "axes": [-1]}, (2,)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RESIZED)))
@settings(max_examples=6)
@given(data=st.data())
def test_resize_with_rare_attributes(number: int, data: st.DataObject) -> None:
    attributes, scales = RESIZED[number]
    inputs = [floats(1, 2, 8, 6), None, np.asarray(scales, np.float32)]
    check_any_region(declared(Case("Resize", inputs, attributes, version=19, constants=frozenset({2}))), data)


@settings(max_examples=6)
@given(st.sampled_from(["not_larger", "not_smaller"]), st.data())
def test_resize_that_keeps_proportions(policy: str, data: st.DataObject) -> None:
    attributes = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    inputs = [floats(1, 2, 8, 6), None, None, ints(12, 12)]
    check_any_region(declared(Case("Resize", inputs, attributes, version=19, constants=frozenset({3}))), data)


def test_rows_of_an_upsampling_read_the_rows_they_come_from() -> None:
    scales = np.asarray([1, 1, 2, 2], np.float32)
    case = Case(
        "Resize",
        [floats(1, 2, 16, 16), None, scales],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        version=13,
        constants=frozenset({2}),
    )
    access = declared(case).access
    rows = access.needs({0: Region.box((0, 1), (0, 2), (8, 16), (0, 32))})[0]
    assert rows is not None and rows.spans[1:] == (span((0, 2)), span((4, 9)), span((0, 16)))
    assert {axis.name for axis in access.axes()} >= {"height", "width", "channel"}


@settings(max_examples=10)
@given(st.data())
def test_an_empty_region_reads_nothing(data: st.DataObject) -> None:
    checked = declared(Case("Transpose", [floats(3, 4)]))
    wanted = {0: Region((span((0, data.draw(st.integers(1, 4)))), ()))}
    assert checked.access.needs(wanted) == (None,)
    check_law(checked, wanted)
    assert prod(wanted[0].shape) == 0


OPERATORS = frozenset({*DRAWN, *(case.op_type for case in CASES)})
