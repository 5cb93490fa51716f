"""Shapes of what operators of ai.onnx.ml write: as ONNX Runtime makes them."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from edgepart.planner.access import access_of
from edgepart.planner.model.load import load_graph
from tests.planner.access import test_law_estimators as estimators
from tests.planner.access import test_law_features as features
from tests.planner.access import test_law_trees as trees
from tests.planner.access.law import IR_VERSION, Case, check_whole, proto_attributes, value_info


def _machine(labels: int, **more: Any) -> Case:
    """Two support vectors of each class."""
    pairs = labels * (labels - 1) // 2
    given = {
        "coefficients": estimators._numbers((labels - 1) * 2 * labels),
        "support_vectors": estimators._numbers(3 * 2 * labels),
        "vectors_per_class": [2] * labels,
        "rho": estimators._numbers(pairs),
        "classlabels_ints": list(range(labels)),
        **estimators.RBF,
        **{name: estimators._numbers(pairs) for name in more},
    }
    return estimators._case("SVMClassifier", estimators.TABLE, given, outputs=2)


def _labelled(classifier: tuple[str, dict[str, Any]]) -> Case:
    op_type, attributes = classifier
    return estimators._case(
        op_type, estimators.TABLE, {**attributes, "classlabels_strings": ["p", "q", "r"]}, outputs=2
    )


ELSEWHERE = frozenset({"ArrayFeatureExtractor"})
"""Of a single row, ONNX's own inference gives no shape."""

CASES: list[Case] = [
    *(case for case, _ in features.CASES if case.op_type not in ELSEWHERE),
    *map(_labelled, estimators.CLASSIFIERS),
    *(_machine(labels) for labels in (2, 3, 4)),
    *(_machine(labels, prob_a=True, prob_b=True) for labels in (2, 4)),
    estimators._case(
        "LinearRegressor", estimators.TABLE, {"coefficients": estimators._numbers(6), "targets": 2}
    ),
    estimators._case("LinearRegressor", estimators.TABLE[0], {"coefficients": estimators._numbers(3)}),
    estimators._case(
        "SVMRegressor",
        estimators.TABLE,
        {
            "coefficients": [0.5],
            "support_vectors": [0.1, 0.2, 0.3],
            "n_supports": 1,
            "rho": [1.0],
            **estimators.RBF,
        },
    ),
    trees._case({**trees.STUMPS, "n_targets": 2}),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
def test_shapes_are_those_that_are_written(number: int) -> None:
    case = CASES[number]
    names, outputs = [f"in_{n}" for n in range(len(case.inputs))], [f"out_{n}" for n in range(case.outputs)]
    attributes = proto_attributes(case.attributes)
    node = helper.make_node(case.op_type, names, outputs, domain=case.domain, **attributes)
    given = [value_info(name, array) for name, array in zip(names, case.inputs, strict=True)]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    imports = [helper.make_opsetid(case.domain, case.version), helper.make_opsetid("", 17)]
    model = helper.make_model(
        helper.make_graph([node], "it", given, made), opset_imports=imports, ir_version=IR_VERSION
    )
    graph = load_graph(model.SerializeToString())
    assert [graph.shape_of(name) for name in outputs] == [
        result.shape for result in check_whole(case).results
    ]
    assert access_of(graph.operators[0], graph).opaque is None
