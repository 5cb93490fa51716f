"""The law for norms, cut along the axes that they normalise over as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access.declare.protocol import Reduction
from edgepart.planner.region import Array, Interval, Region, span
from tests.planner.access.law import (
    Case,
    check_any_region,
    check_reduction,
    declared,
    floats,
    run_local,
)
from tests.planner.access.node_cases import node_cases

OPERATORS = frozenset(
    [
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "RMSNormalization",
    ]
)
EXAMPLES = settings(max_examples=10)
SHAPES = st.sampled_from([(2, 4, 5), (2, 3, 4, 5), (1, 6, 7, 1), (1, 2, 3, 4, 2)])
KINDS = st.sampled_from([np.float32, np.float32, np.float64, np.float16])


def _numbers(data: st.DataObject, kind: Any, *shape: int, seed: int = 0) -> Array:
    """Around a mean that is not 0, so that a wrong mean shows."""
    offset = data.draw(st.sampled_from([0.0, 1.0]), "offset")
    return np.asarray(floats(*shape, seed=seed) + offset, kind)


@EXAMPLES
@given(SHAPES, st.sampled_from([6, 17, 22]), st.data())
def test_instance_norm(shape: tuple[int, ...], version: int, data: st.DataObject) -> None:
    epsilon = data.draw(st.sampled_from([{}, {"epsilon": 0.1}]), "epsilon")
    x = _numbers(data, np.float32, *shape)
    case = Case("InstanceNormalization", [x, floats(shape[1]), floats(shape[1], seed=1)], epsilon, version)
    check_any_region(declared(case), data, tries=2)


@EXAMPLES
@given(st.sampled_from([(1, 1), (1, 4), (2, 3), (4, 1), (4, 2)]), st.sampled_from([18, 21]), st.data())
def test_group_norm(groups: tuple[int, int], version: int, data: st.DataObject) -> None:
    count, each = groups
    channels = count * each
    shape = (2, channels, *data.draw(st.sampled_from([(5,), (4, 3), (3, 2, 2)]), "space"))
    per = channels if version > 18 else count
    attributes = {"num_groups": count, **data.draw(st.sampled_from([{}, {"epsilon": 0.1}]), "epsilon")}
    x = _numbers(data, np.float32, *shape)
    case = Case("GroupNormalization", [x, floats(per), floats(per, seed=1)], attributes, version)
    check_any_region(declared(case), data, tries=2)


@settings(max_examples=16)
@given(SHAPES, KINDS, st.data())
def test_layer_norm(shape: tuple[int, ...], kind: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1), "axis")
    scale = shape[axis:]
    if data.draw(st.booleans(), "broadcast scale"):
        scale = tuple(extent if n else 1 for n, extent in enumerate(scale))
    attributes: dict[str, Any] = data.draw(
        st.sampled_from([{"axis": axis}, {"axis": axis, "epsilon": 0.1}, {"axis": axis, "stash_type": 1}]),
        "attributes",
    )
    inputs = [_numbers(data, kind, *shape), np.asarray(floats(*scale, seed=1), kind)]
    if data.draw(st.booleans(), "bias"):
        inputs.append(np.asarray(floats(*shape[axis:], seed=2), kind))
    check_any_region(declared(Case("LayerNormalization", inputs, attributes)), data, tries=2)


@settings(max_examples=12)
@given(SHAPES, KINDS, st.data())
def test_rms_norm(shape: tuple[int, ...], kind: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1), "axis")
    attributes: dict[str, Any] = data.draw(
        st.sampled_from([{"axis": axis}, {"axis": axis, "epsilon": 0.1, "stash_type": 1}]), "attributes"
    )
    inputs = [_numbers(data, kind, *shape), np.asarray(floats(*shape[axis:], seed=1), kind)]
    check_any_region(declared(Case("RMSNormalization", inputs, attributes, version=23)), data, tries=2)


@EXAMPLES
@given(SHAPES, st.sampled_from([1, 2, None]), st.data())
def test_lp_norm(shape: tuple[int, ...], p: int | None, data: st.DataObject) -> None:
    attributes = {} if p is None else {"axis": data.draw(st.integers(-len(shape), len(shape) - 1)), "p": p}
    x = floats(*shape)
    x[..., 0] = 0
    if data.draw(st.booleans(), "zeros"):
        x[:] = 0
    check_any_region(declared(Case("LpNormalization", [x], attributes)), data, tries=2)


@EXAMPLES
@given(st.sampled_from([9, 13]), st.data())
def test_mean_variance_norm(version: int, data: st.DataObject) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"axes": [0, 1, 2, 3]},
        {"axes": [2, 3]},
        {"axes": [-1, 1]},
        {"axes": [3]},
    ]
    attributes = data.draw(st.sampled_from(ways[: 2 if version < 13 else None]), "axes")
    x = _numbers(data, np.float32, 2, 3, 4, 5)
    case = Case("MeanVarianceNormalization", [x], attributes, version=version)
    check_any_region(declared(case), data, tries=2)


@pytest.mark.parametrize("op_type", sorted(OPERATORS))
@settings(max_examples=2)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    """All but those that give the statistics of everything, which are opaque."""
    names = sorted(name for name, case in node_cases(op_type).items() if not _takes_all(case))
    case = node_cases(op_type)[data.draw(st.sampled_from(names), "case")]
    check_any_region(declared(case), data, tries=1)


def _takes_all(case: Case) -> bool:
    x = case.inputs[0]
    assert x is not None
    return case.outputs > 1 and case.attributes.get("axis", -1) in (0, -x.ndim)


@settings(max_examples=4)
@given(data=st.data())
def test_statistics_are_outputs_of_their_own(data: st.DataObject) -> None:
    case = Case("LayerNormalization", [floats(2, 3, 4, 5), floats(4, 5)], {"axis": 2}, outputs=3)
    checked = declared(case)
    assert [axis.name for axis in checked.access.axes()] == ["batch", "channel"]
    check_any_region(checked, data)


def test_axes_have_the_names_of_the_tensor() -> None:
    inputs = [floats(1, 2, 6, 5), floats(2), floats(2, seed=1)]
    access = declared(Case("InstanceNormalization", inputs)).access
    found = [(axis.name, axis.index, axis.reducer) for axis in access.axes()]
    assert found == [("channel", 1, None), ("height", 2, "moments"), ("width", 3, "moments")]


def _group_norm() -> tuple[Case, Reduction]:
    case = Case(
        "GroupNormalization", [floats(1, 6, 8, 4), floats(6), floats(6, seed=1)], {"num_groups": 2}, 21
    )
    access = declared(case).access
    return case, access.reduction(next(axis for axis in access.axes() if axis.name == "height"))


def test_rows_are_not_gathered() -> None:
    """A device with the rows 3 to 8 reads these for its moments, and the same ones again to normalise them."""
    _, reduction = _group_norm()
    rows = Region.full((1, 6, 8, 4)).replace(2, span((3, 8)))
    addends = {n: Region.full(addend.shape) for n, addend in enumerate(reduction.addends)}
    assert [addend.shape for addend in reduction.addends] == [(1, 2, 1, 1, 1)] * 2
    assert reduction.part(Interval(3, 8)).needs(addends)[:3] == (rows, None, None)
    parts = (Interval(0, 3), Interval(3, 8))
    *moments, x, scale, bias = reduction.combine(parts).needs({0: rows})
    assert moments == [Region.full((1, 2, 1, 1, 1))] * 4
    assert (x, scale, bias) == (rows, Region.full((6,)), Region.full((6,)))


def test_one_of_the_addends_alone() -> None:
    case, reduction = _group_norm()
    x = case.inputs[0]
    assert x is not None
    part = reduction.part(Interval(0, 3))
    wanted = {1: Region.box((0, 1), (1, 2), (0, 1), (0, 1), (0, 1))}
    (squares,) = run_local(part, wanted, {"in_0": x[:, 3:, :3]}, {1: "float"}, {"": 21})
    own = x[0, 3:, :3]
    np.testing.assert_allclose(squares.reshape(()), ((own - own.mean()) ** 2).sum(), rtol=1e-5)


def test_a_deviation_is_not_lost_beside_a_large_mean() -> None:
    """As it would be in sums of squares about 0: with a mean of 100 they leave an error of 3e-4."""
    x = np.asarray(floats(1, 1, 8, 4) + 100, np.float32)
    inputs = [x, np.ones(1, np.float32), np.zeros(1, np.float32)]
    checked = declared(Case("InstanceNormalization", inputs))
    exact = x.astype(np.float64)
    checked.results[0] = np.asarray((exact - exact.mean()) / np.sqrt(exact.var() + 1e-5), np.float32)
    axis = next(axis for axis in checked.access.axes() if axis.name == "height")
    check_reduction(checked, axis, [Interval(0, 3), Interval(3, 8)], Region.full(x.shape))
