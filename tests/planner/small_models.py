"""Small hand-made models with seeded weights, for tests of layers and strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.region import Array


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Sequence[str],
    weights: Mapping[str, Array],
) -> bytes:
    """Serialized, opset 13, with ONNX Runtime's own operators."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def random(seed: int, *shape: int) -> Array:
    """He-normal float32."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    made: Array = (drawn * np.sqrt(2 / max(1, int(np.prod(shape[1:]))))).astype(np.float32)
    return made


def convolution(
    size: int, kernel: int, stride: int = 1, dilation: int = 1, pads: tuple[int, int] = (0, 0)
) -> bytes:
    """One Conv over `size` rows, one column, two channels."""
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        name="conv",
        strides=[stride, 1],
        dilations=[dilation, 1],
        pads=[pads[0], 0, pads[1], 0],
    )
    return model([node], {"x": (1, 2, size, 1)}, ["y"], {"w": random(0, 2, 2, kernel, 1)})


def residual(rows: int = 24, channels: int = 8) -> bytes:
    """Conv, BatchNormalization and Relu, a residual block, pooling, two dense layers, Softmax."""
    c, make = channels, helper.make_node
    weights = {
        "w1": random(1, c, 3, 3, 3), "w2": random(2, c, c, 3, 3), "w3": random(3, c, c, 3, 3),
        "scale": 1 + 0.1 * random(4, c), "bias": 0.1 * random(5, c), "mean": 0.1 * random(6, c),
        "var": np.abs(1 + 0.1 * random(7, c)), "f1": random(8, c * 4, c * rows * rows // 4),
        "f2": random(9, 10, c * 4), "b2": random(10, 10),
    }  # fmt: skip
    nodes = [
        make("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1], name="conv1"),
        make("BatchNormalization", ["c1", "scale", "bias", "mean", "var"], ["n1"], name="norm1"),
        make("Relu", ["n1"], ["r1"], name="relu1"),
        make("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], name="conv2"),
        make("Relu", ["c2"], ["r2"], name="relu2"),
        make("Conv", ["r2", "w3"], ["c3"], pads=[1, 1, 1, 1], name="conv3"),
        make("Add", ["c3", "r1"], ["a3"], name="add3"),
        make("Relu", ["a3"], ["r3"], name="relu3"),
        make("MaxPool", ["r3"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        make("Flatten", ["p"], ["f"], name="flatten"),
        make("Gemm", ["f", "f1"], ["g1"], transB=1, name="dense1"),
        make("Relu", ["g1"], ["d1"], name="relu4"),
        make("Gemm", ["d1", "f2", "b2"], ["g2"], transB=1, name="dense2"),
        make("Softmax", ["g2"], ["y"], name="softmax"),
    ]
    return model(
        nodes, {"x": (1, 3, rows, rows)}, ["y"], {k: v.astype(np.float32) for k, v in weights.items()}
    )


def batched(batch: int) -> bytes:
    """Convolution, pooling, two dense layers, over `batch` images."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        make("GlobalAveragePool", ["c"], ["p"], name="pool"),
        make("Flatten", ["p"], ["f"], name="flatten"),
        make("Gemm", ["f", "w1"], ["g"], name="dense1", transB=1),
        make("Gemm", ["g", "w2"], ["y"], name="dense2", transB=1),
    ]
    made = {"w": random(0, 8, 3, 3, 3), "w1": random(1, 16, 8), "w2": random(2, 6, 16)}
    return model(nodes, {"x": (batch, 3, 12, 12)}, ["y"], made)


def quantised() -> bytes:
    """Two quantise/dequantise groups around convolutions; a Relu inside the first.

    Weights of seven bits: with eight, x86 kernels without VNNI saturate on the way, and how depends on the
    number of channels. The weights' scale is no round number: sums then do not lie halfway between two steps."""
    make = helper.make_node
    weights: dict[str, Array] = {
        "s": np.array(0.05, np.float32), "z": np.array(128, np.uint8), "ws": np.array(0.0213137, np.float32),
        "wz": np.array(0, np.int8),
        "w1": np.random.default_rng(1).integers(-60, 60, (4, 3, 3, 3)).astype(np.int8),
        "w2": np.random.default_rng(2).integers(-60, 60, (4, 4, 3, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q0"], name="q0"),
        make("DequantizeLinear", ["q0", "s", "z"], ["d0"], name="d0"),
        make("DequantizeLinear", ["w1", "ws", "wz"], ["v1"], name="v1"),
        make("Conv", ["d0", "v1"], ["c1"], pads=[1, 1, 1, 1], name="conv1"),
        make("Relu", ["c1"], ["r1"], name="relu1"),
        make("QuantizeLinear", ["r1", "s", "z"], ["q1"], name="q1"),
        make("DequantizeLinear", ["q1", "s", "z"], ["d1"], name="d1"),
        make("DequantizeLinear", ["w2", "ws", "wz"], ["v2"], name="v2"),
        make("Conv", ["d1", "v2"], ["c2"], pads=[1, 1, 1, 1], name="conv2"),
        make("QuantizeLinear", ["c2", "s", "z"], ["q2"], name="q2"),
        make("DequantizeLinear", ["q2", "s", "z"], ["y"], name="d2"),
    ]
    return model(nodes, {"x": (1, 3, 16, 16)}, ["y"], weights)
