"""The law for linear models, support vector machines and what gives labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array
from tests.planner.access.law import Case, check_any_region, check_whole, declared, floats

OPERATORS = frozenset(
    {"LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor", "TreeEnsembleClassifier"}
)

TABLE = floats(6, 3)
LABELS: list[dict[str, Any]] = [{"classlabels_ints": [5, 7, 9]}, {"classlabels_strings": ["p", "q", "r"]}]
RBF = {"kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0]}


def _numbers(count: int) -> list[float]:
    return list(map(float, floats(count)))


def _case(op_type: str, table: Array, attributes: dict[str, Any], outputs: int = 1, version: int = 1) -> Case:
    return Case(op_type, [table], attributes, version=version, domain="ai.onnx.ml", outputs=outputs, opset=17)


@settings(max_examples=20)
@given(data=st.data())
def test_linear_regressor(data: st.DataObject) -> None:
    targets = data.draw(st.integers(1, 4), "targets")
    table = data.draw(st.sampled_from([TABLE, TABLE[0], floats(6, 3) > 0]), "table").astype(np.float32)
    after = data.draw(st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC"]), "after")
    attributes: dict[str, Any] = {
        "coefficients": _numbers(3 * targets),
        "targets": targets,
        "post_transform": after,
    }
    if data.draw(st.booleans(), "intercepts"):
        attributes["intercepts"] = _numbers(targets)
    checked = declared(_case("LinearRegressor", table, attributes))
    assert [axis.name for axis in checked.access.axes()] == (
        ["batch"] * (table.ndim == 2) + ["feature"] * (targets > 1 and after == "NONE")
    )
    check_any_region(checked, data)


TREES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_featureids": [0, 0, 0, 2, 0, 0],
    "nodes_values": [0.1, 0.0, 0.0, -0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
    "class_treeids": [0, 0, 1, 1],
    "class_nodeids": [1, 2, 1, 2],
    "class_ids": [0, 1, 2, 1],
    "class_weights": [0.3, 0.6, 0.4, 0.2],
}
FLAT = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
CLASSIFIERS: list[tuple[str, dict[str, Any]]] = [
    ("LinearClassifier", {"coefficients": _numbers(9), "intercepts": _numbers(3), "multi_class": 1}),
    ("LinearClassifier", {"coefficients": _numbers(9), "intercepts": _numbers(3), "post_transform": "SOFTMAX"}),
    ("SVMClassifier", {"coefficients": _numbers(8), "support_vectors": _numbers(12), "vectors_per_class": [1, 2, 1],
                       "rho": _numbers(3), **RBF}),
    ("SVMClassifier", {"coefficients": _numbers(8), "support_vectors": _numbers(12), "vectors_per_class": [1, 2, 1],
                       "rho": _numbers(3), "prob_a": _numbers(3), "prob_b": _numbers(3), **RBF}),
    ("SVMClassifier", {"coefficients": _numbers(9), "rho": _numbers(3), **FLAT}),
    ("TreeEnsembleClassifier", TREES),
    ("TreeEnsembleClassifier", {**TREES, "post_transform": "SOFTMAX", "base_values": [0.1, 0.2, 0.3]}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CLASSIFIERS)), ids=lambda n: f"{CLASSIFIERS[n][0]}-{n}")
@settings(max_examples=8)
@given(data=st.data())
def test_classifiers(number: int, data: st.DataObject) -> None:
    op_type, attributes = CLASSIFIERS[number]
    labels = dict(data.draw(st.sampled_from(LABELS), "labels"))
    if op_type == "TreeEnsembleClassifier" and "classlabels_ints" in labels:
        labels["classlabels_int64s"] = labels.pop("classlabels_ints")
    checked = declared(_case(op_type, TABLE, {**attributes, **labels}, outputs=2))
    (axis,) = checked.access.axes()
    assert (axis.name, axis.extent, axis.places) == ("batch", 6, (0, 0))
    check_any_region(checked, data, tries=5)


@settings(max_examples=4)
@given(data=st.data())
def test_tree_classifier_of_doubles(data: st.DataObject) -> None:
    attributes = {
        name: value for name, value in TREES.items() if name not in ("nodes_values", "class_weights")
    }
    attributes["nodes_values_as_tensor"] = np.asarray(TREES["nodes_values"])
    attributes["class_weights_as_tensor"] = np.asarray(TREES["class_weights"])
    case = _case(
        "TreeEnsembleClassifier",
        TABLE.astype(np.float64),
        {**attributes, "classlabels_int64s": [1, 2, 3]},
        2,
        version=3,
    )
    check_any_region(declared(case), data)


@pytest.mark.parametrize("after", ["NONE", "LOGISTIC"])
@settings(max_examples=6)
@given(data=st.data())
def test_svm_regressor(after: str, data: st.DataObject) -> None:
    # All positive: a sum that nearly cancels is not the same to the last bits in every order.
    sums = {"coefficients": [0.5, 0.7, 0.2, 0.9], "rho": [1.0]}
    machine = {**sums, "support_vectors": _numbers(12), "n_supports": 4}
    table = data.draw(st.sampled_from([TABLE, TABLE[0]]), "table")
    check_any_region(
        declared(_case("SVMRegressor", table, {**machine, **RBF, "post_transform": after})), data
    )


def test_a_single_row_is_no_table() -> None:
    op_type, attributes = CLASSIFIERS[0]
    access = check_whole(_case(op_type, TABLE[0], {**attributes, **LABELS[0]}, outputs=2)).access
    assert access.opaque is not None and "table" in access.opaque
