"""Partial attention: combines attention over parts of the keys. Each part gives, per row, its largest score,
the sum of the exponentials of its scores less the largest score, and its own output. The outputs are added,
each weighted by its share of all exponentials. No exponential is of a positive number, so none overflows
(Milakov and Gimelshein 2018, section 3). Rules only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads
from edgepart.planner.access.declare.bound import BoundOperator, numpy_dtype
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.protocol import Addend, Local, LocalNode, Outputs
from edgepart.planner.access.declare.reducers import chain
from edgepart.planner.access.operators.normalisation import stabilise
from edgepart.planner.region import Region

MOST, SUM, OUTPUT = range(3)
"""The addends of each part."""

Target = int | str


def addends(batch: int, heads: int, rows: int, size: int, dtype: str) -> tuple[Addend, ...]:
    """Returns the addends of each part: maximum and sum, [batch, heads, rows, 1], and output, [batch, heads, rows,
    size]."""
    one = Addend((batch, heads, rows, 1), _precise(dtype))
    return one, one, Addend((batch, heads, rows, size), dtype)


def maximum_and_sum(scores: str, dtype: str, opset: int, targets: tuple[Target, Target]) -> Local:
    """Returns nodes that make MOST and SUM from scores [batch, heads, rows, keys] of type `dtype`."""
    return (
        LocalNode("Cast", (scores,), ("precise",), {"to": _element(_precise(dtype))}),
        *stabilise("precise", 3, _precise(dtype), opset, targets),
    )


class Blended(Aligned):
    """The operator that makes the output from every part's addends. The output is [batch, heads, rows, size]
    or, if `flat`, [batch, rows, heads * size]."""

    def __init__(self, bound: BoundOperator, flat: bool, one: tuple[Addend, ...], count: int) -> None:
        """`one`: the addends of each of the `count` parts."""
        shapes = tuple(addend.shape for addend in one) * count
        operator = replace(bound.operator, inputs=("",) * len(shapes), captured=())
        given = replace(bound, operator=operator, inputs=shapes, outputs=(bound.output,))
        self.flat, self.count, self.size = flat, count, one[OUTPUT].shape[-1]
        self.precise = one[SUM].dtype
        value: AxisReads = self._rows() if flat else [*self._rows()[:3], Along(3)]
        names = ("batch", "sequence", "head") if flat else ("batch", "head", "sequence", "feature")
        super().__init__(given, [self._rows(), self._rows(), value] * count, work=4.0 * count, names=names)

    def _rows(self) -> list[Along | None]:
        if self.flat:
            return [Along(0), Along(2, per=self.size), Along(1), None]
        return [Along(0), Along(1), Along(2), None]

    def nodes(self, computed: Outputs) -> Local:
        return (*self._weights(), *self._weigh(), *self._reshape(computed[0]))

    def _weights(self) -> Iterator[LocalNode]:
        """Yields nodes that make each part's share of the sum of all exponentials, and the total of the
        shares. The total is at least 1 if any key is left. If every key is masked, the outputs are 0, and the
        divisor does not matter."""
        parts = range(self.count)
        yield from chain("Max", [3 * n + MOST for n in parts], "most", "max")
        for n in parts:
            yield LocalNode("Sub", (3 * n + MOST, "most"), (f"less_{n}",))
            yield LocalNode("Exp", (f"less_{n}",), (f"scale_{n}",))
            yield LocalNode("Mul", (3 * n + SUM, f"scale_{n}"), (f"share_{n}",))
        yield from chain("Add", [f"share_{n}" for n in parts], "sum", "add")
        yield LocalNode("Max", ("sum", np.ones((), numpy_dtype(self.precise))), ("total",))

    def _weigh(self) -> Iterator[LocalNode]:
        for n in range(self.count):
            yield LocalNode("Div", (f"share_{n}", "total"), (f"weight_{n}",))
            yield LocalNode("Cast", (3 * n + OUTPUT,), (f"output_{n}",), {"to": _element(self.precise)})
            yield LocalNode("Mul", (f"output_{n}", f"weight_{n}"), (f"weighted_{n}",))
        yield from chain("Add", [f"weighted_{n}" for n in range(self.count)], "blended", "blend")

    def _reshape(self, region: Region) -> Iterator[LocalNode]:
        to = {"to": _element(self.bound.dtype(0))}
        if not self.flat:
            yield LocalNode("Cast", ("blended",), (0,), to)
            return
        yield LocalNode("Cast", ("blended",), ("cast",), to)
        yield LocalNode("Transpose", ("cast",), ("rows",), {"perm": [0, 2, 1, 3]})
        yield LocalNode("Reshape", ("rows", integers(region.shape)), (0,))


def _precise(dtype: str) -> str:
    """Returns the element type in which exponentials are summed."""
    return "double" if dtype == "double" else "float"


def _element(dtype: str) -> int:
    return int(TensorProto.DataType.Value(dtype.upper()))
