"""Activations in int8 become uint8, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.model.load import load_constants, load_graph
from edgepart.planner.model.quantised_activations import make_activations_unsigned
from edgepart.planner.region import Array

FLOAT, INT8 = TensorProto.FLOAT, TensorProto.INT8


def node(op_type: str, names: str, output: str) -> NodeProto:
    return helper.make_node(op_type, names.split(), [output])


def model(
    nodes: Sequence[NodeProto], scale: float = 0.1, zero: int = 5, outputs: str = "y", fed: bool = False
) -> ModelProto:
    """x is a vector of seven; z and z2 are int8 zero points, s is the scale. `fed`: whether z is an input, too."""
    value = helper.make_tensor_value_info
    held: dict[str, Array] = {
        "s": np.asarray(scale, np.float32),
        "z": np.asarray(zero, np.int8),
        "z2": np.asarray(zero, np.int8),
    }
    weights = [numpy_helper.from_array(array, name) for name, array in held.items()]
    given_too = [value("z", INT8, ())] if fed else []
    kinds = {"q": INT8}
    graph = helper.make_graph(
        nodes,
        "activations",
        [value("x", FLOAT, (7,)), *given_too],
        [value(name, kinds.get(name, FLOAT), (7,)) for name in outputs.split()],
        weights,
        value_info=[value("q", INT8, (7,))] if "q" not in outputs.split() else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


PAIR = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z2", "y")]


def run(made: ModelProto, x: Array) -> Array:
    """Operator by operator, as ONNX defines them."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(["y"], {"x": x})
    return np.asarray(y)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=7, max_size=7),
    st.floats(1e-3, 1e3),
    st.integers(-128, 127),
)
def test_the_same_numbers_come_out_to_the_bit(values: list[float], scale: float, zero: int) -> None:
    x = np.asarray(values, np.float32)
    before = run(model(PAIR, scale, zero), x)
    changed = make_activations_unsigned(model(PAIR, scale, zero))
    assert {tensor.name: tensor.data_type for tensor in changed.graph.initializer}[
        "z (uint8)"
    ] == TensorProto.UINT8
    assert run(changed, x).tobytes() == before.tobytes()


def test_the_planner_sees_uint8_and_finds_its_zero_points_again() -> None:
    source = model(PAIR).SerializeToString()
    graph = load_graph(source)
    assert graph.tensors["q"].dtype == "uint8"
    assert int(graph.constants["z2 (uint8)"].load()) == 133
    assert load_constants(source).keys() == graph.constants.keys()


def test_a_name_that_is_taken_is_left_to_whoever_has_it() -> None:
    taken = "z (uint8)"
    behind = [node("DequantizeLinear", "q s z2", taken), helper.make_node("Identity", [taken], ["y"])]
    nodes = [PAIR[0], *behind]
    changed = make_activations_unsigned(model(nodes))
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    assert run(changed, x).tobytes() == run(model(nodes), x).tobytes()


BRANCH = helper.make_graph(
    [node("DequantizeLinear", "q s z", "b")], "branch", [], [helper.make_tensor_value_info("b", FLOAT, (7,))]
)

LEFT = {
    "an output of the model": model(PAIR, outputs="y q"),
    "something else reads it": model([*PAIR, node("Identity", "q", "r")]),
    "nobody dequantises it": model([PAIR[0], node("Identity", "x", "y")]),
    "its zero point can be given": model(PAIR, fed=True),
    "a branch reads it": model(
        [
            *PAIR[:1],
            helper.make_node("ConstantOfShape", ["e"], ["t"]),
            helper.make_node("If", ["t"], ["y"], then_branch=BRANCH, else_branch=BRANCH),
        ]
    ),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_others_can_see_is_left_alone(why: str) -> None:
    before = LEFT[why].SerializeToString()
    assert make_activations_unsigned(LEFT[why]).SerializeToString() == before
