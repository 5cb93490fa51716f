"""A plan made by hand for tests: two convolutions split by rows over two devices, and a third that sums their
output.

    a: rows 0:4 of c1 = conv(x), sends its last row to b, takes b's first, rows 0:4 of y = conv(c1)
    b: the same with rows 4:8          c: total = sum(y), put together from both halves
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepart.planner.plans.plan import (
    GATEWAY,
    Piece,
    Plan,
    Port,
    Program,
    Receive,
    Run,
    Segment,
    Send,
    Transfer,
    ValueInfo,
    WeightRef,
)
from edgepart.planner.region import Array, Region

SHAPE = (1, 2, 8, 6)
NODES = {"a": "node-a", "b": "node-b", "c": "node-c"}


def rows(start: int, stop: int) -> Region:
    return Region.full(SHAPE).replace(2, Region.box((start, stop)).spans[0])


def part(tensor: str) -> Callable[[int, int], Piece]:
    return lambda start, stop: Piece(tensor, rows(start, stop))


def weight(name: str) -> Array:
    return np.random.default_rng(len(name)).standard_normal((2, 2, 3, 3)).astype(np.float32)


def read_weight(ref: WeightRef) -> Array:
    return weight(ref.source)


def weight_ref(name: str, array: Array, dtype: str = "float") -> WeightRef:
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return WeightRef(name, digest, name, Region.full(array.shape), dtype, array.shape, array.nbytes)


def external(name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> onnx.TensorProto:
    """An initializer whose bytes are elsewhere."""
    tensor = TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=name)
    return tensor


def segment(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    weights: Sequence[WeightRef] = (),
    *,
    dtype: int = TensorProto.FLOAT,
) -> Segment:
    def info(port: Port) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(port.name, dtype, port.piece.region.shape)

    graph = helper.make_graph(
        list(nodes),
        "segment",
        [info(p) for p in inputs],
        [info(p) for p in outputs],
        [external(w.name, w.shape, TensorProto.DataType.Value(w.dtype.upper())) for w in weights],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    digest = hashlib.sha256(model + "".join(w.digest for w in weights).encode()).hexdigest()
    names = tuple(f"{node.op_type}_{i}" for i, node in enumerate(nodes))
    return Segment(digest, model, tuple(inputs), tuple(outputs), tuple(weights), names, 1e-3, 1e3, 0)


def one_program(made: Segment, device: str = "a") -> Program:
    return Program(device, (Receive(0), Run(0), Send(1)), (made,), 0, 0)


def conv(read: Piece, write: Piece, name: str, pads: tuple[int, int]) -> Segment:
    node = helper.make_node("Conv", ["in", name], ["out"], pads=[pads[0], 1, pads[1], 1])
    return segment([node], [Port("in", read)], [Port("out", write)], [weight_ref(name, weight(name))])


def split_plan() -> Plan:
    x, c1, y = part("x"), part("c1"), part("y")
    total = Piece("total", Region.full((1,)))
    pieces: list[tuple[str, str, Piece]] = [
        (GATEWAY, "a", x(0, 5)),
        (GATEWAY, "b", x(3, 8)),
        ("a", "b", c1(3, 4)),
        ("b", "a", c1(4, 5)),
        ("a", GATEWAY, y(0, 4)),
        ("b", GATEWAY, y(4, 8)),
        ("a", "c", y(0, 4)),
        ("b", "c", y(4, 8)),
        ("c", GATEWAY, total),
    ]
    transfers = tuple(
        Transfer(n, source, target, (piece,), piece.region.size * 4)
        for n, (source, target, piece) in enumerate(pieces)
    )
    summing = segment(
        summing_nodes(),
        [Port("in", y(0, 8))],
        [Port("out", total)],
    )
    halves = {
        "a": ((Receive(0), Run(0), Send(2), Receive(3), Run(1), Send(4), Send(6)), (0, 4)),
        "b": ((Receive(1), Run(0), Send(3), Receive(2), Run(1), Send(5), Send(7)), (4, 8)),
    }
    programs = {}
    for device, (steps, (start, stop)) in halves.items():
        low, high = max(start - 1, 0), min(stop + 1, 8)
        pads = int(start == 0), int(stop == 8)
        first = conv(x(low, high), c1(start, stop), "w1", pads)
        second = conv(c1(low, high), y(start, stop), "w2.", pads)
        programs[device] = Program(device, steps, (first, second), 288, 0)
    programs["c"] = Program("c", (Receive(6), Receive(7), Run(0), Send(8)), (summing,), 0, 0)
    inputs = (ValueInfo("x", "float", SHAPE),)
    outputs = (ValueInfo("y", "float", SHAPE), ValueInfo("total", "float", (1,)))
    return Plan("0" * 64, "by hand", programs, transfers, inputs, outputs)


def summing_nodes() -> list[onnx.NodeProto]:
    return [
        helper.make_node("ReduceSum", ["in"], ["flat"], keepdims=0),
        helper.make_node("Constant", [], ["one"], value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
        helper.make_node("Reshape", ["flat", "one"], ["out"]),
    ]


def request_input(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def expected(x: Array) -> dict[str, Any]:
    """The plan's outputs by numpy alone: a plain twin."""
    y = conv3x3(conv3x3(x, weight("w1")), weight("w2."))
    return {"y": y, "total": y.sum(keepdims=True).reshape(1)}


def conv3x3(x: Array, w: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    result: Array = np.einsum("nchwij,ocij->nohw", windows, w)
    return result
