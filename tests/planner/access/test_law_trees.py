"""The law for sums of trees: their rows, and their trees as parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access import access_of
from edgepart.planner.region import Interval, Region
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

OPERATORS = frozenset({"TreeEnsemble", "TreeEnsembleRegressor"})

COUNT = 5
TARGETS = 2


def _stumps() -> dict[str, Any]:
    """Trees of one branch each, listed as TreeEnsembleRegressor wants them; every third tree is one leaf."""
    rng = np.random.default_rng(2)
    listed: dict[str, list[Any]] = {}

    def add(**values: Any) -> None:
        for name, value in values.items():
            listed.setdefault(name, []).append(value)

    for tree in range(COUNT):
        kinds = ["LEAF"] if tree % 3 == 2 else ["BRANCH_LEQ", "LEAF", "LEAF"]
        for node, mode in enumerate(kinds):
            leaf = mode == "LEAF"
            add(nodes_treeids=tree + 10, nodes_nodeids=node, nodes_modes=mode, nodes_featureids=tree % 3)
            add(nodes_values=0.0 if leaf else float(rng.uniform(-1, 1)))
            add(nodes_truenodeids=0 if leaf else 1, nodes_falsenodeids=0 if leaf else 2)
            if leaf:
                add(target_treeids=tree + 10, target_nodeids=node, target_ids=(tree + node) % TARGETS)
                add(target_weights=float(rng.uniform(-1, 1)))
    return listed


STUMPS = _stumps()


def _case(attributes: dict[str, Any], version: int = 1, kind: Any = np.float32) -> Case:
    table = floats(4, 3).astype(kind)
    return Case("TreeEnsembleRegressor", [table], attributes, version=version, domain="ai.onnx.ml", opset=17)


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@settings(max_examples=10)
@given(data=st.data())
def test_regressor(how: str, data: st.DataObject) -> None:
    attributes = {**STUMPS, "n_targets": TARGETS, "aggregate_function": how}
    if data.draw(st.booleans(), "one target"):
        attributes.update(n_targets=1, target_ids=[0] * len(STUMPS["target_ids"]))
        if data.draw(st.booleans(), "base"):
            attributes["base_values"] = [10.0]
    checked = declared(_case(attributes))
    axes = [(axis.name, axis.reducer) for axis in checked.access.axes()]
    ways = {"SUM": [("tree", "sum")], "AVERAGE": [("tree", "mean")]}
    assert axes == [("batch", None), *ways.get(how, [])]
    check_any_region(checked, data)


@settings(max_examples=6)
@given(data=st.data())
def test_regressor_of_doubles(data: st.DataObject) -> None:
    attributes = {
        name: value for name, value in STUMPS.items() if name not in ("nodes_values", "target_weights")
    }
    for name in ("nodes_values", "target_weights"):
        attributes[f"{name}_as_tensor"] = np.asarray(STUMPS[name])
    attributes["base_values_as_tensor"] = np.asarray([10.0])
    attributes["target_ids"] = [0] * len(STUMPS["target_ids"])
    checked = declared(_case({**attributes, "n_targets": 1}, version=3, kind=np.float64))
    assert [axis.name for axis in checked.access.axes()] == ["batch", "tree"]
    check_any_region(checked, data)


def test_a_part_holds_its_own_trees_only() -> None:
    access = declared(_case({**STUMPS, "n_targets": TARGETS})).access
    _, trees = access.axes()
    assert trees.extent == COUNT
    (node,) = access.reduction(trees).part(Interval(1, 3)).localize({0: Region.full((4, TARGETS))})
    assert node.attributes["nodes_treeids"] == [11, 11, 11, 12]
    assert node.attributes["target_treeids"] == [11, 11, 12]
    assert access.reduction(trees).part(Interval(1, 3)).flops({0: Region.full((4, TARGETS))}) < access.flops(
        {0: Region.full((4, TARGETS))}
    )


@pytest.mark.parametrize("changed", [{"post_transform": "LOGISTIC"}, {"base_values": [10.0, 20.0]}])
def test_what_is_not_the_sum_of_its_trees_is_not_parted(changed: dict[str, Any]) -> None:
    access = declared(_case({**STUMPS, "n_targets": TARGETS, **changed})).access
    assert [axis.name for axis in access.axes()] == ["batch"]


def test_lists_of_other_lengths_are_not_parted() -> None:
    checked = declared(_case({**STUMPS, "n_targets": TARGETS}))
    (operator,) = checked.graph.operators
    shorter = {**operator.attributes, "nodes_values": STUMPS["nodes_values"][:-1]}
    access = access_of(replace(operator, attributes=shorter), checked.graph)
    assert [axis.name for axis in access.axes()] == ["batch"]


ENSEMBLE: dict[str, Any] = {
    "n_targets": TARGETS,
    "tree_roots": [0, 2, 4],
    "nodes_featureids": [0, 0, 1, 0, 2],
    "nodes_splits": np.asarray([0.0, 0.5, 0.2, -0.5, 0.1], np.float32),
    "nodes_modes": np.asarray([0, 0, 3, 0, 6], np.uint8),
    "membership_values": np.asarray([0.1, 0.2, np.nan], np.float32),
    "nodes_truenodeids": [1, 0, 3, 4, 0],
    "nodes_trueleafs": [0, 1, 0, 1, 1],
    "nodes_falsenodeids": [2, 1, 2, 5, 3],
    "nodes_falseleafs": [1, 1, 1, 1, 1],
    "leaf_targetids": [0, 1, 0, 1, 0, 1],
    "leaf_weights": np.asarray([1, 2, 4, 8, 16, 32], np.float32),
}


@pytest.mark.parametrize(("how", "reducer"), [(0, "mean"), (1, "sum"), (2, None), (3, None)])
@settings(max_examples=8)
@given(data=st.data())
def test_ensemble(how: int, reducer: str | None, data: st.DataObject) -> None:
    table = floats(6, 3)
    table[::2, 2] = 0.2
    attributes = {**ENSEMBLE, "aggregate_function": how}
    checked = declared(Case("TreeEnsemble", [table], attributes, version=5, domain="ai.onnx.ml", opset=17))
    assert [axis.reducer for axis in checked.access.axes()] == [None, reducer][: 1 + bool(reducer)]
    check_any_region(checked, data)


@settings(max_examples=3)
@given(data=st.data())
def test_cases_of_the_onnx_project(data: st.DataObject) -> None:
    cases = node_cases("TreeEnsemble", "ai.onnx.ml")
    assert len(cases) == 2
    for case in cases.values():
        checked = check_whole(case)
        check_law(checked, {0: Region.full(checked.results[0].shape)})
        check_axes(checked, data)
