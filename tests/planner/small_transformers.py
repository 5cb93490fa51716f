"""Small hand-made models with attention, dense pairs and shuffled channels, with seeded weights."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from edgepart.planner.region import Array
from tests.planner.small_models import model, random

make = helper.make_node


def mlp(rows: int = 6, width: int = 12, hidden: int = 20) -> bytes:
    """Two dense layers with an activation between, and a residual addition."""
    weights = {"w1": random(1, width, hidden), "b1": random(2, hidden), "w2": random(3, hidden, width)}
    nodes = [
        make("MatMul", ["x", "w1"], ["h"], "up"),
        make("Add", ["h", "b1"], ["hb"], "bias"),
        make("Relu", ["hb"], ["a"], "relu"),
        make("MatMul", ["a", "w2"], ["d"], "down"),
        make("Add", ["d", "x"], ["y"], "residual"),
    ]
    return model(nodes, {"x": (1, rows, width)}, ["y"], weights)


def attention(rows: int = 8, heads: int = 4, size: int = 6) -> bytes:
    """Self-attention of `heads` heads, an output projection, a residual addition, a normalisation and dense layers."""
    width = heads * size
    weights: dict[str, Array] = {f"w{n}": random(ord(n), width, width) for n in "qkvo"}
    weights |= {"up": random(5, width, 2 * width), "down": random(6, 2 * width, width)}
    weights |= {"split": np.array([0, rows, heads, size]), "merge": np.array([0, rows, width])}
    weights |= {"scale": np.array(size**-0.5, np.float32)}
    nodes: list[NodeProto] = []
    for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            make("MatMul", ["x", f"w{n}"], [f"{n}0"], f"{n}_projection"),
            make("Reshape", [f"{n}0", "split"], [f"{n}1"], f"{n}_heads"),
            make("Transpose", [f"{n}1"], [n], f"{n}_first", perm=perm),
        ]
    nodes += [
        make("MatMul", ["q", "k"], ["scores"], "scores"),
        make("Mul", ["scores", "scale"], ["scaled"], "scaled"),
        make("Softmax", ["scaled"], ["weights"], "softmax", axis=-1),
        make("MatMul", ["weights", "v"], ["mixed"], "mixed"),
        make("Transpose", ["mixed"], ["rows_first"], "rows_first", perm=[0, 2, 1, 3]),
        make("Reshape", ["rows_first", "merge"], ["merged"], "merged"),
        make("MatMul", ["merged", "wo"], ["o"], "output_projection"),
        make("Add", ["o", "x"], ["r"], "residual"),
        make("MatMul", ["r", "up"], ["u"], "up"),
        make("Relu", ["u"], ["a"], "relu"),
        make("MatMul", ["a", "down"], ["d"], "down"),
        make("Add", ["d", "r"], ["y"], "second_residual"),
    ]
    return model(nodes, {"x": (1, rows, width)}, ["y"], weights)


def shuffled(rows: int = 6, channels: int = 12, groups: int = 3) -> bytes:
    """A grouped convolution, a channel shuffle (Reshape, Transpose, Reshape), a depthwise one, a Concat and a pool."""
    each = channels // groups
    weights = {
        "w1": random(1, channels, each, 1, 1),
        "w2": random(2, channels, 1, 3, 3),
        "w3": random(3, channels, channels, 1, 1),
        "apart": np.array([0, groups, each, rows, rows]),
        "together": np.array([0, channels, rows, rows]),
    }
    nodes = [
        make("Conv", ["x", "w1"], ["a"], "grouped", group=groups),
        make("Reshape", ["a", "apart"], ["b"], "apart"),
        make("Transpose", ["b"], ["c"], "swap", perm=[0, 2, 1, 3, 4]),
        make("Reshape", ["c", "together"], ["s"], "together"),
        make("Conv", ["s", "w2"], ["d"], "depthwise", group=channels, pads=[1, 1, 1, 1]),
        make("Relu", ["d"], ["e"], "relu"),
        make("Concat", ["e", "x"], ["f"], "concat", axis=1),
        make("Relu", ["f"], ["g"], "after_concat"),
        make("GlobalAveragePool", ["g"], ["y"], "pool"),
    ]
    del weights["w3"]
    return model(nodes, {"x": (1, channels, rows, rows)}, ["y"], weights)
