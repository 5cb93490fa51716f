"""Shapes and types of quantised and packed operators: what the runtime itself gives, case by case of the law's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Array


def _bytes(*shape: int) -> Array:
    return np.zeros(shape, np.uint8)


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


ONE, ZERO = _ones(), _bytes()
POOLED = [ONE, ZERO, ONE, ZERO]
WEIGHTS = [ONE, ZERO, _bytes(8, 4, 3, 2), ONE, ZERO, ONE, ZERO]
CASES: list[tuple[str, Sequence[Array | None], dict[str, Any]]] = [
    ("MatMulNBits", [_ones(2, 3, 64), _bytes(6, 2, 16), _ones(6, 2)], {"N": 6, "K": 64, "block_size": 32, "bits": 4}),
    ("MatMulBnb4", [_ones(3, 64), _bytes(192), _ones(12)], {"N": 6, "K": 64, "block_size": 32, "quant_type": 1}),
    ("MatMulInteger16", [np.ones((2, 3), np.int16), np.ones((3, 4), np.int16)], {}),
    ("TransposeMatMul", [_ones(2, 5, 4), _ones(2, 6, 5)], {"transA": 1, "transB": 1}),
    ("GatherBlockQuantized", [_bytes(10, 16), np.zeros((2, 3), np.int64), _ones(10, 2)], {"block_size": 16}),
    ("QGemm", [_bytes(3, 8), ONE, ZERO, _bytes(8, 6), ONE, ZERO], {}),
    ("QGemm", [_bytes(8, 3), ONE, ZERO, _bytes(8, 6), ONE, ZERO, None, ONE, ZERO], {"transA": 1}),
    ("QLinearConv", [_bytes(1, 5, 6, 4), *WEIGHTS], {"channels_last": 1, "strides": [2, 1]}),
    ("QLinearConv", [_bytes(1, 4, 5, 6), *WEIGHTS], {"auto_pad": "SAME_UPPER"}),
    ("NhwcMaxPool", [_bytes(1, 5, 6, 4)], {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1]}),
    ("QLinearAveragePool", [_bytes(1, 5, 6, 4), *POOLED], {"kernel_shape": [2, 3], "channels_last": 1}),
    ("QLinearAveragePool", [_bytes(1, 4, 5, 6), *POOLED], {"kernel_shape": [2, 3], "ceil_mode": 1, "strides": [2, 2]}),
    ("QLinearGlobalAveragePool", [_bytes(1, 5, 6, 4), *POOLED], {"channels_last": 1}),
    ("QLinearSoftmax", [_bytes(2, 5), *POOLED], {"opset": 13}),
    ("QLinearConcat", [ONE, ZERO, _bytes(2, 3), ONE, ZERO, _bytes(2, 4), ONE, ZERO], {"axis": -1}),
    ("QLinearWhere", [np.ones((3, 1), bool), _bytes(2, 3, 4), ONE, ZERO, _bytes(4), ONE, ZERO, ONE, ZERO], {}),
    ("FusedGemm", [_ones(3, 4), _ones(4, 5)], {"activation": "Relu", "activation_gamma": 0.1}),
]  # fmt: skip


def _model(op_type: str, inputs: Sequence[Array | None], attributes: dict[str, Any]) -> tuple[bytes, Array]:
    """One node that reads input 0 and has the others as weights; and what the input may be."""
    names = ["" if array is None else f"in_{n}" for n, array in enumerate(inputs)]
    node = helper.make_node(op_type, names, ["y"], domain="com.microsoft", **attributes)
    first, *weights = inputs
    assert first is not None
    kind = helper.np_dtype_to_tensor_dtype(first.dtype)
    graph = helper.make_graph(
        [node, helper.make_node("Identity", ["in_0"], ["fed"])],
        "packed",
        [helper.make_tensor_value_info("in_0", kind, first.shape)],
        [onnx.ValueInfoProto(name="y"), helper.make_tensor_value_info("fed", kind, first.shape)],
        [
            numpy_helper.from_array(array, f"in_{n}")
            for n, array in enumerate(weights, 1)
            if array is not None
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString(), first


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_shapes_are_those_that_the_runtime_writes(number: int) -> None:
    model, first = _model(*CASES[number])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    y = session.run(["y"], {session.get_inputs()[0].name: first})[0]
    tensor = load_graph(model).tensors["y"]
    assert tensor.shape == y.shape
    assert tensor.dtype == TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(y.dtype)).lower()


def test_the_mean_of_a_quantised_tensor() -> None:
    """The runtime has no kernel for it without an accelerator."""
    model, _ = _model("QLinearReduceMean", [_bytes(2, 3, 4), *POOLED], {"axes": [-1, 1], "keepdims": 0})
    assert load_graph(model).tensors["y"].shape == (2,)


def test_without_what_a_rule_needs_nothing_is_known() -> None:
    model, _ = _model("MatMulNBits", [_ones(2, 64), _bytes(6, 2, 16), _ones(6, 2)], {"K": 64})
    assert load_graph(model).tensors["y"].shape is None
