"""Networks that iterate over time (LSTM, Loop and Scan), with seeded weights."""

from __future__ import annotations

import math

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from benchmarks.models.builder import Builder

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def lstm_lm(
    words: int = 10000, width: int = 512, hidden: int = 768, tokens: int = 48, layers: int = 2
) -> ModelProto:
    """A language model. Its initial states are made in the model, as exporters make them."""
    b = Builder("lstm_lm", opset=17)
    ids = b.input("input_ids", (1, tokens), INT64)
    batch = b.add("Gather", b.add("Shape", ids), b.constant([0]))
    extents = b.add("Concat", b.constant([1]), batch, b.constant([hidden]), axis=0)
    zeros = b.add("Expand", b.constant([[[0.0]]], np.float32), extents)
    x = b.transpose(b.add("Gather", b.noise((words, width), 1.0), ids), 1, 0, 2)
    ins = width
    for _ in range(layers):
        w, r = (b.noise((1, 4 * hidden, n), math.sqrt(1 / n)) for n in (ins, hidden))
        bias = b.noise((1, 8 * hidden), 0.05)
        y = b.many("LSTM", 3, x, w, r, bias, "", zeros, zeros, hidden_size=hidden)[0]
        x, ins = b.add("Squeeze", y, b.constant([1])), hidden
    b.output(b.linear(b.transpose(x, 1, 0, 2), hidden, words), "logits")
    return b.model()


def loop_decoder(width: int = 256, tokens: int = 32, steps: int = 16) -> ModelProto:
    """A Scan that reads a sequence, then a Loop that writes one while it attends to what was read. Both
    capture weights of the graph around them."""
    b = Builder("loop_decoder")
    x = b.input("features", (1, tokens, width))
    x = b.add("Tanh", b.linear(b.add("Tanh", b.linear(x, width, 4 * width)), 4 * width, width))
    rows = b.reshape(x, tokens, 1, width)
    into, round_ = (b.noise((width, width), math.sqrt(1 / width)) for _ in range(2))
    zero = b.constant(np.zeros((1, width)), np.float32)
    last, read = b.many("Scan", 2, zero, rows, num_scan_inputs=1, body=_reader(width, into, round_))
    keys = b.transpose(b.reshape(read, tokens, width), 1, 0)
    values = b.reshape(read, tokens, width)
    body = _writer(width, keys, values, round_)
    count, go = b.constant(steps), b.constant(True, np.bool_)
    written = b.many("Loop", 2, count, go, last, body=body)[1]
    out = b.linear(b.reshape(written, steps, width), width, 2 * width)
    b.output(b.linear(b.add("Tanh", out), 2 * width, 100), "logits")
    return b.model()


def _value(name: str, shape: tuple[int, ...], kind: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _reader(width: int, into: str, round_: str) -> GraphProto:
    nodes = [
        helper.make_node("MatMul", ["row", into], ["now"]),
        helper.make_node("MatMul", ["state", round_], ["before"]),
        helper.make_node("Add", ["now", "before"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["next"]),
        helper.make_node("Identity", ["next"], ["read"]),
    ]
    row = (1, width)
    return helper.make_graph(
        nodes,
        "reader",
        [_value("state", row), _value("row", row)],
        [_value("next", row), _value("read", row)],
    )


def _writer(width: int, keys: str, values: str, round_: str) -> GraphProto:
    nodes = [
        helper.make_node("MatMul", ["state", keys], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", values], ["seen"]),
        helper.make_node("MatMul", ["state", round_], ["turned"]),
        helper.make_node("Add", ["seen", "turned"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["next"]),
        helper.make_node("Identity", ["next"], ["written"]),
        helper.make_node("Identity", ["going"], ["go"]),
    ]
    row = (1, width)
    given = [_value("step", (), INT64), _value("going", (), BOOL), _value("state", row)]
    return helper.make_graph(
        nodes, "writer", given, [_value("go", (), BOOL), _value("next", row), _value("written", row)]
    )
