"""The networks of Tofu's table of search times: WResNet-152 and RNN-10, as graphs for planning.

Nobody holds 22 GB of weights to ask how a model would be divided: all weights are external data in one file without
contents, of which the file system stores nothing. The models can be planned, and not be run. The graphs are those of
inference; the paper's have the backward operators too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, helper

WEIGHTS = "weights"
ITEM_BYTES = 4


class HollowBuilder:
    """A graph under construction. Each method adds nodes and returns the name of their output."""

    def __init__(self, name: str, input_shape: Sequence[int]) -> None:
        self.name = name
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        name = f"{op_type}_{len(self.nodes)}"
        made = [f"{name}.{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name, **attributes))
        return made

    def one(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.add(op_type, *inputs, **attributes)[0]

    def weight(self, *shape: int) -> str:
        """A weight without contents."""
        tensor = TensorProto(name=f"w{len(self.weights)}", data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS), ("offset", "0"), ("length", str(prod(shape) * ITEM_BYTES))):
            tensor.external_data.add(key=key, value=value)
        self.weights.append(tensor)
        return tensor.name

    def save(self, output: str, folder: Path) -> Path:
        """Writes the model, with the one output, and its weights file."""
        out = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, self.name, [self.input], [out], self.weights)
        path = folder / f"{self.name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        with (folder / WEIGHTS).open("wb") as file:
            file.truncate(max(prod(weight.dims) for weight in self.weights) * ITEM_BYTES)
        return path


def wide_resnet(
    folder: Path,
    widening: int = 10,
    batch: int = 8,
    blocks: tuple[int, ...] = (3, 8, 36, 3),
    side: int = 224,
) -> Path:
    """ResNet-152 (He et al. 2016) with all channels times `widening`; batch normalisations are folded, as exporters do."""
    b = HollowBuilder("wresnet", (batch, 3, side, side))

    def conv(x: str, ins: int, outs: int, kernel: int, stride: int = 1) -> str:
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return b.one("Conv", x, b.weight(outs, ins, kernel, kernel), b.weight(outs), **attributes)

    ins = 64 * widening
    x = b.one("Relu", conv("x", 3, ins, 7, 2))
    x = b.one("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage, count in enumerate(blocks):
        inner = (64 << stage) * widening
        for number in range(count):
            stride = 2 if stage and not number else 1
            y = b.one("Relu", conv(x, ins, inner, 1))
            y = b.one("Relu", conv(y, inner, inner, 3, stride))
            y = conv(y, inner, inner * 4, 1)
            x = x if number else conv(x, ins, inner * 4, 1, stride)
            x, ins = b.one("Relu", b.one("Add", y, x)), inner * 4
    pooled = b.one("Flatten", b.one("GlobalAveragePool", x), axis=1)
    return b.save(b.one("Gemm", pooled, b.weight(1000, ins), b.weight(1000), transB=1), folder)


def rnn(folder: Path, layers: int = 10, hidden: int = 8192, steps: int = 20, batch: int = 512) -> Path:
    """LSTM cells in `layers` layers, written out for `steps` steps. All inputs come as one tensor, [steps, batch, hidden];
    the output is what the last layer makes of the last step."""
    b = HollowBuilder("rnn", (steps, batch, hidden))
    rows = b.add("Split", "x", outputs=steps, axis=0)
    sequence = [b.one("Flatten", row, axis=2) for row in rows]
    for _ in range(layers):
        into, again, bias = b.weight(hidden, 4 * hidden), b.weight(hidden, 4 * hidden), b.weight(4 * hidden)
        state = cell = ""
        for step, x in enumerate(sequence):
            gates = b.one("Add", b.one("MatMul", x, into), bias)
            if state:
                gates = b.one("Add", gates, b.one("MatMul", state, again))
            taken, kept, shown, new = b.add("Split", gates, outputs=4, axis=1)
            new = b.one("Mul", b.one("Sigmoid", taken), b.one("Tanh", new))
            cell = b.one("Add", new, b.one("Mul", b.one("Sigmoid", kept), cell)) if cell else new
            state = sequence[step] = b.one("Mul", b.one("Sigmoid", shown), b.one("Tanh", cell))
    return b.save(state, folder)
