"""Work: what one operator computes and moves to write one region, and the rate at which a device does that.

Takes an operator with the regions that it reads and writes; gives floating-point operations and bytes, and on a device
seconds. It is the lowest level of the costs: operator_cost.py builds on it. Data and pure rules.

What ONNX Runtime's CPU provider does with an operator is data here: which ones it computes in the same pass as the one
before, which of them cost more than the bytes that they move, and what only looks at a part of an input.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.rates import STREAM, WEIGHTS
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
"""The runtime gives these the buffer of their input: no bytes move."""

FUSED_BEHIND: Mapping[str, frozenset[str]] = {
    "Conv": frozenset(
        {"BatchNormalization", "Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "Tanh", "Add", "Sum"}
    ),
    "Gemm": frozenset({"Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "Tanh", "Elu"}),
    "MatMul": frozenset({"Add"}),
    "ConvTranspose": frozenset({"BatchNormalization"}),
    "BatchNormalization": frozenset({"Relu"}),
}
"""By operator, what ONNX Runtime's CPU provider computes in the same pass when it is the only reader."""

CONVOLUTIONS = frozenset({"conv", "pointwise"})
"""Families whose rate depends on how many channels they write."""

PRODUCTS = frozenset(
    {
        "MatMul",
        "Gemm",
        "FusedMatMul",
        "FusedGemm",
        "TransposeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "QLinearMatMul",
        "QGemm",
    }
)
"""Their rate depends on how many rows and columns they write."""

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
"""One product after the other, each with as many rows as the batch."""

INT8 = frozenset(
    {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm", "QAttention"}
)
INT8_CONVOLUTIONS = frozenset({"QLinearConv", "ConvInteger"})
QUANTISED = {"Conv": "int8_conv", "MatMul": "int8", "Gemm": "int8"}
"""Between a DequantizeLinear and a QuantizeLinear the runtime computes these with bytes."""

FEW_CHANNELS = 4
"""A convolution that reads no more is a stem: it looks at a picture, not at features."""
WIDE_KERNEL = 9
"""Elements of a window; a larger one is of the family "large"."""
FEW_ROWS = 4
"""A product with fewer waits for its weights, and computes meanwhile."""

TRANSCENDENTAL = frozenset(
    {
        *("Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "Silu"),
        *("HardSwish", "Mish", "Swish"),
    }
)
"""Computed by vector instructions: about four times as long as moving the bytes takes."""

SCALAR = frozenset(
    {
        *(
            "Log",
            "Pow",
            "Elu",
            "Selu",
            "Celu",
            "Softplus",
            "Sin",
            "Cos",
            "Tan",
            "Asin",
            "Acos",
            "Atan",
            "Sinh",
        ),
        *("Cosh", "Asinh", "Acosh", "Atanh", "Mod"),
    }
)
"""Computed one element after the other by the mathematical library."""

SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Hardmax", "QLinearSoftmax"})
NORMS = frozenset(
    {
        *("LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "RMSNormalization"),
        *("SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", "InstanceNormalization"),
        *("GroupNormalization", "GroupNorm"),
    }
)
SKIP_NORMS = frozenset(
    {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"}
)
"""Norms with a sum before them, which the runtime makes of the two operators as well."""
ROUNDING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
PICKING = frozenset({"Gather", "GatherElements", "GatherND", "EmbedLayerNormalization"})
"""Read as much of their first input as they write, whatever its size."""

EXPONENTS = ("2", "3", "0.5", "1")
"""Constant exponents that the runtime computes by multiplying."""


class Work(NamedTuple):
    """What one operator does to write one region. A tuple, as one is made for each region that a search looks at."""

    flops: float
    nbytes: float
    """Read and written, weights included."""
    family: str
    size: float = 0.0
    """Channels or rows written, where the rate depends on them; 0 is plenty."""
    columns: float = 0.0
    """Columns written, where the rate depends on them; 0 is plenty."""
    weights: float = 0.0
    """Bytes of constants read: they come from memory for each request, after all others."""
    kind: str = ""
    """The kind of an operator that mostly moves data; "" for one that computes."""
    kernels: int = 0
    """Calls that the runtime makes for it."""

    def seconds_on(self, device: Device) -> float:
        """Seconds that it takes there, calls of the runtime included."""
        return self._compute_s(device) + self.kernels * device.kernel_s

    def _compute_s(self, device: Device) -> float:
        rates = device.rates
        moved = rates.bytes_per_s(self.kind, self.nbytes) if self.kind else None
        if moved is not None:
            return self.nbytes / moved
        computed = self.flops / rates.flops(self.family, self.size, self.columns)
        if not rates.moves:
            return max(computed, self.nbytes / device.memory_bytes_per_s)
        if 0 < self.size < FEW_ROWS and self.columns:
            return max(
                computed, self.nbytes / (rates.bytes_per_s(WEIGHTS, self.nbytes) or device.memory_bytes_per_s)
            )
        values = self.nbytes - self.weights
        stream = rates.bytes_per_s(STREAM, values) or device.memory_bytes_per_s
        return computed + self.weights / rates.weights_per_s + values / stream


NO_WORK = Work(0.0, 0.0, "move")


def work_of(
    graph: Graph,
    op: Operator,
    family: str,
    flops: float,
    reads: Sequence[tuple[str, Region, float]],
    writes: Sequence[tuple[Region, float]],
) -> Work:
    """The work of `op`. `reads` has name, region and bytes of each input; `writes` region and bytes of each output;
    `flops` are its floating-point operations."""
    kind = kind_of(graph, op, family)
    if kind == "round" and _inside_group(graph, op):
        return NO_WORK
    written = sum([nbytes for _, nbytes in writes])
    if op.op_type in PICKING and reads:
        nbytes = 2 * written + sum([size for _, _, size in reads[1:]])
    else:
        nbytes = written + sum([size for _, _, size in reads])
    if kind:
        return Work(flops, nbytes, family, kind=kind, kernels=1)
    weights = sum([size for name, _, size in reads if name in graph.constants])
    second = (
        next((region for name, region, _ in reads if name == op.inputs[1]), None) if op.inputs[1:] else None
    )
    operand = second.shape if second is not None else ()
    exact = _family(graph, op, family, operand)
    size, columns = _extents(op, family, operand, writes[0][0].shape) if writes else (0, 0)
    return Work(flops, nbytes, exact, size, columns, weights, kernels=1)


def describe_surroundings(graph: Graph, op: Operator, family: str) -> Hashable:
    """All that `work_of` learns from the operators around `op`: operators that are the same but for names, with equal
    surroundings, do the same work."""
    quantised = op.op_type in QUANTISED and _between_bytes(graph, op)
    return kind_of(graph, op, family), quantised, op.op_type in ROUNDING and _inside_group(graph, op)


def kind_of(graph: Graph, op: Operator, family: str) -> str:
    """What an operator that mostly moves data is measured as; "" for one that computes."""
    if op.op_type in ROUNDING:
        return "round"
    if op.op_type == "LRN":
        return "lrn"
    if op.op_type in SCALAR and not _multiplies(graph, op):
        return "scalar"
    if op.op_type in TRANSCENDENTAL:
        return "transcendental"
    if op.op_type in SOFTMAX:
        return "softmax"
    if op.op_type in NORMS:
        return "skip_norm" if op.op_type in SKIP_NORMS or _adds_first(graph, op) else "norm"
    if family == "move":
        return "transpose" if op.op_type == "Transpose" else "pick" if op.op_type in PICKING else "move"
    return family if family in ("elementwise", "reduce", "pool") else ""


def _multiplies(graph: Graph, op: Operator) -> bool:
    """Whether it is a power that the runtime makes a product of."""
    if op.op_type != "Pow" or op.inputs[1] not in graph.constants:
        return False
    exponent = graph.constants[op.inputs[1]]
    return exponent.region.size == 1 and f"{float(exponent.load().reshape(-1)[0]):g}" in EXPONENTS


def _adds_first(graph: Graph, op: Operator) -> bool:
    before = graph.producers.get(op.inputs[0])
    return (
        op.op_type == "LayerNormalization"
        and before is not None
        and before.op_type == "Add"
        and all(graph.shape_of(name) == graph.shape_of(op.inputs[0]) for name in before.inputs)
    )


def _family(graph: Graph, op: Operator, family: str, operand: Sequence[int]) -> str:
    if op.op_type in RECURRENT:
        return "gemm"
    if op.op_type in INT8:
        return "int8"
    if op.op_type in INT8_CONVOLUTIONS:
        return "int8_conv"
    if op.op_type in QUANTISED and _between_bytes(graph, op):
        return QUANTISED[op.op_type]
    if family in CONVOLUTIONS and op.attributes.get("group", 1) > 1:
        return "grouped"
    if family != "conv" or len(operand) < 3:
        return family
    return "stem" if operand[1] <= FEW_CHANNELS else "large" if prod(operand[2:]) > WIDE_KERNEL else family


def _between_bytes(graph: Graph, op: Operator) -> bool:
    before = graph.producers.get(op.inputs[0])
    behind = graph.consumers.get(op.outputs[0], ())
    return (
        before is not None
        and before.op_type == "DequantizeLinear"
        and any(reader.op_type == "QuantizeLinear" for reader in behind)
    )


def _inside_group(graph: Graph, op: Operator) -> bool:
    """Whether it rounds nothing by itself: it is done once and for all, or as a part of the operator beside it."""
    if op.op_type == "DequantizeLinear":
        readers = graph.consumers.get(op.outputs[0], ())
        fused = bool(readers) and all(r.op_type in QUANTISED and _between_bytes(graph, r) for r in readers)
        return fused or op.inputs[0] in graph.constants
    before = graph.producers.get(op.inputs[0])
    return before is not None and before.op_type in QUANTISED and _between_bytes(graph, before)


def _extents(op: Operator, family: str, operand: Sequence[int], written: Sequence[int]) -> tuple[int, int]:
    """Channels, or rows and columns; `operand` is what is read of the second input."""
    if family in CONVOLUTIONS and len(written) > 2:
        return written[-1 if op.op_type.startswith("Nhwc") else 1], 0
    if op.op_type in RECURRENT and len(written) > 1:
        return written[-2], 0
    if op.op_type not in PRODUCTS or not written:
        return 0, 0
    together = len(operand) <= 2  # one matrix for all rows, or one for each
    rows = prod(written[:-1]) if together else written[-2] if len(written) > 1 else 1
    return rows, written[-1]
