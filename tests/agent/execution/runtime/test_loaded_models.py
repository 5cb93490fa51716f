"""Loaded models: what the inputs are at fault for."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.planner.errors import RequestError
from edgepart.planner.plans.plan import Segment
from tests.agent import handmade
from tests.agent.execution.runtime.one_segment import ports


def test_what_the_inputs_are_at_fault_for_is_a_request_error() -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [helper.make_tensor("table", TensorProto.FLOAT, [3], [5.0, 6.0, 7.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = Segment(
        "g", model.SerializeToString(), tuple(ports("x")), tuple(ports("y")), (), ("look up",), 0, 0, 0
    )
    prepared = Sessions(1, handmade.read_weight).prepare(handmade.one_program(made))
    with pytest.raises(RequestError, match=r"look up.*indices element out of data bounds"):
        prepared.run(0, [np.array([0, 1, 2, 9])])
    assert prepared.run(0, [np.array([0, 1, 2, 0])])[0].tolist() == [5, 6, 7, 5]
