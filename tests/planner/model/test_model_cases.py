"""Loading over ONNX's own test cases: each operator of each version, with its shapes, none refused, none wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx.backend.test.case.node import collect_testcases

from edgepart.planner.model.load import load_graph


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if case.model is not None]


def known(cases: list[Any]) -> Iterator[tuple[str, tuple[int, ...] | None, tuple[int, ...]]]:
    """Name, the shape that loading found, and the true one, of every output that is an array."""
    for case in cases:
        model = ModelProto()
        model.CopyFrom(case.model)  # the cases are shared with every other test of this process
        for output in model.graph.output:
            output.ClearField("type")  # nothing to copy from
        graph = load_graph(model.SerializeToString())
        results = case.data_sets[0][1] if case.data_sets and not graph.notes else []
        for output, result in zip(model.graph.output, results, strict=False):
            if isinstance(result, np.ndarray):
                yield case.name, graph.shape_of(output.name), result.shape


def test_every_operator_of_onnx_loads_with_the_right_shapes(cases: list[Any]) -> None:
    found = list(known(cases))
    assert len(found) > 1500
    wrong = [(name, shape, true) for name, shape, true in found if shape is not None and shape != true]
    assert wrong == []
    assert sum(shape is not None for _, shape, _ in found) > 0.8 * len(
        found
    )  # axes, sizes may be inputs there
