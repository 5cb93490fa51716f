"""The law for what scatters, and for GatherND."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access import Axis
from edgepart.planner.region import Array, Region, span
from tests.planner.access.law import (
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

OPERATORS = frozenset({"GatherND", "Scatter", "ScatterElements", "ScatterND", "TensorScatter"})

SECOND = frozenset({1})


def _indices(*shape: int, below: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-below, below, shape)


def _grid(*lists: list[int]) -> Array:
    """Indices of every combination, as exporters write the assignment of a slice."""
    return np.stack(np.meshgrid(*map(np.asarray, lists), indexing="ij"), axis=-1)


def _names(access_axes: tuple[Axis, ...]) -> list[int]:
    return [axis.index for axis in access_axes]


@pytest.mark.parametrize(
    ("op_type", "version"), [("Scatter", 9), ("ScatterElements", 11), ("ScatterElements", 18)]
)
@settings(max_examples=10)
@given(data=st.data())
def test_elements(op_type: str, version: int, data: st.DataObject) -> None:
    shape = (4, 5, 6)
    axis = data.draw(st.integers(-3, 2), "axis")
    count = (
        data.draw(st.integers(1, 7), "count")
        if version >= 11
        else data.draw(st.integers(1, shape[axis]), "count")
    )
    fewer = [data.draw(st.integers(1, extent), "extent") for extent in shape]
    fewer[axis] = count
    attributes: dict[str, object] = {"axis": axis}
    if version >= 18:
        attributes["reduction"] = data.draw(
            st.sampled_from(["none", "add", "mul", "max", "min"]), "reduction"
        )
    low = -shape[axis] if version >= 11 else 0
    indices = np.random.default_rng(count).integers(low, shape[axis], fewer)
    case = Case(op_type, [floats(*shape), indices, floats(*fewer, seed=1)], attributes, version=version)
    check_any_region(declared(case), data)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@settings(max_examples=6)
@given(data=st.data())
def test_slices_at_places_known_at_run_time(reduction: str, data: st.DataObject) -> None:
    shape = (3, 4, 5)
    named = data.draw(st.integers(1, 3), "named")
    places = data.draw(st.sampled_from([(), (2,), (2, 3)]), "places")
    indices = np.stack([_indices(*places, below=e, seed=n) for n, e in enumerate(shape[:named])], axis=-1)
    updates = floats(*places, *shape[named:], seed=1)
    case = Case("ScatterND", [floats(*shape), indices, updates], {"reduction": reduction}, version=18)
    checked = declared(case)
    assert _names(checked.access.axes()) == list(range(named, 3))
    check_any_region(checked, data)


KNOWN: list[tuple[Array, list[int]]] = [
    (_grid([0, 1, 2], [1, 2], [0, 2, 4]), [0, 1, 2]),
    (_grid([2], [3], [0, 1, 2, 3, 4]), [0, 1, 2]),
    (_grid([2, 0], [3, 1]), [0, 1, 2]),
    (_grid([1, 1, 0]), [0, 1, 2]),
    (np.asarray([1, 3]), [0, 1, 2]),
    (np.asarray([[0, 0], [1, 1], [2, 2]]), [0, 1, 2]),
    (np.asarray([[[0, 0], [1, 0]], [[1, 2], [2, 2]]]), [1, 2]),
    (np.asarray([[0, -1], [1, 2]]), [0, 2]),
]
"""Indices of a tensor of shape (3, 4, 5), and the axes that can be cut as they are known."""


@pytest.mark.parametrize("number", range(len(KNOWN)))
@pytest.mark.parametrize("reduction", ["none", "add"])
@settings(max_examples=6)
@given(data=st.data())
def test_slices_at_known_places(reduction: str, number: int, data: st.DataObject) -> None:
    indices, axes = KNOWN[number]
    updates = floats(*indices.shape[:-1], *(3, 4, 5)[indices.shape[-1] :], seed=1)
    inputs = [floats(3, 4, 5), indices, updates]
    case = Case("ScatterND", inputs, {"reduction": reduction}, version=16, constants=SECOND)
    checked = declared(case)
    assert _names(checked.access.axes()) == axes
    check_any_region(checked, data)


def test_an_assigned_slice_is_read_where_it_lands() -> None:
    indices = _grid([0, 1], [4, 5, 6], [0, 1, 2])
    checked = declared(
        Case("ScatterND", [floats(2, 9, 3), indices, floats(2, 3, 3)], version=11, constants=SECOND)
    )
    upper = Region.box((0, 2), (0, 4), (0, 3))
    assert checked.access.needs({0: upper}) == (upper, None, None)
    lower = Region.box((0, 2), (5, 9), (0, 3))
    landed = Region.box((0, 2), (1, 3), (0, 3))
    assert checked.access.needs({0: lower}) == (lower, Region((*landed.spans, span((0, 3)))), landed)


GATHERED: list[Case] = [
    Case("GatherND", [floats(4, 5, 6), _indices(3, 2, below=4)], version=11),
    Case("GatherND", [floats(4, 5, 6), _indices(3, 2, below=4)], {"batch_dims": 0}, version=13),
    Case("GatherND", [floats(4, 5, 6), _indices(4, 1, below=5)], {"batch_dims": 1}, version=12),
    Case("GatherND", [floats(2, 3, 5, 6), _indices(2, 3, 4, 1, below=5)], {"batch_dims": 2}, version=13),
    Case("GatherND", [floats(2, 5, 6, 3), _indices(2, 4, 3, 2, below=5)], {"batch_dims": 1}, version=13),
    Case("GatherND", [floats(4, 5), _indices(2, below=4)], version=13),
    Case("GatherND", [_indices(4, 5, below=9), _indices(6, 3, 1, below=4)], version=13),
    *(Case("TensorScatter", [floats(3, 2, 6, 4), floats(3, 2, 2, 4, seed=1), where], {"mode": mode}, version=24)
      for mode in ("linear", "circular") for where in (None, ints(1, 0, 4))),
    Case("TensorScatter", [floats(3, 6, 2, 4), floats(3, 2, 2, 4, seed=1), ints(1, 0, 4)], {"axis": 1}, version=24),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(GATHERED)), ids=lambda n: f"{GATHERED[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_gathered(number: int, data: st.DataObject) -> None:
    check_any_region(declared(GATHERED[number]), data)


@pytest.mark.parametrize("op_type", sorted(OPERATORS))
@settings(max_examples=2)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    cases = node_cases(op_type)
    assert cases
    for case in cases.values():
        checked = check_whole(case)
        check_law(checked, {0: Region.full(checked.results[0].shape)})
        check_axes(checked, data)
