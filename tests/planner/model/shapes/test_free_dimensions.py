"""What a loaded model says of the dimensions that it leaves free, and how they are bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.load import load_graph
from tests.planner.model.test_load import graph_of, load, model_of, node


def value(name: str, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> bytes:
    target = helper.make_tensor("target", TensorProto.INT64, [2], [2, 6])
    graph = helper.make_graph(nodes, "g", inputs, outputs, [target])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def test_names_of_free_dimensions_and_where_there_are_none() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Neg", ["k"], ["l"])]
    inputs = [value("x", ["batch", 3, None, "?"]), value("k", [2, 2]), value("any", None)]
    data = model(nodes, inputs, [value("y", ["batch", 3, "h", 4]), value("l", [2, 2])])
    graph = load_graph(data, shapes={"x": (5, 3, 6, 4)})
    assert graph.free == {"x": ("batch", None, "", ""), "y": ("batch", None, "h", None)}
    assert graph.shape_of("x") == (5, 3, 6, 4)


def test_an_output_without_a_declared_shape_follows_the_inputs() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    free = load_graph(model(nodes, [value("x", ["n", 2])], [value("y", None)]))
    assert free.free == {"x": ("n", None), "y": ("", "")}
    fixed = load_graph(model(nodes, [value("x", [3, 2])], [value("y", None)]))
    assert fixed.free == {}


def test_an_input_that_is_an_output_too() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    graph = load_graph(model(nodes, [value("x", ["n", 2])], [value("y", ["n", 2]), value("x", ["n", 2])]))
    assert graph.free == {"x": ("n", None), "y": ("n", None)}


@pytest.mark.parametrize("rows", [1, 3, 0])
def test_a_reshape_to_another_size_is_named(rows: int) -> None:
    data = model(
        [helper.make_node("Reshape", ["x", "target"], ["y"], name="to_pairs")],
        [value("x", ["n", 6])],
        [value("y", None)],
    )
    assert load_graph(data, shapes={"x": (2, 6)}).shape_of("y") == (2, 6)
    with pytest.raises(ModelError, match=rf"Reshape 'to_pairs'.*\[{rows}, 6\] has {rows * 6} elements.*12"):
        load_graph(data, shapes={"x": (rows, 6)})


def test_a_name_bound_once_binds_everywhere() -> None:
    inputs = [value("x", ("batch", 3)), value("z", ("batch", 1))]
    graph = load(model_of(graph_of([node("Add", "x z", "y")], inputs, ["y"])), z=(4, 1))
    assert graph.shape_of("x") == (4, 3)
    assert graph.notes == ()


def test_free_dimensions_are_taken_as_one_and_said_so() -> None:
    inputs = [value("x", ("batch", 3)), value("z", ("batch", "?")), value("v", (None, "?"))]
    graph = load(model_of(graph_of([node("Sum", "x z v", "y")], inputs, ["y"])), v=(1, 3))
    assert graph.notes == ("input x: batch taken as 1", "input z: dimension 1 taken as 1")
    assert graph.shape_of("y") == (1, 3)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (1,)}, "no input is called 'q'.*'x'"),
        ({"x": (1, 2, 3)}, "has 2 dimensions, and 3 were given"),
        ({"x": (1, 4)}, "dimension 1 cannot be 4: it is 3"),
        ({"x": (-1, 3)}, "cannot be -1: negative"),
        ({"x": (2, 3), "z": (5, 3)}, "dimension 0 cannot be 5: it is 2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    model = model_of(graph_of([node("Add", "x z", "y")], [value("x", ("n", 3)), value("z", ("n", 3))], ["y"]))
    with pytest.raises(UsageError, match=message):
        load(model, **shapes)
