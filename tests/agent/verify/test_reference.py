"""How far another answer may be: what a model computes in decides, on every processor alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgepart.agent.execution.runtime.loaded_models import load_model
from edgepart.agent.verify.reference import answer_last, make_reference
from edgepart.agent.verify.same_answer import (
    TOLERANCE_FLOAT16,
    TOLERANCE_QUANTISED,
    tolerance_for,
    tolerance_of,
)
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.plan import KeptState, ValueInfo
from edgepart.planner.region import Array

WEIGHTS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def model(*nodes: tuple[str, str, str], weights: Mapping[str, Array], **cast: int) -> ModelProto:
    """x and y are float32; each node is its operator, its inputs and its output; `cast` says to what, by output."""
    made = []
    for op_type, names, output in nodes:
        attributes: dict[str, Any] = {"to": cast[output]} if op_type == "Cast" else {}
        made.append(helper.make_node(op_type, names.split(), [output], **attributes))
    graph = helper.make_graph(
        made,
        "reference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SCALES: Mapping[str, Array] = {"scale": np.asarray(0.01, np.float32), "zero": np.asarray(0, np.int8)}
FLOAT16, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
HALF = {"w": WEIGHTS.astype(np.float16)}

MODELS: Mapping[str, tuple[ModelProto, float | None]] = {
    "float32": (model(("MatMul", "x w", "y"), weights={"w": WEIGHTS}), None),
    "float16 inside": (
        model(
            ("Cast", "x", "h"), ("MatMul", "h w", "m"), ("Cast", "m", "y"), weights=HALF, h=FLOAT16, y=FLOAT
        ),
        TOLERANCE_FLOAT16,
    ),
    "float16 weights": (
        model(("Cast", "w", "f"), ("MatMul", "x f", "y"), weights=HALF, f=FLOAT),
        None,
    ),
    "quantised": (
        model(
            ("QuantizeLinear", "x scale zero", "q"),
            ("DequantizeLinear", "q scale zero", "d"),
            ("MatMul", "d w", "y"),
            weights={"w": WEIGHTS, **SCALES},
        ),
        TOLERANCE_QUANTISED,
    ),
    "quantised and bfloat16": (
        model(
            ("QuantizeLinear", "x scale zero", "q"),
            ("DequantizeLinear", "q scale zero", "d"),
            ("Cast", "d", "b"),
            ("Cast", "b", "y"),
            weights=SCALES,
            b=TensorProto.BFLOAT16,
            y=FLOAT,
        ),
        0.16,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_computes_in_says_what_its_outputs_may_differ_by(name: str) -> None:
    proto, allowed = MODELS[name]
    assert tolerance_for(load_graph(proto.SerializeToString())) == allowed


def test_a_float32_output_that_was_computed_in_float16_is_compared_as_float16() -> None:
    source = MODELS["float16 inside"][0].SerializeToString()
    inputs = {"x": np.ones((2, 4), np.float32)}
    reference = make_reference(source, load_graph(source), inputs)
    right = reference.outputs["y"]
    largest = np.abs(right).max()
    assert reference.differences({"y": right + np.float32(0.9 * TOLERANCE_FLOAT16 * largest)}) == []
    assert reference.differences({"y": right + np.float32(1.1 * TOLERANCE_FLOAT16 * largest)})
    assert tolerance_of(right.dtype) < TOLERANCE_FLOAT16


def test_the_last_of_several_steps_is_answered_with_the_states_of_those_before() -> None:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "past", "now", "sum")
    ]
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["now"], axis=0),
        helper.make_node("ReduceSum", ["now"], ["sum"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "g", ends[:2], ends[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = load_model(model.SerializeToString())
    steps = [{"x": np.array([number], np.float32)} for number in (1, 2, 3, 4, 5)]
    state = KeptState(ValueInfo("past", "float", (3,)), "now", grows=0)
    assert answer_last(session, steps[:1], [state]) == {"sum": 1.0}
    assert answer_last(session, steps, [state]) == {"sum": 2.0 + 3.0 + 4.0 + 5.0}
