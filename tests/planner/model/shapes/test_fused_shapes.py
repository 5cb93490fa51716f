"""Shapes of matrix products that ONNX Runtime's optimiser has fused transpositions into: what the runtime itself gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edgepart.planner.model.load import load_graph


def stored(shape: tuple[int, ...], transposed: int, batch: int) -> tuple[int, ...]:
    """The shape of an input that stands for a matrix of `shape`."""
    held = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    return (held[-2], *held[:-2], held[-1]) if batch else held


@pytest.mark.parametrize("turns", range(16))
def test_a_fused_product_of_turned_inputs(turns: int) -> None:
    a, b, batch_a, batch_b = ((turns >> bit) & 1 for bit in range(4))
    shapes = {"a": stored((2, 3, 4, 5), a, batch_a), "b": stored((2, 3, 5, 6), b, batch_b)}
    node = helper.make_node(
        "FusedMatMul",
        ["a", "b"],
        ["y"],
        domain="com.microsoft",
        transA=a,
        transB=b,
        transBatchA=batch_a,
        transBatchB=batch_b,
    )
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([node], "fused", given, [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    assert load_graph(model).shape_of("y") == y.shape == (2, 3, 4, 6)
