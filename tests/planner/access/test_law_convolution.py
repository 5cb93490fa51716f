"""The law for convolutions and pools, with drawn strides, dilations, pads and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Region, span
from tests.planner.access.law import Case, check_any_region, check_law, check_whole, declared, floats

OPERATORS = frozenset(
    [
        "AveragePool",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "FusedConv",
        "GlobalAveragePool",
        "GlobalLpPool",
        "GlobalMaxPool",
        "LpPool",
        "MaxPool",
        "QLinearConv",
    ]
)
EXAMPLES = settings(max_examples=25)


@dataclass
class Geometry:
    attributes: dict[str, Any]
    kernel: list[int]
    extents: list[int]


@st.composite
def geometries(draw: st.DrawFn, ceil: bool = False, dilated: bool = True) -> Geometry:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    each = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    kernel, strides = draw(each), draw(each)
    dilations = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)) if dilated else [1] * rank
    largest = 9 if rank < 3 else 5
    extents = draw(st.lists(st.integers(5, largest), min_size=rank, max_size=rank))
    attributes: dict[str, Any] = {"strides": strides}
    if dilated:
        attributes["dilations"] = dilations
    how = draw(st.sampled_from(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if how == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel + kernel]
        if ceil:
            attributes["ceil_mode"] = draw(st.integers(0, 1))
    else:
        attributes["auto_pad"] = how
        if dilated:  # ONNX Runtime has no dilation with auto_pad
            attributes["dilations"] = [1] * rank
        if how != "VALID":  # nor pools that step over elements
            attributes["strides"] = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
    return Geometry(attributes, kernel, extents)


@EXAMPLES
@given(geometries(), st.data())
def test_conv(geometry: Geometry, data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2, 3, 4]), "groups")
    read, made = data.draw(st.integers(1, 3), "read"), data.draw(st.integers(1, 3), "made")
    x = floats(data.draw(st.integers(1, 2), "batch"), groups * read, *geometry.extents)
    w = floats(groups * made, read, *geometry.kernel, seed=1)
    bias = [floats(groups * made, seed=2)] if data.draw(st.booleans(), "bias") else []
    version = data.draw(st.sampled_from([7, 9, 11, 22]), "version")
    attributes = {**geometry.attributes, "group": groups}
    if data.draw(st.booleans(), "kernel_shape"):
        attributes["kernel_shape"] = geometry.kernel
    case = Case("Conv", [x, w, *bias], attributes, version=version)
    check_any_region(declared(case), data)


@EXAMPLES
@given(geometries(), st.data())
def test_conv_transpose(geometry: Geometry, data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2, 3]), "groups")
    read, made = data.draw(st.integers(1, 2), "read"), data.draw(st.integers(1, 3), "made")
    attributes = {**geometry.attributes, "group": groups}
    strides = attributes["strides"]
    if data.draw(st.booleans(), "output padding"):
        attributes["output_padding"] = [data.draw(st.integers(0, s - 1)) for s in strides]
    elif "pads" in attributes and data.draw(st.booleans(), "output shape"):
        dilations = attributes["dilations"]
        zipped = zip(geometry.extents, strides, geometry.kernel, dilations, strict=True)
        attributes["output_shape"] = [
            (e - 1) * s + (k - 1) * d + 1 - data.draw(st.integers(0, k - 1)) for e, s, k, d in zipped
        ]
        del attributes["pads"]
    x = floats(data.draw(st.integers(1, 2), "batch"), groups * read, *geometry.extents)
    w = floats(groups * read, made, *geometry.kernel, seed=1)
    bias = [floats(groups * made, seed=2)] if data.draw(st.booleans(), "bias") else []
    check_any_region(declared(Case("ConvTranspose", [x, w, *bias], attributes, version=11)), data)


@EXAMPLES
@given(geometries(ceil=True), st.sampled_from([10, 12, 22]), st.data())
def test_max_pool(geometry: Geometry, version: int, data: st.DataObject) -> None:
    x = floats(data.draw(st.integers(1, 2), "batch"), 3, *geometry.extents)
    attributes = {**geometry.attributes, "kernel_shape": geometry.kernel}
    check_any_region(declared(Case("MaxPool", [x], attributes, version=version)), data)


@EXAMPLES
@given(geometries(ceil=True, dilated=False), st.integers(0, 1), st.sampled_from([10, 11, 19, 22]), st.data())
def test_average_pool(geometry: Geometry, include: int, version: int, data: st.DataObject) -> None:
    x = floats(data.draw(st.integers(1, 2), "batch"), 3, *geometry.extents)
    attributes = {**geometry.attributes, "kernel_shape": geometry.kernel, "count_include_pad": include}
    check_any_region(declared(Case("AveragePool", [x], attributes, version=version)), data)


@settings(max_examples=10)
@given(geometries(dilated=False), st.integers(1, 2), st.data())
def test_lp_pool(geometry: Geometry, p: int, data: st.DataObject) -> None:
    attributes = {**geometry.attributes, "kernel_shape": geometry.kernel, "p": p}
    check_any_region(
        declared(Case("LpPool", [floats(1, 3, *geometry.extents)], attributes, version=11)), data
    )


CORNERS = [
    Case("Conv", [floats(1, 2, 9, 8), floats(3, 2, 3, 2, seed=1)],
         {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 2], "pads": [0, 3, 2, 1]}),
    Case("Conv", [floats(2, 1, 1), floats(1, 1, 1, seed=1)], {"pads": [2, 1], "strides": [3]}),
    Case("ConvTranspose", [floats(1, 2, 4, 3), floats(2, 3, 3, 2, seed=1)],
         {"kernel_shape": [3, 2], "dilations": [2, 1], "strides": [3, 2], "pads": [1, 0, 2, 1]}),
    Case("ConvInteger", [np.full((1, 4, 5, 5), 9, np.uint8), np.full((6, 2, 2, 2), 3, np.uint8)],
         {"group": 2, "kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    Case("QLinearConv",
         [np.full((1, 2, 5, 5), 9, np.uint8), *(np.asarray(v) for v in (np.float32(0.1), np.uint8(3))),
          np.full((2, 2, 2, 2), 3, np.int8), *(np.asarray(v) for v in (np.float32(0.1), np.int8(0))),
          *(np.asarray(v) for v in (np.float32(0.2), np.uint8(9)))],
         {"kernel_shape": [2, 2], "strides": [2, 1]}, version=13),
    Case("AveragePool", [floats(1, 2, 9, 8)],
         {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 0, 2, 1], "count_include_pad": 1}, version=19),
    Case("AveragePool", [floats(1, 2, 9)], {"kernel_shape": [2], "strides": [3], "ceil_mode": 1}, version=22),
    Case("LpPool", [floats(1, 2, 9, 8)], {"kernel_shape": [3, 2], "dilations": [2, 3], "p": 3}, version=18),
    Case("LpPool", [floats(1, 2, 8, 7)], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}, version=22),
    Case("LpPool", [floats(1, 2, 8, 7)], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    Case("MaxPool", [floats(1, 2, 8, 7)], {"kernel_shape": [3, 2], "strides": [2, 2], "storage_order": 1}),
    Case("GlobalLpPool", [floats(2, 3, 4, 5)], {"p": 1}),
    Case("GlobalLpPool", [floats(2, 3, 4, 5)], {"p": 3}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CORNERS)), ids=lambda n: f"{CORNERS[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_corners(number: int, data: st.DataObject) -> None:
    """Dilation with stride, uneven pads, one element, and what the drawn windows leave as it is."""
    check_any_region(declared(CORNERS[number]), data)


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@settings(max_examples=4)
@given(data=st.data())
def test_global_pool(op_type: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(2, 3, 5), (2, 3, 4, 5), (1, 4, 2, 3, 2)]))
    check_any_region(declared(Case(op_type, [floats(*shape)])), data)


def _bytes(seed: int, *shape: int, signed: bool = False) -> Any:
    # Seven bits of weight: with eight, kernels for AVX2 saturate between products, each kernel in its own way.
    low, high, kind = (-64, 64, np.int8) if signed else (0, 256, np.uint8)
    return np.random.default_rng(seed).integers(low, high, shape).astype(kind)


@settings(max_examples=12)
@given(geometries(), st.data())
def test_qlinear_conv(geometry: Geometry, data: st.DataObject) -> None:
    assume(len(geometry.kernel) < 3)
    groups = data.draw(st.sampled_from([1, 2]), "groups")
    read, made = data.draw(st.integers(1, 3), "read"), data.draw(st.integers(1, 3), "made")
    channels = groups * made
    per = data.draw(st.sampled_from([(), (channels,)]), "scales")
    w_scale = (
        np.full(per, 0.02, np.float32) * np.linspace(1, 2, channels, dtype=np.float32)[: per[0] if per else 1]
    )
    inputs = [
        _bytes(0, 1, groups * read, *geometry.extents),
        np.float32(0.05),
        np.uint8(120),
        _bytes(1, channels, read, *geometry.kernel, signed=True),
        w_scale.reshape(per),
        np.zeros(per, np.int8),
        np.float32(0.3),
        np.uint8(100),
        np.arange(channels, dtype=np.int32) * 50,
    ]
    arrays = [np.asarray(one) for one in inputs]
    case = Case(
        "QLinearConv",
        arrays,
        {**geometry.attributes, "group": groups},
        version=13,
        constants=frozenset(range(1, 9)),
    )
    check_any_region(declared(case), data)


@settings(max_examples=8)
@given(geometries(), st.data())
def test_conv_integer(geometry: Geometry, data: st.DataObject) -> None:
    assume(len(geometry.kernel) < 3)
    inputs = [_bytes(0, 1, 3, *geometry.extents), _bytes(1, 4, 3, *geometry.kernel), np.uint8(7)]
    case = Case("ConvInteger", [np.asarray(one) for one in inputs], geometry.attributes, version=13)
    check_any_region(declared(case), data)


@settings(max_examples=8)
@given(geometries(), st.data())
def test_fused_conv(geometry: Geometry, data: st.DataObject) -> None:
    assume(len(geometry.kernel) == 2)
    plain = Case(
        "Conv", [floats(1, 2, *geometry.extents), floats(3, 2, *geometry.kernel)], geometry.attributes
    )
    addend = floats(*check_whole(plain).results[0].shape, seed=3)
    case = Case(
        "FusedConv",
        [*plain.inputs, floats(3, seed=4), addend],
        {**geometry.attributes, "activation": "Relu"},
        version=1,
        domain="com.microsoft",
        opset=17,
    )
    check_any_region(declared(case), data)


def test_a_window_in_the_padding_alone_still_has_an_answer() -> None:
    case = Case("Conv", [floats(1, 1, 4), floats(1, 1, 2)], {"pads": [5, 5]})
    checked = declared(case)
    for row in range(checked.results[0].shape[2]):
        check_law(checked, {0: Region.box((0, 1), (0, 1), (row, row + 1))})


def test_rows_of_a_convolution_read_their_halo_and_no_more() -> None:
    """3x3, stride 2, pad 1 over 9 rows: outputs 1 and 2 read rows 1 to 5."""
    case = Case("Conv", [floats(1, 2, 9, 9), floats(4, 2, 3, 3)], {"strides": [2, 2], "pads": [1, 1, 1, 1]})
    access = declared(case).access
    x, w = access.needs({0: Region.box((0, 1), (1, 3), (1, 3), (0, 5))})
    assert x == Region.box((0, 1), (0, 2), (1, 6), (0, 9))
    assert w == Region.box((1, 3), (0, 2), (0, 3), (0, 3))
    assert access.flops({0: Region.full((1, 4, 5, 5))}) == 2 * 4 * 25 * 2 * 9


def test_channels_of_a_group_read_that_group_only() -> None:
    case = Case("Conv", [floats(1, 6, 4, 4), floats(9, 2, 1, 1), floats(9)], {"group": 3})
    access = declared(case).access
    channel = next(axis for axis in access.axes() if axis.name == "channel")
    assert (channel.quantum, channel.extent) == (3, 9)
    x, w, b = access.needs({0: Region((span((0, 1)), span((1, 2), (6, 9)), span((0, 4)), span((0, 4))))})
    assert x is not None and x.spans[1] == span((0, 2), (4, 6))
    assert w is not None and w.spans[0] == span((1, 2), (6, 9))
    assert b == Region((span((1, 2), (6, 9)),))
