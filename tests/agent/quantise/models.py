"""Small models whose weights can be quantised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.region import Array

SIDE = 128
"""The rows and columns of a matrix that is just large enough."""


def matrix(rows: int = SIDE, columns: int = SIDE, seed: int = 0, dtype: type = np.float32) -> Array:
    drawn: Array = np.random.default_rng(seed).standard_normal((rows, columns)) / np.sqrt(rows)
    return drawn.astype(dtype)


def model_of(
    nodes: list[NodeProto], weights: dict[str, Array], *, dtype: int = TensorProto.FLOAT, opset: int = 18
) -> ModelProto:
    """A model with the inputs `x` [n, SIDE] and `ids` [n], where they are read, and the output `y`."""
    read = {name for node in nodes for name in node.input}
    inputs = [helper.make_tensor_value_info("x", dtype, ["n", SIDE])] if "x" in read else []
    if "ids" in read:
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]))
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def mixed() -> ModelProto:
    """A table, a product, a Gemm with a bias, and a last product with the table's own numbers."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["h2"]),
        helper.make_node("Gemm", ["h2", "w2", "b"], ["h3"], transB=1),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["h3", "turned"], ["y"]),
    ]
    weights = {"table": matrix(200), "w1": matrix(seed=1), "w2": matrix(seed=2), "b": matrix(1, SIDE, 3)[0]}
    return model_of(nodes, weights)


def saved(model: ModelProto, path: Path, *, external: bool = False) -> Path:
    onnx.save_model(
        model,
        path,
        save_as_external_data=external,
        location=f"{path.name}.weights" if external else None,
        size_threshold=0,
    )
    return path
