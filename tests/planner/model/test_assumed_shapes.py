"""What free dimensions are taken as: by what an input looks like, the same wherever a name stands, and never silently."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgepart.planner.model.assumed_shapes import likely_shapes, load_with_likely_shapes
from edgepart.planner.model.shapes.free_dimensions import inputs_of

FLOAT, WHOLE = TensorProto.FLOAT, TensorProto.INT64


def model(inputs: dict[str, tuple[int, list[int | str | None]]]) -> onnx.ModelProto:
    """Each input's square, or the same numbers."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    nodes = [helper.make_node("Mul", [name, name], [f"{name}_y"]) for name in inputs]
    outputs = [
        helper.make_tensor_value_info(f"{name}_y", kind, shape) for name, (kind, shape) in inputs.items()
    ]
    graph = helper.make_graph(nodes, "g", values, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        (FLOAT, ["batch", 3, "h", "w"], (1, 3, 224, 224)),
        (FLOAT, [None, None, None, None], (1, 3, 224, 224)),
        (FLOAT, [1, "height", "width", 3], (1, 224, 224, 3)),
        (FLOAT, [1, 3, 48, None], (1, 3, 48, 48)),
        (FLOAT, [3, "height", "width"], (3, 224, 224)),
        (WHOLE, ["batch", "sequence"], (1, 128)),
        (FLOAT, ["batch", "time", 80], (1, 128, 80)),
        (FLOAT, ["batch", 80, "time"], (1, 80, 128)),
        (FLOAT, [1, "samples"], (1, 16_000)),
        (FLOAT, ["batch", 10], None),
        (FLOAT, ["n"], None),
        (FLOAT, [1, 3, 8, 8], None),
    ],
)
def test_a_shape_is_what_the_input_looks_like(
    kind: int, shape: list[int | str | None], expected: tuple[int, ...] | None
) -> None:
    found = likely_shapes(inputs_of(model({"x": (kind, shape)})), {})
    assert found.get("x") == expected


def test_what_is_given_is_kept_and_its_names_hold_elsewhere() -> None:
    inputs = inputs_of(model({"ids": (WHOLE, ["batch", "seq"]), "mask": (WHOLE, ["batch", "past + seq"])}))
    assert likely_shapes(inputs, {}) == {"ids": (1, 128), "mask": (1, 128)}
    assert likely_shapes(inputs, {"ids": (2, 40)}) == {"mask": (2, 40)}


DIMENSIONS = st.lists(st.sampled_from([1, 3, 4, 7, None, "batch", "h", "w", "seq", "a + b"]), max_size=5)


@given(st.lists(st.tuples(st.sampled_from([FLOAT, WHOLE]), DIMENSIONS), min_size=1, max_size=3))
def test_what_is_assumed_fits_and_is_told(inputs: list[tuple[int, list[int | str | None]]]) -> None:
    made = model({f"x{n}": each for n, each in enumerate(inputs)})
    graph, found = load_with_likely_shapes(made.SerializeToString(), {})
    for name in graph.inputs:
        shape = graph.tensors[name].shape
        if name in found:
            assert shape == found[name]
            assert any(name in note and "is assumed" in note for note in graph.notes)
        elif name in graph.free:
            assert any("taken as 1" in note or "--shape" in note for note in graph.notes)
    for (_, declared), name in zip(inputs, graph.inputs, strict=True):
        fixed = graph.tensors[name].shape
        assert fixed is not None
        assert all(
            extent == given for extent, given in zip(fixed, declared, strict=True) if type(given) is int
        )


def test_a_model_that_takes_no_likely_shape_asks_for_one(tmp_path: Path) -> None:
    shape: list[int | str | None] = ["batch", 3, "h", "w"]
    made = model({"x": (FLOAT, shape)})
    made.graph.node.append(helper.make_node("Reshape", ["x_y", "to"], ["z"]))
    made.graph.initializer.append(helper.make_tensor("to", WHOLE, [2], [1, 3]))
    made.graph.output.append(helper.make_tensor_value_info("z", FLOAT, [1, 3]))
    graph, found = load_with_likely_shapes(made.SerializeToString(), {})
    assert not found
    assert graph.tensors["x"].shape == (1, 3, 1, 1)
    assert any("give --shape x=D0,D1,..." in note for note in graph.notes)
