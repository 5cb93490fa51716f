"""The work of operators that read only a part of an input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgepart.planner.cost.cost import Cost, Work
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.layers.coarsen import coarsen
from edgepart.planner.model.load import load_graph

ROWS, HEADS, WIDTH = 3, 2, 16
MICROSOFT = "com.microsoft"


def rotated(positions: int, domain: str) -> ModelProto:
    """A rotary embedding of ROWS rows, whose tables have `positions` rows."""
    table = np.ones((positions, WIDTH // 2), np.float32)
    inputs = ["x", "at", "cos", "sin"] if domain else ["x", "cos", "sin", "at"]
    node = helper.make_node("RotaryEmbedding", inputs, ["y"], domain=domain, name="rotate")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, HEADS, ROWS, WIDTH])
    at = helper.make_tensor_value_info("at", TensorProto.INT64, [1, ROWS])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, HEADS, ROWS, WIDTH])
    held = [numpy_helper.from_array(table, "cos"), numpy_helper.from_array(table, "sin")]
    graph = helper.make_graph([node], "g", [x, at], [y], held)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def work(model: ModelProto) -> Work:
    graph = load_graph(model.SerializeToString())
    (op,) = graph.operators
    access: Any = coarsen(graph).declared[op.name]
    return Cost(Cluster(()), graph).work(op, access, {0: graph.region_of("y")})


@pytest.mark.parametrize("domain", ["", MICROSOFT])
def test_a_longer_table_of_angles_is_no_more_work(domain: str) -> None:
    """SmolLM2's tables of 8,192 positions made attention seem to take a quarter of a token's time."""
    short, long = work(rotated(64, domain)), work(rotated(8192, domain))
    assert long == short
    moved = 4 * (2 * HEADS * ROWS * WIDTH + 2 * HEADS * ROWS * WIDTH // 2) + 8 * ROWS
    assert long.nbytes == pytest.approx(moved)


def test_a_table_shorter_than_the_rows_is_read_once() -> None:
    short = work(rotated(2, MICROSOFT))
    assert short.nbytes == 4 * (2 * HEADS * ROWS * WIDTH + 2 * 2 * WIDTH // 2) + 8 * ROWS
