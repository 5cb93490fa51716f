"""Reductions along axes: Reduce*, ArgMax, ArgMin, TopK, CumSum, CumProd. The reduced axes are read whole, or, for most
of Reduce*, in parts whose results are combined. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Inner, broadcast
from edgepart.planner.access.declare.bound import BoundOperator, Shape, axis_names, is_floating
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Axis

_REDUCERS = {
    "ReduceL1": "sum",
    "ReduceL2": "norm",
    "ReduceLogSumExp": "log-sum-exp",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum",
}
"""The reducer that combines parts, by operator type. ReduceLogSum has no reducer, because the sum of a part
may be negative, and then has no logarithm."""

_FLOATING = frozenset({"norm", "log-sum-exp", "mean"})
"""Reducers that would round integers."""


def _along(names: Sequence[str], reduced: Sequence[int], keeps: bool) -> AxisReads:
    """Returns how each axis of the input is read. `names`: the names of its axes. `keeps`: whether reduced axes stay,
    with extent 1."""
    kept = [axis for axis in range(len(names)) if axis not in reduced]
    place = {axis: axis if keeps else n for n, axis in enumerate(kept)}
    return [Along(place[axis]) if axis in place else Inner(name) for axis, name in enumerate(names)]


def _reduction(bound: BoundOperator, axes: Sequence[int], ways: bool) -> Derived:
    shape = bound.shape(0)
    reduced = sorted({axis % len(shape) for axis in axes})
    keeps = bool(bound.attribute("keepdims", 1))
    names = name_axes(shape, bound.output, reduced)
    reads = _along(names, reduced, keeps)
    rest = [None if one is None else [None] * len(one) for one in bound.inputs[1:]]
    reducer = _REDUCERS.get(bound.operator.op_type) if ways else None
    if not is_floating(bound.dtype(0)) and (
        reducer in _FLOATING or bound.opset < 12 or bound.dtype(0) == "bool"
    ):
        reducer = None
    summed = tuple(
        Axis(names[axis], axis, shape[axis], reducer=reducer)
        for axis in reduced
        if reducer and shape[axis] > 1
    )
    work = float(prod(shape[axis] for axis in reduced))
    return Aligned(bound, [reads, *rest], family="reduce", work=work, reduced=summed)


def name_axes(shape: Shape, output: Shape, reduced: Sequence[int]) -> list[str]:
    """Returns the names of the input's axes. A reduced axis never has the name of another axis of the output."""
    names, taken = list(axis_names(len(shape))), set(axis_names(len(output)))
    for axis in reduced:
        own = len(shape) == len(output)
        names[axis] = names[axis] if own or names[axis] not in taken else f"reduced_{names[axis]}"
    return names


def reduce_axes(bound: BoundOperator) -> Derived:
    """Declares Reduce*. The axes are an attribute or a constant input. If none are given, all axes are reduced (or none,
    if the model says so)."""
    axes = bound.integers_of(1, "axes")
    if axes is None and bound.has(1):
        return WholeOperator(bound, "the axes it reduces are known only at run time")
    if not axes:
        nothing = bool(bound.attribute("noop_with_empty_axes", 0))
        axes = () if nothing else tuple(range(len(bound.shape(0))))
    return _reduction(bound, axes, ways=True)


def arg_reduce(bound: BoundOperator) -> Derived:
    return _reduction(bound, (int(bound.attribute("axis", 0)),), ways=False)


def top_k(bound: BoundOperator) -> Derived:
    axis = int(bound.attribute("axis", -1)) % len(bound.output)
    reads: list[AxisReads | None] = [[None if n == axis else Along(n) for n in range(len(bound.output))]]
    reads += [[None]] * (len(bound.inputs) - 1)
    return Aligned(bound, reads, whole=(axis,), family="reduce", work=8.0)


def cumulative(bound: BoundOperator) -> Derived:
    found = bound.constant(1)
    if found is None:
        return WholeOperator(bound, "its axis is known only at run time")
    axis = int(found.reshape(-1)[0]) % len(bound.output)
    reads = [broadcast(bound.inputs[0], bound.output), [None] * len(bound.shape(1))]
    return Aligned(bound, reads, whole=(axis,), family="reduce", work=1.0)


_KINDS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"

DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    **{f"Reduce{kind}": reduce_axes for kind in _KINDS.split()},
    "ArgMax": arg_reduce,
    "ArgMin": arg_reduce,
    "CumProd": cumulative,
    "CumSum": cumulative,
    "TopK": top_k,
}
