"""Descriptions in a model's file, and functions that stay operators because they are described."""

# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, helper

from edgepart.agent.verify.reference import run_alone
from edgepart.planner.access import accesses, check_described
from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.described_operators import metadata_of
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.tdl.document import METADATA_KEY
from edgepart.tdl import OperatorDescription, operator
from tests.planner.tdl.functions import (
    DOMAIN,
    call,
    function,
    model,
    noise,
    rows,
    scanned_rows,
)


def kinds(graph: Graph) -> list[str]:
    return [op.op_type for op in graph.operators]


def test_a_function_is_written_out_unless_it_is_described() -> None:
    data = scanned_rows()
    assert kinds(load_graph(data)) == ["Relu", "MatMul", "Scan", "Sigmoid"]
    graph = load_graph(data + metadata_of([rows]))
    assert kinds(graph) == ["Relu", "Rows", "Sigmoid"]
    assert graph.shape_of("s") == (24, 8)
    assert graph.functions.keys() == {(DOMAIN, "Rows"), (DOMAIN, "Product")}
    assert [axis.name for axis in accesses(graph)["rows"].axes()] == ["batch", "channel"]


def test_descriptions_come_with_the_file_or_beside_it() -> None:
    data = scanned_rows()
    inside, beside = load_graph(data + metadata_of([rows])), load_graph(data, operators=[rows])
    assert inside.descriptions == beside.descriptions == {(DOMAIN, "Rows"): (rows,)}
    assert inside.operators == beside.operators and inside.functions == beside.functions


def test_the_last_description_counts_and_each_rank_has_its_own() -> None:
    whole = replace(rows, whole=frozenset({"i"}))
    graph = load_graph(scanned_rows() + metadata_of([rows]) + metadata_of([whole]), operators=[stacked])
    assert graph.descriptions == {(DOMAIN, "Rows"): (whole, stacked)}
    assert [axis.name for axis in accesses(graph)["rows"].axes()] == ["channel"]


@operator(DOMAIN, "Rows")
def stacked(a, b):
    return lambda n, i, j: a[n, i, 0] * b[0, j]


def test_the_file_stays_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(scanned_rows() + metadata_of([rows]))
    (entry,) = onnx.load(path).metadata_props
    assert entry.key == METADATA_KEY
    x = noise(24, 6)
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(scanned_rows())
    np.testing.assert_array_equal(run_alone(path, {"x": x})["out"], run_alone(alone, {"x": x})["out"])


def test_a_large_file_is_read_without_its_weights(tmp_path: Path) -> None:
    nodes = [call("Rows", ["x", "w"], "out")]
    product = function("Rows", ["a", "b"], [helper.make_node("MatMul", ["a", "b"], ["y"])])
    data = model(nodes, [product], [4, 1024], {"w": noise(1024, 1024)})
    path = tmp_path / "large.onnx"
    path.write_bytes(data + metadata_of([rows]))
    assert kinds(load_graph(path)) == ["Rows"]


def test_a_file_with_other_text_in_place_of_descriptions_is_refused() -> None:
    broken = onnx.load_model_from_string(scanned_rows())
    broken.metadata_props.add(key=METADATA_KEY, value="[{}]")
    with pytest.raises(ModelError, match="descriptions of operators"):
        load_graph(broken.SerializeToString())


def test_shapes_that_a_described_function_does_not_take_are_refused() -> None:
    with pytest.raises(ModelError, match="the shapes of its inputs do not fit"):
        load_graph(
            model([call("Rows", ["x", "w"], "out")], _product(), [4, 5], {"w": noise(6, 8)}), operators=[rows]
        )


def test_a_described_function_that_calls_itself_is_refused() -> None:
    loop = function("Rows", ["a", "b"], [call("Rows", ["a", "b"], "y")])
    with pytest.raises(ModelError, match="'Rows' calls itself"):
        load_graph(
            model([call("Rows", ["x", "w"], "out")], [loop], [4, 6], {"w": noise(6, 8)}), operators=[rows]
        )


def _product() -> list[FunctionProto]:
    return [function("Rows", ["a", "b"], [helper.make_node("MatMul", ["a", "b"], ["y"])])]


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (
            replace(rows, op_type="Row"),
            "with functions has no such operator; .* it has Rows of test.functions",
        ),
        (replace(rows, domain="", op_type="MatMul"), "MatMul of ai.onnx is described, and edgepart knows it"),
        (
            stacked,
            "'rows' is not divided: its description does not fit it: output 0 has 2 axes, and 3 indices",
        ),
    ],
)
def test_a_description_of_nothing_in_the_model_is_refused(described: OperatorDescription, said: str) -> None:
    others = [one for one in (rows,) if one.op_type != described.op_type]
    graph = load_graph(scanned_rows(), operators=[described, *others])
    with pytest.raises(UsageError, match=said):
        check_described(graph, [described])


def test_a_description_that_does_not_fit_leaves_the_operator_whole_and_says_why() -> None:
    graph = load_graph(scanned_rows(), operators=[stacked])
    assert "3 indices are described" in (accesses(graph)["rows"].opaque or "")
