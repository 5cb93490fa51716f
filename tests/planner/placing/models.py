"""Small models to place: with two branches, and with an opaque middle."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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


def looped(rows: int = 24, channels: int = 8, steps: int = 3) -> bytes:
    """Convolutions, a Loop over what they made, and convolutions of what it leaves."""
    c, make = channels, helper.make_node
    shape = (1, c, rows, rows)
    body = helper.make_graph(
        [
            make("Mul", ["state", "half"], ["scaled"]),
            make("Tanh", ["scaled"], ["next"]),
            make("Identity", ["going"], ["go"]),
        ],
        "body",
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
    weights = {f"w{n}": random(n, c, 3 if n == 0 else c, 3, 3) for n in range(6)}
    nodes, before = [], "x"
    for n in range(3):
        nodes += _layer(n, before)
        before = f"r{n}"
    nodes.append(make("Loop", ["steps", "true", before], ["looped"], name="loop", body=body))
    before = "looped"
    for n in range(3, 6):
        nodes += _layer(n, before)
        before = f"r{n}"
    nodes.append(make("Identity", [before], ["y"], name="out"))
    known = {**weights, "steps": np.array(steps, np.int64), "true": np.array(True)}
    graph = helper.make_graph(
        nodes,
        "looped",
        [helper.make_tensor_value_info("x", FLOAT, (1, 3, rows, rows))],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in known.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def _layer(number: int, before: str) -> list[onnx.NodeProto]:
    conv = helper.make_node(
        "Conv", [before, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1], name=f"conv{number}"
    )
    return [conv, helper.make_node("Relu", [f"c{number}"], [f"r{number}"], name=f"relu{number}")]
