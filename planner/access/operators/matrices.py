"""Matrices in the last two axes: triangles and diagonals, whose diagonal's number depends on the part that is made;
determinants and inverses, which read a matrix whole; distances. Rules only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, broadcast
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.derived import Derived
from edgepart.planner.access.declare.protocol import Local, LocalNode, Outputs
from edgepart.planner.access.operators.generators import Generated
from edgepart.planner.region import Array, Region, span_hull


def _offset(region: Region) -> int:
    """Returns the number by which the diagonals of a part lie above those of the whole: the part's first row
    less its first column."""
    return region.origin[-2] - region.origin[-1]


def _diagonal(number: int, bound: BoundOperator) -> int:
    """Returns a diagonal's number, limited to the size of the matrix if it lies far outside."""
    rows, columns = bound.output[-2:]
    return min(max(number, -rows - columns), rows + columns)


class Triangle(Aligned):
    """Trilu: the elements on one side of diagonal k, which may be known only at run time."""

    def __init__(self, bound: BoundOperator) -> None:
        known = bound.constant(1)
        self.k = None if known is None else int(known.reshape(-1)[0])
        at_run_time: AxisReads | None = None
        if bound.has(1) and self.k is None:
            at_run_time = [None] * len(bound.shape(1))
        reads = [broadcast(bound.inputs[0], bound.output), at_run_time][: len(bound.inputs)]
        super().__init__(bound, reads, family="move", work=0.0)

    def widen(self, outputs: Outputs) -> Outputs:
        rows, columns = outputs[0].spans[-2:]
        return {0: outputs[0].replace(-2, span_hull(rows)).replace(-1, span_hull(columns))}

    def nodes(self, computed: Outputs) -> Local:
        offset, op = _offset(computed[0]), self.bound.operator
        if self.bound.has(1) and self.k is None:
            shift = LocalNode("Add", (1, np.asarray(offset, np.int64)), ("k",))
            return (shift, LocalNode("Trilu", (0, "k"), (0,), op.attributes, op.domain))
        k: Array = np.asarray(_diagonal(self.k or 0, self.bound) + offset, np.int64)
        return (LocalNode("Trilu", (0, k), (0,), op.attributes, op.domain),)


class Diagonal(Generated):
    """EyeLike: ones on diagonal k. Only the shape of the input matters."""

    def nodes(self, computed: Outputs) -> Local:
        k = _diagonal(int(self.bound.attribute("k", 0)), self.bound) + _offset(computed[0])
        said = {"dtype": TensorProto.DataType.Value(self.bound.dtype(0).upper()), "k": k}
        return (
            LocalNode("ConstantOfShape", (integers(computed[0].shape),), ("zeros",)),
            LocalNode("EyeLike", ("zeros",), (0,), said),
        )


def determinant(bound: BoundOperator) -> Derived:
    rank = len(bound.output)
    reads: AxisReads = [*(Along(axis) for axis in range(rank)), None, None]
    return Aligned(bound, [reads], family="other", work=2 * bound.shape(0)[-1] ** 3 / 3)


def inverse(bound: BoundOperator) -> Derived:
    """Declares Inverse of com.microsoft."""
    rank = len(bound.output)
    reads: AxisReads = [*(Along(axis) for axis in range(rank - 2)), None, None]
    return Aligned(bound, [reads], whole=(rank - 2, rank - 1), family="other", work=2.0 * bound.output[-1])


def distances(bound: BoundOperator) -> Derived:
    """Declares CDist of com.microsoft: the distance of every row of A to every row of B."""
    reads: list[AxisReads] = [[Along(0), None], [Along(1), None]]
    return Aligned(bound, reads, family="gemm", work=3.0 * bound.shape(0)[1])


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    "Det": determinant,
    "EyeLike": Diagonal,
    "Trilu": Triangle,
}
MICROSOFT: dict[str, Callable[[BoundOperator], Derived]] = {
    "CDist": distances,
    "Inverse": inverse,
    "Trilu": Triangle,
}
