"""ONNX Runtime's values: types that numpy lacks, strings and sequences."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from edgepart.planner.plans.plan import Piece, Port, Segment
from edgepart.planner.region import Region
from tests.agent import handmade
from tests.agent.execution.runtime.one_segment import ports, prepared_run


def test_bfloat16_goes_in_and_out() -> None:
    made = handmade.segment(
        [helper.make_node("Identity", ["x"], ["y"])], ports("x"), ports("y"), dtype=TensorProto.BFLOAT16
    )
    x = np.array([1, -2, 0.5, 3], ml_dtypes.bfloat16)
    (y,) = prepared_run(made, [x])
    assert y.dtype == x.dtype
    assert y.tolist() == x.tolist()


def test_strings_and_sequences() -> None:
    made = handmade.segment(
        [helper.make_node("Identity", ["x"], ["y"])], ports("x"), ports("y"), dtype=TensorProto.STRING
    )
    (y,) = prepared_run(made, [np.array(["a", "bé", "", "d"], object)])
    assert y.tolist() == ["a", "bé", "", "d"]
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    whole = [Port("y", Piece("y", Region(())))]
    made = Segment("s", model.SerializeToString(), tuple(ports("x")), tuple(whole), (), ("s",), 0, 0, 0)
    (sequence,) = prepared_run(made, [np.arange(4, dtype=np.float32)])
    assert [one.tolist() for one in sequence] == [[0, 1, 2, 3]] * 2
