"""Small models to place: with two branches, and with an opaque middle."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.region import Array
from tests.planner.small_models import model, random

FLOAT = TensorProto.FLOAT


def branches(rows: int = 24, channels: int = 8) -> bytes:
    """A stem, two branches of convolutions of their own kernels, and what joins them."""
    c, make = channels, helper.make_node
    wide = {"left": 3, "right": 5}
    weights = {"ws": random(0, c, 3, 3, 3), "wj": random(9, c, 2 * c, 1, 1)}
    nodes = [make("Conv", ["x", "ws"], ["s"], pads=[1, 1, 1, 1], name="stem")]
    for side, kernel in wide.items():
        before = "s"
        for n in (1, 2):
            name = f"{side}{n}"
            weights[f"w_{name}"] = random(len(weights), c, c, kernel, kernel)
            nodes.append(
                make("Conv", [before, f"w_{name}"], [f"c_{name}"], pads=[kernel // 2] * 4, name=name)
            )
            nodes.append(make("Relu", [f"c_{name}"], [f"r_{name}"], name=f"{name}_relu"))
            before = f"r_{name}"
    nodes += [
        make("Concat", ["r_left2", "r_right2"], ["both"], axis=1, name="join"),
        make("Conv", ["both", "wj"], ["j"], name="last"),
        make("GlobalAveragePool", ["j"], ["y"], name="pool"),
    ]
    return model(nodes, {"x": (1, 3, rows, rows)}, ["y"], weights)


def forked(rows: int = 24, channels: int = 8, steps: int = 40) -> bytes:
    """Convolutions, two Loops over what they made, and a convolution of what both leave."""
    c = channels
    weights = {"w0": random(0, c, 3, 3, 3), "w1": random(1, c, c, 3, 3), "w2": random(2, c, c, 3, 3)}
    nodes = [*_layer(0, "x"), *_layer(1, "r0")]
    nodes += [_loop(f"loop{n}", "r1", f"looped{n}", c, rows) for n in (0, 1)]
    nodes += [helper.make_node("Add", ["looped0", "looped1"], ["sum"], name="join"), *_layer(2, "sum")]
    nodes.append(helper.make_node("Identity", ["r2"], ["y"], name="out"))
    return _with_loops("forked", nodes, weights, steps, (1, 3, rows, rows), (1, c, rows, rows))


def looped(rows: int = 24, channels: int = 8, steps: int = 3) -> bytes:
    """Convolutions, a Loop over what they made, and convolutions of what it leaves."""
    weights = {f"w{n}": random(n, channels, 3 if n == 0 else channels, 3, 3) for n in range(6)}
    nodes: list[onnx.NodeProto] = []
    for n, before in enumerate(("x", "r0", "r1", "looped", "r3", "r4")):
        if before == "looped":
            nodes.append(_loop("loop", "r2", "looped", channels, rows))
        nodes += _layer(n, before)
    nodes.append(helper.make_node("Identity", ["r5"], ["y"], name="out"))
    return _with_loops("looped", nodes, weights, steps, (1, 3, rows, rows), (1, channels, rows, rows))


def _loop(name: str, before: str, after: str, channels: int, rows: int) -> onnx.NodeProto:
    """What it starts from is scaled and squashed, over and over."""
    shape = (1, channels, rows, rows)
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "half"], ["scaled"]),
            helper.make_node("Tanh", ["scaled"], ["next"]),
            helper.make_node("Identity", ["going"], ["go"]),
        ],
        f"{name}_body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, ()),
            helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("state", FLOAT, shape),
        ],
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("next", FLOAT, shape),
        ],
        [numpy_helper.from_array(np.array(1.5, np.float32), "half")],
    )
    return helper.make_node("Loop", ["steps", "true", before], [after], name=name, body=body)


def _with_loops(
    name: str,
    nodes: list[onnx.NodeProto],
    weights: dict[str, Array],
    steps: int,
    given: tuple[int, ...],
    made: tuple[int, ...],
) -> bytes:
    known = {**weights, "steps": np.array(steps, np.int64), "true": np.array(True)}
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", FLOAT, given)],
        [helper.make_tensor_value_info("y", FLOAT, made)],
        [numpy_helper.from_array(value, key) for key, value in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _layer(number: int, before: str) -> list[onnx.NodeProto]:
    conv = helper.make_node(
        "Conv", [before, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1], name=f"conv{number}"
    )
    return [conv, helper.make_node("Relu", [f"c{number}"], [f"r{number}"], name=f"relu{number}")]
