"""Generators: operators that make a tensor from a few numbers, and those whose result is known when the model is loaded.
Each device makes the part that it wants, and reads no other tensor. Rules only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgepart.planner.access.declare.bound import BoundOperator, numpy_dtype
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, split_axes
from edgepart.planner.access.declare.protocol import Axis, Local, LocalNode, Outputs
from edgepart.planner.region import Array


class Generated(Derived):
    """The base class of generators: any axis can be cut, and each part is one box."""

    family = "move"

    def __init__(self, bound: BoundOperator) -> None:
        self.bound = bound

    def axes(self) -> tuple[Axis, ...]:
        return split_axes(self.bound.output, range(len(self.bound.output)))

    def widen(self, outputs: Outputs) -> Outputs:
        return {0: outputs[0].hull()}

    def reads(self, computed: Outputs) -> Reads:
        return (None,) * len(self.bound.inputs)

    def work(self, computed: Outputs) -> float:
        return 0.0


class Filled(Generated):
    """ConstantOfShape: one value everywhere."""

    def nodes(self, computed: Outputs) -> Local:
        attributes = self.bound.operator.attributes
        return (LocalNode("ConstantOfShape", (integers(computed[0].shape),), (0,), attributes),)


class Range(Generated):
    """Range of integers: element i is start + i * delta, and a part counts i from its own first element to
    its last."""

    def reads(self, computed: Outputs) -> Reads:
        count = len(self.bound.inputs)
        return tuple(None if index == 1 else self.bound.whole(index) for index in range(count))

    def nodes(self, computed: Outputs) -> Local:
        (part,) = computed[0].spans[0]
        start, stop, step = (self._number(value) for value in (part.start, part.stop, 1))
        delta: int | Array = 2 if self.bound.has(2) else step
        return (
            LocalNode("Range", (start, stop, step), ("index",)),
            LocalNode("Mul", ("index", delta), ("scaled",)),
            LocalNode("Add", ("scaled", 0), (0,)),
        )

    def work(self, computed: Outputs) -> float:
        return 2.0 * computed[0].size

    def _number(self, value: int) -> Array:
        return np.asarray(value, numpy_dtype(self.bound.dtype(0)))


def range_(bound: BoundOperator) -> Derived:
    if bound.opset < 11:
        return WholeOperator(bound, "it is in a model of an opset before 11, which has no Range of its own")
    whole_numbers = ("int32", "int64") if bound.opset < 14 else ("int16", "int32", "int64")
    if bound.dtype(0) not in whole_numbers:
        return WholeOperator(bound, "it adds one step after another, and rounds each sum")
    return Range(bound)


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {"ConstantOfShape": Filled, "Range": range_}
MICROSOFT = {"Range": range_}

_SHAPE = (
    "it tells a shape: that is known when the model is loaded, or else only once all of the tensor is there"
)

OPAQUE = {
    ("", "Constant"): "it is a value of the model's own, which is read when the model is loaded",
    ("", "Shape"): _SHAPE,
    ("", "Size"): _SHAPE,
}
