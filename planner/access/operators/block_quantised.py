"""Operators of com.microsoft whose weights are blocks of few bits. Each column of a product has a row of packed weights
and its scales; each scale belongs to a block of the sum. Rules only."""

from __future__ import annotations

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Inner
from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.region import Region, span_size


def _columns(region: Region) -> dict[str, int]:
    return {"N": span_size(region.spans[-1])}


def matmul_n_bits(bound: BoundOperator) -> Derived:
    """Declares MatMulNBits with the inputs A [..., K], B [N, blocks, bytes], scales, zero points (one for each block, or
    packed), group indices, bias [N]."""
    inner, block = int(bound.attribute("K")), int(bound.attribute("block_size"))
    bits = int(bound.attribute("bits", 4))
    if bound.attribute("weight_prepacked") or len(bound.shape(1)) != 3:
        return WholeOperator(bound, "its weights are packed for one kind of processor")
    if bound.has(4):
        return WholeOperator(bound, "the order of its blocks is an input")
    blocks, last = bound.shape(1)[1], len(bound.output) - 1
    packed = bound.has(3) and _each(bound.shape(3), bound.output[last]) != blocks
    per = block * 8 // bits if packed else block
    reads: list[AxisReads | None] = [None] * len(bound.inputs)
    reads[0] = [*map(Along, range(last)), Inner()]
    reads[1] = [Along(last), Inner(per=block), None]
    for index, each in ((2, block), (3, per)):
        if bound.has(index):
            reads[index] = _blocks(bound.shape(index), last, bound.output[last], each)
    if bound.has(5):
        reads[5] = [Along(last)]
    apart = all(shape is None or len(shape) == 2 for shape in bound.inputs[2:4])
    summed = apart and inner > per and (8 % bits == 0 or not packed)
    return Aligned(
        bound,
        reads,
        family="gemm",
        work=2.0 * inner,
        reduced=(Axis("inner", 0, inner, per, reducer="sum"),) if summed else (),
        attributes=_columns,
        part_attributes=lambda part: {"K": part.size},
        once=(5,),
    )


def _each(shape: Shape, columns: int) -> int:
    """Returns the number of values for each column."""
    return shape[1] if len(shape) == 2 else shape[0] // columns


def _blocks(shape: Shape, axis: int, columns: int, per: int) -> AxisReads:
    """Returns how an input with a value for each column and block is read. Its shape is [N, blocks], or flat,
    in which case blocks cannot be told apart."""
    return [Along(axis), Inner(per=per)] if len(shape) == 2 else [Along(axis, times=_each(shape, columns))]


def matmul_bnb4(bound: BoundOperator) -> Derived:
    """Declares MatMulBnb4 with the inputs A [..., K], weights (two in a byte), and a scale for each block;
    the last two inputs are flat, column after column."""
    inner, block = int(bound.attribute("K")), int(bound.attribute("block_size"))
    if inner % block or inner % 2 or not bound.attribute("transB", 1) or bound.attribute("training_mode"):
        return WholeOperator(bound, "a block of its weights holds parts of several columns")
    last = len(bound.output) - 1
    weights: AxisReads = [Along(last, times=inner // 2), *[None] * (len(bound.shape(1)) - 1)]
    reads: list[AxisReads] = [
        [*map(Along, range(last)), None],
        weights,
        [Along(last, times=inner // block)],
    ]
    return Aligned(bound, reads, family="gemm", work=2.0 * inner, attributes=_columns)


def gather_blocks(bound: BoundOperator) -> Derived:
    """Declares GatherBlockQuantized, which gathers rows of a table that is packed in blocks. The wanted rows
    are known only at run time, so the table is read whole."""
    axis = int(bound.attribute("gather_axis", 0)) % len(bound.shape(0))
    rank, indices = len(bound.output), len(bound.shape(1))
    reads: list[AxisReads | None] = [None if s is None else [None] * len(s) for s in bound.inputs]
    reads[1] = [Along(axis + n) for n in range(indices)]
    whole = [n for n in range(rank) if not axis <= n < axis + indices]
    return Aligned(bound, reads, whole=whole, family="move", work=2.0)


MICROSOFT = {
    "GatherBlockQuantized": gather_blocks,
    "MatMulBnb4": matmul_bnb4,
    "MatMulNBits": matmul_n_bits,
}
