"""Work: the operations and bytes of one operator for one region, and the rate at which a device performs
them.

Takes an operator with the regions that it reads and writes; gives floating-point operations and bytes, and
seconds on a device. It is the lowest level of the costs: operator_cost.py builds on it. Data and pure rules.

The behaviour of ONNX Runtime's CPU provider is data here: which operators it computes in the same pass as the
operator before, which operators cost more than the bytes that they move, and which operators read only a part
of an input."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, Protocol

from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.engine import Engine
from edgepart.planner.devices.rates import STREAM, WEIGHTS, Rates
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
"""Operators whose output uses the buffer of their input in the runtime: no bytes move."""

FUSED_BEHIND: Mapping[str, frozenset[str]] = {
    "Conv": frozenset(
        {"BatchNormalization", "Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "Tanh", "Add", "Sum"}
    ),
    "Gemm": frozenset({"Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "Tanh", "Elu"}),
    "MatMul": frozenset({"Add"}),
    "ConvTranspose": frozenset({"BatchNormalization"}),
    "BatchNormalization": frozenset({"Relu"}),
}
"""The operators that ONNX Runtime's CPU provider computes in the same pass as each of these operators, if
they are its only readers."""

CONVOLUTIONS = frozenset({"conv", "pointwise"})
"""Families whose rate depends on the number of channels that they write."""

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
"""Operators whose rate depends on the number of rows and columns that they write."""

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
"""Operators that compute one product after another, each with as many rows as the batch."""

INT8 = frozenset(
    {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm", "QAttention"}
)
INT8_CONVOLUTIONS = frozenset({"QLinearConv", "ConvInteger"})
QUANTISED = {"Conv": "int8_conv", "MatMul": "int8", "Gemm": "int8"}
"""The families of operators that the runtime computes with 8-bit integers between a DequantizeLinear and a
QuantizeLinear."""

FEW_CHANNELS = 4
"""A convolution that reads at most so many channels is of the family "stem": it reads an image, not features."""
WIDE_KERNEL = 9
"""Elements of a window; a convolution with a larger window is of the family "large"."""
FEW_ROWS = 4
"""A product with fewer rows waits for its weights, and computes while they arrive."""

TRANSCENDENTAL = frozenset(
    {
        *("Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "Silu"),
        *("HardSwish", "Mish", "Swish"),
    }
)
"""Operators computed by vector instructions, which take about four times as long as moving the bytes."""

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
"""Operators that the mathematical library computes one element after another."""

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
"""Norms that include a sum before them. The runtime also fuses a separate sum and norm into such an operator."""
ROUNDING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
PICKING = frozenset({"Gather", "GatherElements", "GatherND", "EmbedLayerNormalization"})
"""Operators that read as much of their first input as they write, whatever its size."""
TABLES: Mapping[str, tuple[int, ...]] = {"GroupQueryAttention": (7, 8), "RotaryEmbedding": (1, 2, 3)}
"""The inputs that may be tables of angles, with a row for each position: of these an operator reads a row for each row of
its first input, whatever the table's size. (The two operators of the name RotaryEmbedding have theirs in different
places.)"""

EXPONENTS = ("2", "3", "0.5", "1")
"""Constant exponents of powers that the runtime computes by multiplication."""


class MeasuredRates(Protocol):
    """What the time of an operator follows from: of a device's CPU, or of one of its engines."""

    @property
    def rates(self) -> Rates: ...

    @property
    def memory_bytes_per_s(self) -> float: ...

    @property
    def kernel_s(self) -> float: ...


class Work(NamedTuple):
    """The work of one operator to write one region. It is a tuple because one is made for each region that a
    search evaluates."""

    flops: float
    nbytes: float
    """Bytes read and written, weights included."""
    family: str
    size: float = 0.0
    """Channels or rows written, if the rate depends on them; 0 stands for plenty."""
    columns: float = 0.0
    """Columns written, if the rate depends on them; 0 stands for plenty."""
    weights: float = 0.0
    """Bytes of constants read. Each request reads them from memory, not from a cache, because all other
    constants are read in between."""
    kind: str = ""
    """The kind of an operator that mostly moves data; "" for an operator that computes."""
    kernels: int = 0
    """The number of calls that the runtime makes for the operator."""

    def seconds_on(self, device: Device) -> float:
        """Seconds that the work takes on `device`, calls of the runtime included: on the CPU, or on the quickest of the
        engines that can run it. What it takes to move values there is counted when engines are chosen for whole segments
        (planner/lowering/engines.py)."""
        on_cpu = self._seconds_at(device)
        if not device.engines:
            return on_cpu
        return min([on_cpu, *(self.seconds_with(device, engine.name) for engine in device.engines)])

    def seconds_with(self, device: Device, engine: str) -> float:
        """Seconds that the work takes on this engine of `device`; infinite if it cannot run there."""
        if not (self.flops or self.nbytes or self.kernels):
            return 0.0
        found = device.engine(engine)
        runs = not isinstance(found, Engine) or found.computes(self.family, self.kind)
        return self._seconds_at(found) if runs else float("inf")

    def _seconds_at(self, speeds: MeasuredRates) -> float:
        return self._compute_s(speeds) + self.kernels * speeds.kernel_s

    def _compute_s(self, device: MeasuredRates) -> float:
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
    if op.op_type in TABLES and reads:
        reads = list(_without_unread_rows(op, reads))
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


def _without_unread_rows(
    op: Operator, reads: Sequence[tuple[str, Region, float]]
) -> Iterator[tuple[str, Region, float]]:
    """Yields `reads` with the bytes of those rows of tables that the operator reads."""
    tables = {op.inputs[place] for place in TABLES[op.op_type] if place < len(op.inputs)}
    rows = prod(reads[0][1].shape[:-1])
    for name, region, nbytes in reads:
        if name in tables and region.rank == 2:
            nbytes *= min(1.0, rows / max(1, region.shape[0]))
        yield name, region, nbytes


def describe_surroundings(graph: Graph, op: Operator, family: str) -> Hashable:
    """Everything about the operators around `op` that its work depends on. Operators that are the same except
    for names, with equal surroundings, do the same work."""
    quantised = op.op_type in QUANTISED and _between_bytes(graph, op)
    return kind_of(graph, op, family), quantised, op.op_type in ROUNDING and _inside_group(graph, op)


def kind_of(graph: Graph, op: Operator, family: str) -> str:
    """The kind under which an operator that mostly moves data is measured; "" for an operator that computes."""
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
    """Whether `op` is a power that the runtime computes as a product."""
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
    """Whether the operator rounds nothing by itself: it is done once for all requests, or as a part of the
    operator next to it."""
    if op.op_type == "DequantizeLinear":
        readers = graph.consumers.get(op.outputs[0], ())
        fused = bool(readers) and all(r.op_type in QUANTISED and _between_bytes(graph, r) for r in readers)
        return fused or op.inputs[0] in graph.constants
    before = graph.producers.get(op.inputs[0])
    return before is not None and before.op_type in QUANTISED and _between_bytes(graph, before)


def _extents(op: Operator, family: str, operand: Sequence[int], written: Sequence[int]) -> tuple[int, int]:
    """The channels and 0, or the rows and columns, that the operator writes. `operand` is the shape that is
    read of its second input."""
    if family in CONVOLUTIONS and len(written) > 2:
        return written[-1 if op.op_type.startswith("Nhwc") else 1], 0
    if op.op_type in RECURRENT and len(written) > 1:
        return written[-2], 0
    if op.op_type not in PRODUCTS or not written:
        return 0, 0
    together = len(operand) <= 2  # one matrix for all rows, or one for each
    rows = prod(written[:-1]) if together else written[-2] if len(written) > 1 else 1
    return rows, written[-1]
