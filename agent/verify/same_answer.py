"""Same answer: decides whether two answers of a model are the same, which is the product's first promise. Rules over numpy.

Floating-point outputs may differ by a part of their largest magnitude that depends on their type; all other outputs must be
equal. A NaN or an infinity is right only where the other answer has the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from edgepart.agent.wire.dtypes import element_dtype, element_name, is_native
from edgepart.planner.figures import format_figure
from edgepart.planner.model.graph import Graph

Values = Mapping[str, Any]
"""Values by name: a numpy array for a tensor; else a list or a dict of such values, or None."""

TOLERANCE = 1e-4
"""The allowed difference of float32 and float64 outputs, relative to the output's largest magnitude, as promised in
docs/architecture.md."""

TOLERANCE_FLOAT16 = 2e-2
"""The same for an output that is float16, or that depends on a value computed in float16: twenty steps of that type. Some
processors round to float16 after every sum, others after every operator, and a session of fused operators less often."""

TOLERANCE_QUANTISED = 0.1
"""The same for a model that rounds to integers while it runs. The integers themselves are exact, but the last bit of a
float32 between them, which differs between processors, now and then decides which way a number is rounded."""

FLOAT16_STEPS = TOLERANCE_FLOAT16 / float(np.finfo(np.float16).eps)
"""TOLERANCE_FLOAT16 in steps of float16 at the largest magnitude. Types that are less precise may differ by as many of
their steps, but by half of the largest magnitude at most."""


def tolerance_of(dtype: np.dtype[Any]) -> float:
    """The allowed difference of outputs of a floating-point type, relative to their largest magnitude.

    >>> tolerance_of(np.dtype(np.float32)), tolerance_of(element_dtype("bfloat16"))
    (0.0001, 0.16)
    """
    if dtype.kind == "f":
        return TOLERANCE_FLOAT16 if dtype == np.float16 else TOLERANCE
    import ml_dtypes  # It is loaded already, as it has made the type.

    step = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    return min(FLOAT16_STEPS * step, 0.5)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a floating-point type, of numpy or of ml_dtypes."""
    return dtype.kind == "f" or (not is_native(dtype) and "float" in element_name(dtype))


QUANTISED_OPERATORS = (
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
    """Whether any operator of the graph rounds to integers."""
    return any(part in op.op_type for op in graph.operators for part in QUANTISED_OPERATORS)


def tolerance_for(graph: Graph) -> float | None:
    """The allowed difference of the model's floating-point outputs, relative to each one's largest magnitude; None if each
    output's own type decides (`tolerance_of`).

    The types that operators write count, not those of the outputs: a float32 output that was computed in float16 is no
    more precise than float16. Weights in float16 that are cast to float32 before they are used make no difference."""
    written = {graph.tensors[name].dtype for op in graph.operators for name in op.outputs if name}
    types = (element_dtype(one) for one in written)
    allowed = [tolerance_of(one) for one in types if one is not None and is_float(one)]
    widest = max(allowed + [TOLERANCE_QUANTISED] * is_quantised(graph), default=TOLERANCE)
    return widest if widest > TOLERANCE else None


def differences(got: Values, expected: Values, tolerance: float | None = None) -> list[str]:
    """A text for each output that differs, which says by how much; empty if the answers are the same. `tolerance` replaces
    the tolerances of the outputs' types."""
    found = [f"{name} is missing" for name in expected.keys() - got.keys()]
    for name in expected.keys() & got.keys():
        faults = (_fault(mine, theirs, tolerance) for mine, theirs in _leaves(got[name], expected[name]))
        found += [f"{name} {fault}" for fault in faults if fault is not None][:1]
    return found


def random_outputs(first: Values, second: Values) -> tuple[str, ...]:
    """The names of outputs that differ between two answers of one device to the same inputs."""
    return tuple(name for name in first if differences({name: second[name]}, {name: first[name]}))


def largest_difference(got: Values, expected: Values) -> float:
    """The largest difference of a floating-point output, relative to that output's largest magnitude; nan if one cannot be
    compared."""
    pairs = [pair for name in expected if name in got for pair in _leaves(got[name], expected[name])]
    found = [
        relative_difference(mine, theirs)
        for mine, theirs in pairs
        if isinstance(theirs, np.ndarray) and is_float(theirs.dtype)
    ]
    return float(np.max(found, initial=0.0))  # Unlike max(), np.max returns nan if there is one.


def relative_difference(mine: Any, theirs: Any) -> float:
    """The largest distance of two floating-point arrays, divided by the largest finite magnitude of `theirs`; nan if they
    cannot be compared, which includes a NaN or an infinity in only one of them."""
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
    """The pairs of arrays and plain values in the same place of two nested values; values of different structure are one
    pair."""
    if isinstance(theirs, list | tuple) and isinstance(mine, list | tuple) and len(mine) == len(theirs):
        for one, two in zip(mine, theirs, strict=True):
            yield from _leaves(one, two)
    elif isinstance(theirs, dict) and isinstance(mine, dict) and mine.keys() == theirs.keys():
        if all(isinstance(one, float) for side in (mine, theirs) for one in side.values()):
            # A map is one output with one scale: an unlikely class may be off by as much as the likely ones.
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
    by = format_figure(relative) if math.isfinite(relative) else relative
    return f"differs by {by} of its largest magnitude"
