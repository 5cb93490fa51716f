"""Contractions: MatMul, Gemm and their quantised forms. Rows of the result read rows of the left matrix, columns read
columns of the right one, and the inner axis is summed. Rules only."""

from __future__ import annotations

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Fixed, Inner, broadcast, vector
from edgepart.planner.access.declare.bound import BoundOperator, Shape, matrix_names
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Axis


def inner_axis(extent: int) -> tuple[Axis, ...]:
    """Returns the axis that products are summed over; none if it has one index only."""
    return (Axis("inner", 0, extent, reducer="sum"),) if extent > 1 else ()


def product_reads(a: Shape, b: Shape, output: Shape) -> tuple[AxisReads, AxisReads]:
    """Returns how both operands are read, as in numpy.matmul: the last two axes are matrices, and the axes
    before them are broadcast; an operand with one axis is a vector."""
    rank = len(output)
    rows = None if len(a) == 1 else rank - 1 - (len(b) > 1)
    columns = None if len(b) == 1 else rank - 1
    batch = output[: rank - (len(a) > 1) - (len(b) > 1)]
    left: list[Along | Inner | Fixed | None] = [Inner()]
    if rows is not None:
        left = [*(broadcast(a[:-2], batch) or ()), Along(rows), Inner()]
    right: list[Along | Inner | Fixed | None] = [Inner()]
    if columns is not None:
        right = [*(broadcast(b[:-2], batch) or ()), Inner(), Along(columns)]
    return left, right


def matmul(bound: BoundOperator) -> Derived:
    a, b = bound.shape(0), bound.shape(1)
    left, right = product_reads(a, b, bound.output)
    names = matrix_names(len(bound.output))
    return Aligned(
        bound, [left, right], family="gemm", work=2.0 * a[-1], reduced=inner_axis(a[-1]), names=names
    )


def matmul_integer(bound: BoundOperator) -> Derived:
    """Declares MatMulInteger with the inputs A, B, A's zero points (one, or one for each row), B's (one, or one for each
    column)."""
    a, b, output = bound.shape(0), bound.shape(1), bound.output
    left, right = product_reads(a, b, output)
    zeros = [
        per_row(bound.inputs[index], a, output) if index == 2 else per_column(bound.inputs[index], b, output)
        for index in range(2, len(bound.inputs))
    ]
    if not all(understood(zero, bound.inputs[n + 2]) for n, zero in enumerate(zeros)):
        return WholeOperator(bound, "its zero points are not one for each row or column")
    return Aligned(bound, [left, right, *zeros], family="gemm", work=2.0 * a[-1], reduced=inner_axis(a[-1]))


def qlinear_matmul(bound: BoundOperator) -> Derived:
    """Declares QLinearMatMul with the inputs a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero."""
    a, b, output = bound.shape(0), bound.shape(3), bound.output
    left, right = product_reads(a, b, output)
    rows = [per_row(bound.inputs[index], a, output) for index in (1, 2)]
    columns = [per_column(bound.inputs[index], b, output) for index in (4, 5)]
    rest: list[AxisReads | None] = [vector(bound.inputs[index], 0, 0) for index in (6, 7)]
    reads = [left, *rows, right, *columns, *rest]
    if not all(understood(read, shape) for read, shape in zip(reads, bound.inputs, strict=True)):
        return WholeOperator(bound, "its scales are not one for each row or column")
    return Aligned(bound, reads, family="gemm", work=2.0 * a[-1])


def per_row(shape: Shape | None, a: Shape, output: Shape) -> AxisReads | None:
    """Returns how an input is read if it has a value for each row of the left matrix, or one value for all rows."""
    return vector(shape, len(output) - 2, a[-2]) if len(a) > 1 else vector(shape, 0, 0)


def per_column(shape: Shape | None, b: Shape, output: Shape) -> AxisReads | None:
    """Returns how an input is read if it has a value for each column of the right matrix, or one value for
    all columns."""
    return vector(shape, len(output) - 1, b[-1]) if len(b) > 1 else vector(shape, 0, 0)


def understood(read: AxisReads | None, shape: Shape | None) -> bool:
    """Whether a scale is one value or runs along the result; anything else would be a guess."""
    return read is None or shape is None or len(shape) > 1 or any(read) or all(e == 1 for e in shape)


def gemm(bound: BoundOperator) -> Derived:
    """Declares Gemm: alpha * A' B' + beta * C."""
    return _gemm(bound, summed=True)


def fused_gemm(bound: BoundOperator) -> Derived:
    """Declares FusedGemm of com.microsoft: Gemm followed by an activation, before which the sum must be
    complete."""
    return _gemm(bound, summed=False)


def _gemm(bound: BoundOperator, summed: bool) -> Derived:
    across_a, across_b = bool(bound.attribute("transA", 0)), bool(bound.attribute("transB", 0))
    left: AxisReads = [Inner(), Along(0)] if across_a else [Along(0), Inner()]
    right: AxisReads = [Along(1), Inner()] if across_b else [Inner(), Along(1)]
    inner = bound.shape(0)[0 if across_a else 1]
    addend = [broadcast(shape, bound.output) for shape in bound.inputs[2:]]
    return Aligned(
        bound,
        [left, right, *addend],
        family="gemm",
        work=2.0 * inner,
        reduced=inner_axis(inner) if summed else (),
        part_attributes=lambda part: {"beta": 0.0} if part.start else {},
    )


def fused_matmul(bound: BoundOperator) -> Derived:
    """Declares FusedMatMul of com.microsoft: MatMul of matrices that may be transposed. TransposeMatMul is its former
    name."""
    if any(bound.attribute(name) for name in ("transBatchA", "transBatchB")):
        return WholeOperator(bound, "it transposes batches")
    a, b = bound.shape(0), bound.shape(1)
    if len(a) < 2 or len(b) < 2:
        return WholeOperator(bound, "it multiplies a vector")
    inner = a[-2] if bound.attribute("transA") else a[-1]
    left, right = (list(read) for read in product_reads(a, b, bound.output))
    if bound.attribute("transA"):
        left[-2:] = left[:-3:-1]
    if bound.attribute("transB"):
        right[-2:] = right[:-3:-1]
    names = matrix_names(len(bound.output))
    return Aligned(
        bound, [left, right], family="gemm", work=2.0 * inner, reduced=inner_axis(inner), names=names
    )


DECLARATIONS = {
    "Gemm": gemm,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
}
MICROSOFT = {
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "MatMulInteger16": matmul,
    "TransposeMatMul": fused_matmul,
}
