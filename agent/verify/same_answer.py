"""Sameness: whether two answers of a model are the same, the product's first promise. Rules over numpy.

Floating point may differ by a part of the output's largest magnitude, which is what its type allows; everything else
is equal. A NaN or an infinity is right where the other answer has just that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from edgepart.agent.wire.dtypes import element_dtype, element_name, is_native
from edgepart.planner.figures import figure
from edgepart.planner.model.graph import Graph

Values = Mapping[str, Any]
"""By output; a numpy array each, or for what is no tensor a list, a dict or None of such."""

TOLERANCE = 1e-4
"""Of the largest magnitude of the output, for float32 and float64."""

TOLERANCE_FLOAT16 = 2e-2
"""The same where the output is float16, or anything before it was computed in float16: twenty steps of that type. Some
processors round to it after every sum, others after every operator, and a session of fused operators more seldom."""

TOLERANCE_QUANTISED = 0.1
"""The same of a model that rounds to integers while it runs. Integers themselves are exact; but the last bit of a float32
between them, which no two processors have alike, decides now and then which way a number is rounded."""

WIDER_FLOAT16 = TOLERANCE_FLOAT16 / float(np.finfo(np.float16).eps)
"""How many steps at the largest magnitude that is. Of the types that are narrower still, as many, but less than all."""


def tolerance_of(dtype: np.dtype[Any]) -> float:
    """The part of the largest magnitude that a floating-point type's outputs may differ by.

    >>> tolerance_of(np.dtype(np.float32)), tolerance_of(np.dtype(ml_dtypes.bfloat16))
    (0.0001, 0.16)
    """
    if dtype.kind == "f":
        return TOLERANCE_FLOAT16 if dtype == np.float16 else TOLERANCE
    step = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    return min(WIDER_FLOAT16 * step, 0.5)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Of numpy's types and of ml_dtypes'."""
    return dtype.kind == "f" or (not is_native(dtype) and "float" in element_name(dtype))


QUANTISED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "QLinear",
    "Integer",
    "NBits",
    "QAttention",
)
"""Parts of the names of operators that round to integers."""


def is_quantised(graph: Graph) -> bool:
    """Whether anything in it rounds to integers."""
    return any(part in op.op_type for op in graph.operators for part in QUANTISED)


def tolerance_for(graph: Graph) -> float | None:
    """What the model's outputs of floating point may differ by, relative to each one's largest magnitude; None where each
    output's own type says it (`tolerance_of`).

    What counts is what operators write, not what the outputs are: an output in float32 that was computed in float16 is
    no better than float16. Weights in float16 that are cast to float32 before they are used make no difference."""
    written = {graph.tensors[name].dtype for op in graph.operators for name in op.outputs if name}
    types = (element_dtype(one) for one in written)
    allowed = [tolerance_of(one) for one in types if one is not None and is_float(one)]
    widest = max(allowed + [TOLERANCE_QUANTISED] * is_quantised(graph), default=TOLERANCE)
    return widest if widest > TOLERANCE else None


def differences(got: Values, expected: Values, tolerance: float | None = None) -> list[str]:
    """Outputs that are not the same answer, and by how much; nothing where all are. `tolerance` replaces what the
    outputs' types allow."""
    found = [f"{name} is missing" for name in expected.keys() - got.keys()]
    for name in expected.keys() & got.keys():
        faults = (_fault(mine, theirs, tolerance) for mine, theirs in _leaves(got[name], expected[name]))
        found += [f"{name} {fault}" for fault in faults if fault is not None][:1]
    return found


def random_of(first: Values, second: Values) -> tuple[str, ...]:
    """The outputs that are not the same in two answers to the same inputs, though one device gave both."""
    return tuple(name for name in first if differences({name: second[name]}, {name: first[name]}))


def largest_difference(got: Values, expected: Values) -> float:
    """Over the outputs of floating point, relative to each one's largest magnitude; nan where one is not comparable."""
    pairs = [pair for name in expected if name in got for pair in _leaves(got[name], expected[name])]
    found = [
        relative_difference(mine, theirs)
        for mine, theirs in pairs
        if isinstance(theirs, np.ndarray) and is_float(theirs.dtype)
    ]
    return float(np.max(found, initial=0.0))  # nan stays nan


def relative_difference(mine: Any, theirs: Any) -> float:
    """Of two arrays of floating point, the largest distance over the largest finite magnitude of `theirs`; nan where
    they cannot be compared, also where only one has a NaN or an infinity."""
    if not isinstance(mine, np.ndarray) or mine.shape != theirs.shape or not is_float(mine.dtype):
        return math.nan
    one, two = mine.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(two)
    if not np.array_equal(one[~finite], two[~finite], equal_nan=True):
        return math.nan
    apart = np.abs(one[finite] - two[finite])
    worst = float(apart.max(initial=0.0))
    scale = float(np.abs(two[finite]).max(initial=0.0))
    if worst == 0.0:
        return 0.0
    return worst / scale if scale else math.inf


def _leaves(mine: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    """Arrays and plain values that stand in the same place; what is not built alike is one place."""
    if isinstance(theirs, list | tuple) and isinstance(mine, list | tuple) and len(mine) == len(theirs):
        for one, two in zip(mine, theirs, strict=True):
            yield from _leaves(one, two)
    elif isinstance(theirs, dict) and isinstance(mine, dict) and mine.keys() == theirs.keys():
        if all(isinstance(one, float) for side in (mine, theirs) for one in side.values()):
            # A map is one output with one scale: a class of next to no probability may be off by as much as the others.
            yield np.asarray([mine[key] for key in theirs]), np.asarray([*theirs.values()])
            return
        for key, two in theirs.items():
            yield from _leaves(mine[key], two)
    elif any(one is None or isinstance(one, list | tuple | dict) for one in (mine, theirs)):
        yield mine, theirs
    else:
        yield np.asarray(mine), np.asarray(theirs)


def _fault(mine: Any, theirs: Any, tolerance: float | None) -> str | None:
    if not (isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray)):
        alike = mine is None and theirs is None
        return (
            None if alike else f"is a {type(mine).__name__}, expected a {type(theirs).__name__} built alike"
        )
    if mine.shape != theirs.shape or element_name(mine.dtype) != element_name(theirs.dtype):
        return f"is {mine.dtype}{mine.shape}, expected {theirs.dtype}{theirs.shape}"
    if not is_float(theirs.dtype):
        return None if (mine == theirs).all() else "differs"
    relative = relative_difference(mine, theirs)
    if relative <= (tolerance_of(theirs.dtype) if tolerance is None else tolerance):
        return None
    by = figure(relative) if math.isfinite(relative) else relative
    return f"differs by {by} of its largest magnitude"
