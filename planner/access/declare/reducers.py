"""Reducers: local nodes that combine the parts of a reduced axis. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np

from edgepart.planner.access.declare.bound import numpy_dtype
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.protocol import Local, LocalNode
from edgepart.planner.region import Array

Value = int | str | Array
"""An addend (by its index), the output of an earlier local node, or a constant."""


def chain(op_type: str, values: Sequence[Value], target: int | str, name: str) -> Iterator[LocalNode]:
    """Yields nodes that combine `values` by a binary operator, from left to right, into `target`. `name` is the prefix
    of the intermediate values, different for each chain."""
    source, *others = values
    if not others:
        yield LocalNode("Identity", (source,), (target,))
    for n, other in enumerate(others):
        made = target if n == len(others) - 1 else f"{name}.{n}"
        yield LocalNode(op_type, (source, other), (made,))
        source = made


def reduce_node(
    op_type: str, source: int | str, target: int | str, axis: int | Sequence[int], opset: int
) -> LocalNode:
    """Returns a reduction whose axes are kept with extent 1. `axes` became an input in opset 13 (ReduceSum) or 18
    (others)."""
    axes = [axis] if isinstance(axis, int) else list(axis)
    if opset >= (13 if op_type == "ReduceSum" else 18):
        return LocalNode(op_type, (source, integers(axes)), (target,), {"keepdims": 1})
    return LocalNode(op_type, (source,), (target,), {"axes": axes, "keepdims": 1})


def lowest(dtype: str) -> Array:
    """Returns the lowest finite number of a floating-point type, as a scalar array."""
    kind = numpy_dtype(dtype)
    finest = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]  # Knows numpy's own types as well.
    return np.asarray(float(finest.min), kind)


def _fold_with(op_type: str) -> Callable[[Sequence[float], str], Iterator[LocalNode]]:
    def nodes(weights: Sequence[float], dtype: str) -> Iterator[LocalNode]:
        return chain(op_type, range(len(weights)), 0, "folded")

    return nodes


def _mean(weights: Sequence[float], dtype: str) -> Iterator[LocalNode]:
    """Yields nodes that make the sum of the parts' means, each weighted by its part's share of the axis."""
    for n, weight in enumerate(weights):
        yield LocalNode("Mul", (n, np.asarray(weight, numpy_dtype(dtype))), (f"weighted_{n}",))
    yield from chain("Add", [f"weighted_{n}" for n in range(len(weights))], 0, "sum")


def _norm(weights: Sequence[float], dtype: str) -> Iterator[LocalNode]:
    """Yields nodes that make the root of the sum of the squares of the parts' norms."""
    for n in range(len(weights)):
        yield LocalNode("Mul", (n, n), (f"square_{n}",))
    yield from chain("Add", [f"square_{n}" for n in range(len(weights))], "squares", "sum")
    yield LocalNode("Sqrt", ("squares",), (0,))


def _log_sum_exp(weights: Sequence[float], dtype: str) -> Iterator[LocalNode]:
    """Yields nodes that make the logarithm of the sum of the parts' exponentials, scaled by the largest part
    so that none overflows. The largest part is kept finite, as all parts may be minus infinity."""
    yield from chain("Max", [*range(len(weights)), lowest(dtype)], "most", "max")
    for n in range(len(weights)):
        yield LocalNode("Sub", (n, "most"), (f"less_{n}",))
        yield LocalNode("Exp", (f"less_{n}",), (f"exp_{n}",))
    yield from chain("Add", [f"exp_{n}" for n in range(len(weights))], "total", "sum")
    yield LocalNode("Log", ("total",), ("log",))
    yield LocalNode("Add", ("log", "most"), (0,))


REDUCERS: Mapping[str, Callable[[Sequence[float], str], Iterator[LocalNode]]] = {
    "sum": _fold_with("Add"),
    "prod": _fold_with("Mul"),
    "max": _fold_with("Max"),
    "min": _fold_with("Min"),
    "mean": _mean,
    "norm": _norm,
    "log-sum-exp": _log_sum_exp,
}
"""Maps `Axis.reducer` to the function that yields the combining nodes, for one addend of the output's shape
from each part. The function takes the parts' weights (their sizes over the extent) and the element type.
Softmax and attention combine two or three addends themselves."""


def combine_addends(reducer: str, weights: Sequence[float], dtype: str) -> Local:
    """Returns nodes that make output 0 from inputs 0, 1 ..., which are the parts' addends."""
    return tuple(REDUCERS[reducer](weights, dtype))
