"""Quantisation: QuantizeLinear and DequantizeLinear, and the operators of ONNX Runtime's own domain that compute with eight
bits. A sum that is rounded to eight bits is never cut into parts. Rules only."""

from __future__ import annotations

from itertools import accumulate

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Inner, broadcast, vector
from edgepart.planner.access.declare.bound import BoundOperator, Shape, axis_names
from edgepart.planner.access.declare.channels_last import channels_last
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node
from edgepart.planner.access.declare.protocol import Local, Outputs
from edgepart.planner.access.operators.contraction import inner_axis, per_column, product_reads, understood
from edgepart.planner.access.operators.convolution import qlinear_conv
from edgepart.planner.access.operators.data_movement import DataMovement, shift
from edgepart.planner.access.operators.elementwise import elementwise
from edgepart.planner.access.operators.pooling import Pool, pool
from edgepart.planner.region import Region, span, span_intersect


def quantise(bound: BoundOperator) -> Derived:
    """Declares QuantizeLinear or DequantizeLinear, with a scale for the tensor, for each index of an axis, or for each
    block. The inputs are x, the scale, and the zero point (shaped as the scale)."""
    output = bound.output
    axis = int(bound.attribute("axis", 1))
    axis = axis % len(output) if output and -len(output) <= axis < len(output) else 0
    block = int(bound.attribute("block_size", 0))
    scale = bound.shape(1)
    blocked = block > 0 and len(scale) == len(output)
    if not blocked and not (len(scale) <= 1 and (not scale or scale[0] in (1, output[axis]))):
        return WholeOperator(
            bound, "its scale has a shape that is neither per tensor, per axis nor per block"
        )

    def read(shape: Shape | None) -> AxisReads | None:
        if shape is None or not blocked:
            return vector(shape, axis, output[axis] if output else 1)
        return [Along(n, per=block if n == axis else 1) for n in range(len(shape))]

    return Aligned(bound, [broadcast(bound.inputs[0], output), *map(read, bound.inputs[1:])], work=2.0)


def dynamic_matmul(bound: BoundOperator) -> Derived:
    """Declares DynamicQuantizeMatMul with the inputs A, B, B's scale, B's zero point, bias. A's scale comes from all of
    A, so only columns can be cut."""
    b, last = bound.shape(1), len(bound.output) - 1
    columns = [per_column(shape, b, bound.output) for shape in bound.inputs[2:]]
    if not all(understood(*one) for one in zip(columns, bound.inputs[2:], strict=True)):
        return WholeOperator(bound, "its scales are not one for each column")
    right: AxisReads = [*[None] * (len(b) - 1), Along(last)]
    reads = [[None] * len(bound.shape(0)), right, *columns]
    return Aligned(bound, reads, whole=range(last), family="gemm", work=2.0 * b[-2])


def matmul_to_float(bound: BoundOperator) -> Derived:
    """Declares MatMulIntegerToFloat with the inputs A, B, their scales, their zero points, bias: a MatMulInteger times
    both scales."""
    a, b = bound.shape(0), bound.shape(1)
    if len(b) > 2 and any(bound.has(index) and bound.shape(index) for index in (3, 5)):
        return WholeOperator(
            bound, "its scales are one for each column of several matrices"
        )  # ONNX Runtime adds the bias wrongly.
    left, right = product_reads(a, b, bound.output)
    rest = [per_column(shape, b, bound.output) for shape in bound.inputs[2:]]
    for index in (2, 4):  # A has one scale and one zero point.
        if bound.has(index):
            rest[index - 2] = [None] * len(bound.shape(index))
    if not all(understood(*one) for one in zip(rest, bound.inputs[2:], strict=True)):
        return WholeOperator(bound, "its scales are not one for each column")
    return Aligned(
        bound, [left, right, *rest], family="gemm", work=2.0 * a[-1], reduced=inner_axis(a[-1]), once=(6,)
    )


def quantised_gemm(bound: BoundOperator) -> Derived:
    """Declares QGemm with the inputs A, its scale and zero point, B, its scale and zero point, C, and Y's scale and zero
    point. Without these last two, Y is float."""
    across_a, across_b = bool(bound.attribute("transA", 0)), bool(bound.attribute("transB", 0))
    inner, columns = bound.shape(0)[0 if across_a else 1], bound.output[1]
    left: AxisReads = [Inner(), Along(0)] if across_a else [Along(0), Inner()]
    right: AxisReads = [Along(1), Inner()] if across_b else [Inner(), Along(1)]
    reads: list[AxisReads | None] = [None if s is None else [None] * len(s) for s in bound.inputs]
    reads[0], reads[3] = left, right
    for index in (4, 5):
        reads[index] = vector(bound.inputs[index], 1, columns)
    if bound.has(6):
        reads[6] = broadcast(bound.inputs[6], bound.output)
    summed = () if bound.has(7) else inner_axis(inner)
    return Aligned(bound, reads, family="gemm", work=2.0 * inner, reduced=summed, once=(6,))


def convolution(bound: BoundOperator) -> Derived:
    """Declares QLinearConv: as in ai.onnx, but with channels last if an attribute says so."""
    if not bound.attribute("channels_last"):
        return qlinear_conv(bound)
    groups = int(bound.attribute("group", 1))
    return channels_last(bound, qlinear_conv, quantum=bound.shape(3)[0] // groups if groups > 1 else 1)


class ScaledPool(Pool):
    """QLinearAveragePool, which also reads the scales and zero points of its input and output."""

    def reads(self, computed: Outputs) -> Reads:
        (x, *_) = super().reads(computed)
        return (x, *(self.bound.whole(index) for index in range(1, len(self.bound.inputs))))


def average_pool(bound: BoundOperator) -> Derived:
    return channels_last(bound, ScaledPool) if bound.attribute("channels_last") else ScaledPool(bound)


def max_pool(bound: BoundOperator) -> Derived:
    return channels_last(bound, pool)


def global_average_pool(bound: BoundOperator) -> Derived:
    rank = len(bound.output)
    last = bool(bound.attribute("channels_last"))
    space = range(1, rank - 1) if last else range(2, rank)
    reads: AxisReads = [None if axis in space else Along(axis) for axis in range(rank)]
    rest = [None if shape is None else [None] * len(shape) for shape in bound.inputs[1:]]
    names = list(axis_names(rank, spatial=True))
    if last:
        names.append(names.pop(1))
    work = float(Region.full(bound.shape(0)).size // (bound.output[0] * bound.output[-1 if last else 1]))
    return Aligned(bound, [reads, *rest], family="reduce", work=work, names=names)


def softmax(bound: BoundOperator) -> Derived:
    """Declares QLinearSoftmax over one axis or, as before opset 13, over all axes from that one on."""
    rank = len(bound.output)
    axis = int(bound.attribute("axis", -1)) % rank
    whole = range(axis, rank) if int(bound.attribute("opset")) < 13 else (axis,)
    rest = [None if shape is None else [None] * len(shape) for shape in bound.inputs[1:]]
    reads = [broadcast(bound.inputs[0], bound.output), *rest]
    return Aligned(bound, reads, whole=whole, family="reduce", work=5.0)


class ScaledConcat(DataMovement):
    """QLinearConcat, with the inputs Y's scale, Y's zero point, then each part with its scale and its zero point. The
    inputs of a part that is not wanted are not read."""

    def __init__(self, bound: BoundOperator) -> None:
        super().__init__(bound)
        self.axis = int(bound.attribute("axis")) % len(bound.output)
        self.values = range(2, len(bound.inputs), 3)
        extents = [bound.shape(index)[self.axis] for index in self.values]
        self.parts = [
            (stop - extent, stop) for stop, extent in zip(accumulate(extents), extents, strict=True)
        ]

    def reads(self, computed: Outputs) -> Reads:
        region = computed[0]
        found = [self.bound.whole(index) for index in range(len(self.bound.inputs))]
        for index, (start, stop) in zip(self.values, self.parts, strict=True):
            common = span_intersect(region.spans[self.axis], span((start, stop)))
            found[index] = region.replace(self.axis, shift(common, -start))
            if not common:
                found[index : index + 3] = [None] * 3
        return tuple(found)

    def nodes(self, computed: Outputs) -> Local:
        used = [index for index, read in enumerate(self.reads(computed)) if read is not None]
        return (local_node(self.bound, inputs=used),)

    def work(self, computed: Outputs) -> float:
        return 2.0 * computed[0].size


DECLARATIONS = {"DequantizeLinear": quantise, "QuantizeLinear": quantise}
MICROSOFT = {
    **DECLARATIONS,
    "DynamicQuantizeMatMul": dynamic_matmul,
    "MatMulIntegerToFloat": matmul_to_float,
    "NhwcMaxPool": max_pool,
    "QGemm": quantised_gemm,
    "QLinearAveragePool": average_pool,
    "QLinearConcat": ScaledConcat,
    "QLinearConv": convolution,
    "QLinearGlobalAveragePool": global_average_pool,
    "QLinearSoftmax": softmax,
    "QLinearWhere": elementwise,
}
