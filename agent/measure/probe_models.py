"""Probe models: the small models with which a device is measured, called trials. Facts: probe.py runs them.

Each trial represents the operators to which the planner gives the same family or kind (planner/cost/work.py), at one size.
Trials are short, so that at least the best of several runs is undisturbed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.region import Array

OPSET = 17
MICROSOFT = "com.microsoft"
IR_VERSION = 8
LONG_CHAIN = 33
"""Number of operators in the long one of two chains: the time that it takes beyond a chain of one operator is the fixed
cost of the others."""


@dataclass(frozen=True)
class Trial:
    """One small model, and the amount of work that it does."""

    nodes: tuple[NodeProto, ...]
    """Operators that read "x" and constants, and write "y"."""
    x: tuple[int, ...]
    weights: Mapping[str, Array] = field(default_factory=dict)
    flops: float = 0.0
    nbytes: float = 0.0
    """Bytes read and written; 0 for a trial that mostly computes."""
    border: float = 0.0
    """Bytes that are read and written to bring values into the order of convolutions, and back."""
    dtype: int = TensorProto.FLOAT
    """Element type of "x"."""
    written: int = TensorProto.FLOAT
    """Element type of "y"."""

    @property
    def model(self) -> ModelProto:
        inputs = [helper.make_tensor_value_info("x", self.dtype, self.x)]
        outputs = [helper.make_tensor_value_info("y", self.written, None)]
        constants = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(list(self.nodes), "trial", inputs, outputs, constants)
        imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)

    @property
    def input(self) -> Array:
        """A value for "x". All elements are positive, because logarithms and roots need that."""
        few = np.arange(1, 128, dtype=helper.tensor_dtype_to_np_dtype(self.dtype))
        found: Array = np.resize(few / np.float32(64) if self.dtype == TensorProto.FLOAT else few, self.x)
        return found


def _weight(*shape: int) -> Array:
    """Small numbers, of which no two neighbours are equal."""
    found: Array = np.resize(((np.arange(61) - 30) / 1000).astype(np.float32), shape)
    return found


def _conv(
    read: int, written: int, side: int, kernel: int, *, stride: int = 1, groups: int = 1, times: int = 1
) -> Trial:
    """`times` convolutions in a row, on images of `side` x `side`."""
    weight = _weight(written, read // groups, kernel, kernel)
    names = ["x", *(f"t{n}" for n in range(1, times)), "y"]
    nodes = tuple(
        helper.make_node(
            "Conv", [before, "w"], [behind], group=groups, pads=[kernel // 2] * 4, strides=[stride] * 2
        )
        for before, behind in pairwise(names)
    )
    made = written * (side // stride) ** 2
    flops = 2.0 * weight.size * (side // stride) ** 2 * times
    border = 4.0 * 2 * (read * side * side + made)
    return Trial(nodes, (1, read, side, side), {"w": weight}, flops, border=border)


def _product(rows: int, inner: int, columns: int) -> Trial:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    flops = 2.0 * rows * inner * columns
    return Trial((node,), (rows, inner), {"w": _weight(inner, columns)}, flops)


def _weights(rows: int, columns: int) -> Trial:
    """One row times a matrix, which mostly reads the matrix."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return Trial(
        (node,), (1, rows), {"w": _weight(rows, columns)}, 0.0, 4.0 * (rows * columns + rows + columns)
    )


def _filled_weights(rows: int, columns: int) -> Trial:
    """The same with a matrix that ONNX Runtime fills while it makes the session. A large one in the model's
    bytes is copied again and again on its way there, which takes longer than all other trials together."""
    fill = helper.make_node(
        "ConstantOfShape", ["s"], ["w"], value=numpy_helper.from_array(np.array([0.01], np.float32))
    )
    plain = _weights(rows, 1)
    shape: Array = np.array([rows, columns], np.int64)
    nbytes = 4.0 * (rows * columns + rows + columns)
    return Trial((fill, *plain.nodes), plain.x, {"s": shape}, 0.0, nbytes)


def _movement_trial(
    op_type: str, x: tuple[int, ...], written: int, weights: Mapping[str, Array] | None = None, **how: Any
) -> Trial:
    """An operator that reads `x` and constants and writes `written` elements."""
    held = weights or {}
    node = helper.make_node(op_type, ["x", *held], ["y"], **how)
    nbytes = 4.0 * (math.prod(x) + written) + sum(array.nbytes for array in held.values())
    return Trial((node,), x, held, 0.0, nbytes)


def _plain(op_type: str, elements: int, **how: Any) -> Trial:
    return _movement_trial(op_type, (elements // 256, 256), elements, **how)


def _int8_product(rows: int, inner: int, columns: int) -> Trial:
    weight = (_weight(inner, columns) * 1000).astype(np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    flops = 2.0 * rows * inner * columns
    return Trial(
        (node,), (rows, inner), {"w": weight}, flops, dtype=TensorProto.UINT8, written=TensorProto.INT32
    )


def _int8_conv(channels: int, side: int, kernel: int) -> Trial:
    weight = (_weight(channels, channels, kernel, kernel) * 1000).astype(np.int8)
    one, zero = np.array(0.02, np.float32), np.array(0, np.uint8)
    constants: dict[str, Array] = {"s": one, "z": zero, "w": weight, "v": np.array(0, np.int8)}
    node = helper.make_node(
        "QLinearConv", ["x", "s", "z", "w", "s", "v", "s", "z"], ["y"], pads=[kernel // 2] * 4
    )
    flops = 2.0 * weight.size * side * side
    shape = (1, channels, side, side)
    return Trial((node,), shape, constants, flops, dtype=TensorProto.UINT8, written=TensorProto.UINT8)


def _rounding_trial(elements: int) -> Trial:
    scale: dict[str, Array] = {"s": np.array(0.02, np.float32), "z": np.array(0, np.uint8)}
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    return Trial((node,), (elements,), scale, 0.0, 5.0 * elements + 5, written=TensorProto.UINT8)


def _gather_trial(rows: int, width: int) -> Trial:
    """Pick rows of a table, as an embedding does."""
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    nbytes = 8.0 * rows * width + 8.0 * rows
    return Trial((node,), (rows,), {"w": _weight(1024, width)}, 0.0, nbytes, dtype=TensorProto.INT64)


def _skip_norm(rows: int, width: int) -> Trial:
    """The operator into which ONNX Runtime fuses a sum and the norm after it."""
    constants: dict[str, Array] = {
        "k": _weight(rows, width),
        "s": np.ones(width, np.float32),
        "b": np.zeros(width, np.float32),
    }
    node = helper.make_node("SkipLayerNormalization", ["x", "k", "s", "b"], ["y"], domain=MICROSOFT)
    return Trial((node,), (rows, width), constants, 0.0, 4.0 * (3 * rows * width + 2 * width))


def chain_trial(length: int) -> Trial:
    """`length` operators in a row, each on one element, so that their fixed costs are all that they take."""
    names = ["x", *(f"t{n}" for n in range(1, length)), "y"]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in pairwise(names)]
    return Trial(tuple(nodes), (1,))


FAMILIES: Mapping[str, Trial] = {
    "conv": _conv(64, 64, 28, 3),
    "conv/16": _conv(64, 16, 28, 3),
    "conv/8": _conv(64, 8, 28, 3),
    "stem": _conv(3, 32, 96, 5, stride=2),
    "large": _conv(32, 32, 28, 5),
    "pointwise": _conv(128, 128, 28, 1),
    "pointwise/16": _conv(128, 16, 28, 1),
    "pointwise/8": _conv(128, 8, 28, 1),
    "depthwise": _conv(128, 128, 28, 3, groups=128),
    "grouped": _conv(128, 128, 28, 1, groups=4),
    "gemm": _product(64, 256, 512),
    "gemm/16": _product(16, 256, 512),
    "gemm/4": _product(4, 256, 512),
    "gemm/1": _product(1, 512, 512),
    "columns": _product(64, 512, 64),
    "columns/16": _product(64, 512, 16),
    "columns/8": _product(64, 512, 8),
    "int8": _int8_product(64, 256, 512),
    "int8_conv": _int8_conv(64, 28, 3),
}
"""The trials that measure FLOP/s."""

_MIDDLE = 1 << 17
"""Number of elements in most trials: they fit the second-level cache of many processors, and take long enough to be
measured."""

MOVES: Mapping[str, Trial] = {
    "elementwise/131072": _plain("Neg", 1 << 14),
    "elementwise/2097152": _plain("Neg", 1 << 18),
    "transcendental": _plain("Tanh", _MIDDLE),
    "scalar": _plain("Log", _MIDDLE >> 2),
    "softmax": _plain("Softmax", _MIDDLE, axis=-1),
    "norm": _plain(
        "LayerNormalization", _MIDDLE, weights={"s": np.ones(256, np.float32), "b": np.ones(256, np.float32)}
    ),
    "skip_norm": _skip_norm(64, 256),
    "reduce": _movement_trial("ReduceMean", (512, 256), 512, axes=[1]),
    "lrn": _movement_trial("LRN", (1, 32, 12, 12), 32 * 144, size=5),
    "pool": _movement_trial(
        "MaxPool", (1, 32, 56, 56), 32 * 28 * 28, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    ),
    "transpose": _movement_trial("Transpose", (128, 16, 64), _MIDDLE, perm=[1, 0, 2]),
    "move": _movement_trial("Concat", (64, 1024), _MIDDLE, {"w": _weight(64, 1024)}, axis=1),
    "pick": _gather_trial(256, 256),
    "round": _rounding_trial(_MIDDLE),
    "weights/1048576": _weights(512, 512),
}
"""The trials that measure bytes/s, with `large_moves` if there is enough memory."""


@cache
def large_moves() -> Mapping[str, Trial]:
    """Trials with more data than any cache holds."""
    return {
        "elementwise/67108864": _plain("Neg", 1 << 23),
        "weights/67108864": _filled_weights(4096, 4096),
    }


ONE_CONV, TWO_CONVS = _conv(32, 32, 56, 1), _conv(32, 32, 56, 1, times=2)
"""The time that the first takes beyond the difference of the two is the border: bringing values into the order of
convolutions, and back."""
