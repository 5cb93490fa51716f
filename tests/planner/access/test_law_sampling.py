"""The law for what samples an image, and for MaxPool's indices and their inverse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access import access_of
from edgepart.planner.model.graph import Graph, Operator, Tensor
from edgepart.planner.region import Array, Region
from tests.planner.access.law import (
    IR_VERSION,
    Case,
    check_any_region,
    check_axes,
    check_law,
    check_whole,
    declared,
    floats,
    ints,
)
from tests.planner.access.node_cases import node_cases

OPERATORS = frozenset({"DeformConv", "GridSample", "MaxPool", "MaxRoiPool", "MaxUnpool", "RoiAlign"})

ROIS = np.asarray([[0, 0, 5, 4], [1, 2, 6, 7], [3, 1, 4, 6], [0, 3, 7, 7], [2, 2, 3, 3]], np.float32)


@settings(max_examples=20)
@given(data=st.data())
def test_grid_sample(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([16, 20, 22]), "version")
    space = data.draw(st.sampled_from([(4, 5), (3, 4, 5)] if version > 16 else [(4, 5)]), "space")
    modes = ["bilinear", "nearest", "bicubic"] if version == 16 else ["linear", "nearest"]
    attributes = {
        "mode": data.draw(st.sampled_from(modes + ["cubic"] * (version > 16 and len(space) == 2)), "mode"),
        "padding_mode": data.draw(st.sampled_from(["zeros", "border", "reflection"]), "padding"),
        "align_corners": data.draw(st.integers(0, 1), "corners"),
    }
    made = data.draw(st.sampled_from([(3, 4), (1, 7)]), "made") + (2,) * (len(space) - 2)
    grid = floats(2, *made, len(space), low=-1.3, high=1.3)
    check_any_region(
        declared(Case("GridSample", [floats(2, 3, *space), grid], attributes, version=version)), data
    )


@settings(max_examples=12)
@given(data=st.data())
def test_roi_align(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([10, 16]), "version")
    attributes: dict[str, Any] = {
        "mode": data.draw(st.sampled_from(["avg", "max"]), "mode"),
        "output_height": data.draw(st.integers(1, 3), "height"),
        "output_width": 2,
        "sampling_ratio": data.draw(st.integers(0, 2), "ratio"),
        "spatial_scale": 0.8,
    }
    if version == 16:
        attributes["coordinate_transformation_mode"] = data.draw(
            st.sampled_from(["half_pixel", "output_half_pixel"])
        )
    inputs = [floats(2, 3, 8, 8), ROIS, ints(0, 1, 1, 0, 1)]
    check_any_region(declared(Case("RoiAlign", inputs, attributes, version=version)), data)


@settings(max_examples=6)
@given(data=st.data())
def test_max_roi_pool(data: st.DataObject) -> None:
    rois = np.hstack([np.asarray([[0], [1], [1], [0], [1]], np.float32), ROIS])
    attributes = {"pooled_shape": [2, 3], "spatial_scale": 0.9}
    check_any_region(declared(Case("MaxRoiPool", [floats(2, 3, 8, 8), rois], attributes)), data)


@settings(max_examples=30)
@given(data=st.data())
def test_deform_conv(data: st.DataObject) -> None:
    groups, parts = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)]), "groups")
    kernel = data.draw(st.sampled_from([(3, 3), (2, 1), (1, 1)]), "kernel")
    strides = data.draw(st.sampled_from([(1, 1), (2, 1), (2, 3)]), "strides")
    dilations = data.draw(st.sampled_from([(1, 1), (1, 2)]), "dilations")
    pads = data.draw(st.sampled_from([(0, 0, 0, 0), (1, 0, 2, 1)]), "pads")
    extents = (9, 8)
    made = [
        (extents[n] + pads[n] + pads[n + 2] - (kernel[n] - 1) * dilations[n] - 1) // strides[n] + 1
        for n in (0, 1)
    ]
    taps = parts * kernel[0] * kernel[1]
    inputs: list[Array | None] = [
        floats(2, 4, *extents), floats(8, 4 // groups, *kernel, seed=1), floats(2, 2 * taps, *made, seed=2)
    ]  # fmt: skip
    bias, mask = data.draw(st.booleans(), "bias"), data.draw(st.booleans(), "mask")
    if bias or mask:
        inputs.append(floats(8, seed=3) if bias else None)
    if mask:
        inputs.append(floats(2, taps, *made, seed=4))
    attributes = {
        "group": groups,
        "offset_group": parts,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
    }
    if data.draw(st.booleans(), "stated"):
        attributes["kernel_shape"] = kernel
    checked = declared(Case("DeformConv", inputs, attributes, version=data.draw(st.sampled_from([19, 22]))))
    cut = {axis.name for axis in checked.access.axes()}
    assert cut == {"batch", "channel", "height", "width"} - (
        {"channel"} if groups > 1 and parts > 1 else set()
    )
    check_any_region(checked, data)


@pytest.mark.parametrize(
    "changed", [{"group": 0}, {"group": 3}, {"strides": [1]}, {"pads": [1]}, {"kernel_shape": [3]}]
)
def test_attributes_that_do_not_fit(changed: dict[str, Any]) -> None:
    inputs = [floats(1, 4, 5, 5), floats(2, 4, 3, 3), floats(1, 18, 3, 3)]
    graph = check_whole(Case("DeformConv", inputs, version=19)).graph
    (operator,) = graph.operators
    access = access_of(replace(operator, attributes=changed), graph)
    assert access.opaque is not None and "fit" in access.opaque


POOLED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8, 7), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 8, 7), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "storage_order": 1}),
    ((2, 3, 8, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "dilations": [2, 1]}),
    ((2, 3, 11), {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_UPPER"}),
    ((2, 2, 4, 5, 6), {"kernel_shape": [2, 1, 3], "strides": [1, 2, 1]}),
    ((2, 2, 4, 5, 6), {"kernel_shape": [2, 2, 2], "storage_order": 1}),
]


@pytest.mark.parametrize("number", range(len(POOLED)))
@settings(max_examples=8)
@given(data=st.data())
def test_indices_of_maxima(number: int, data: st.DataObject) -> None:
    shape, attributes = POOLED[number]
    checked = declared(Case("MaxPool", [floats(*shape)], attributes, version=12, outputs=2))
    assert len(checked.access.axes()) == len(shape)
    check_any_region(checked, data)


def test_indices_without_remainders() -> None:
    case = Case("MaxPool", [floats(2, 3, 8)], {"kernel_shape": [2]}, version=8, outputs=2)
    access = check_whole(case).access
    assert access.opaque is not None and "remainders" in access.opaque


UNPOOLED = {"kernel_shape": [2, 2], "strides": [2, 2]}


def _indices() -> Array:
    """One index in each window of a tensor of shape (2, 3, 4, 6)."""
    within = np.random.default_rng(5).integers(0, 2, (2, 2, 3, 2, 3))
    planes = 24 * np.arange(6).reshape(2, 3, 1, 1)
    rows, columns = 2 * np.arange(2)[:, None] + within[0], 2 * np.arange(3) + within[1]
    return np.asarray(planes + rows * 6 + columns)


@pytest.mark.parametrize("stated", [False, True])
@settings(max_examples=8)
@given(data=st.data())
def test_max_unpool(stated: bool, data: st.DataObject) -> None:
    inputs = [floats(2, 3, 2, 3), _indices(), *([ints(2, 3, 4, 6)] if stated else [])]
    case = Case("MaxUnpool", inputs, UNPOOLED, version=11, constants=frozenset({1}))
    checked = declared(case)
    assert [axis.name for axis in checked.access.axes()] == ["batch", "channel"]
    check_any_region(checked, data)


@pytest.mark.parametrize(("shape", "split"), [((2, 3, 4, 6), True), ((2, 3, 4, 7), False)])
def test_max_unpool_trusts_max_pool_of_a_tensor_of_the_same_shape(
    shape: tuple[int, ...], split: bool
) -> None:
    names = {"whole": shape, "small": (2, 3, 2, 3), "where": (2, 3, 2, 3), "back": (2, 3, 4, 6)}
    tensors = {
        name: Tensor(name, extents, "int64" if name == "where" else "float", 4)
        for name, extents in names.items()
    }
    operators = (
        Operator("pool", "MaxPool", "", 12, ("whole",), ("small", "where"), UNPOOLED),
        Operator("unpool", "MaxUnpool", "", 11, ("small", "where"), ("back",), UNPOOLED),
    )
    graph = Graph("both", ("whole",), ("back",), tensors, {}, operators, {"": 12}, IR_VERSION)
    access = access_of(operators[1], graph)
    assert bool(access.axes()) == split
    assert (access.opaque is None) == split


@pytest.mark.parametrize(
    ("indices", "constants"),
    [(_indices(), frozenset()), (_indices()[::-1].copy(), frozenset({1}))],
    ids=["known at run time", "of another sample"],
)
def test_indices_that_point_anywhere(indices: Array, constants: frozenset[int]) -> None:
    case = Case("MaxUnpool", [floats(2, 3, 2, 3), indices], UNPOOLED, version=11, constants=constants)
    access = check_whole(case).access
    assert access.opaque is not None and "anywhere" in access.opaque


@pytest.mark.parametrize("op_type", sorted(OPERATORS - {"MaxRoiPool"}))
@settings(max_examples=2)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    cases = node_cases(op_type)
    assert cases
    for case in cases.values():
        checked = check_whole(replace(case, reference=op_type == "RoiAlign"))
        check_law(checked, {n: Region.full(result.shape) for n, result in enumerate(checked.results)})
        check_axes(checked, data)
