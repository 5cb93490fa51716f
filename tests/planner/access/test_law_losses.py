"""The law for losses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Region
from tests.planner.access.law import (
    Case,
    check_any_region,
    check_axes,
    check_law,
    check_whole,
    declared,
    floats,
)
from tests.planner.access.node_cases import node_cases

OPERATORS = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})

CLASSES = 5


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", None])
@pytest.mark.parametrize("op_type", sorted(OPERATORS))
@settings(max_examples=10)
@given(data=st.data())
def test_losses(op_type: str, reduction: str | None, data: st.DataObject) -> None:
    places = data.draw(st.sampled_from([(), (3,), (4, 3), (1, 4, 3)]), "places")
    kind = data.draw(st.sampled_from([np.int32, np.int64]), "kind")
    # Beyond the classes is a label that is ignored; a mean of nothing else is no number.
    ignored = data.draw(st.sampled_from([None, 1, -7]), "ignored")
    labels = np.random.default_rng(3).integers(0, CLASSES, (4, *places)).astype(kind)
    if ignored is not None:
        labels.flat[::3] = ignored
    inputs = [floats(4, CLASSES, *places), labels]
    if data.draw(st.booleans(), "weighted"):
        inputs.append(floats(CLASSES, low=0.1))
    attributes = {"reduction": reduction, "ignore_index": ignored}
    given_ones = {name: value for name, value in attributes.items() if value is not None}
    both = op_type == "SoftmaxCrossEntropyLoss" and reduction == "none" and data.draw(st.booleans(), "both")
    case = Case(op_type, inputs, given_ones, version=data.draw(st.sampled_from([12, 13])), outputs=1 + both)
    checked = declared(case)
    axes = checked.access.axes()
    assert len(axes) == 1 + sum(extent > 1 for extent in places)
    assert {axis.reducer for axis in axes} == {None if reduction == "none" else reduction or "mean"}
    check_any_region(checked, data)


def test_log_probabilities_beside_one_loss() -> None:
    case = Case(
        "SoftmaxCrossEntropyLoss",
        [floats(3, CLASSES), np.arange(3)],
        {"reduction": "sum"},
        version=13,
        outputs=2,
    )
    access = check_whole(case).access
    assert access.opaque is not None and "log-probabilities" in access.opaque


@pytest.mark.parametrize("op_type", sorted(OPERATORS))
@settings(max_examples=1)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    cases = node_cases(op_type)
    assert cases
    for case in cases.values():
        checked = check_whole(case)
        check_law(checked, {n: Region.full(result.shape) for n, result in enumerate(checked.results)})
        check_axes(checked, data)
