"""Masks: which keys each query may attend to, written out as a mask for a part of an attention operator. Rules only.

An operator that masks by position counts its rows from 0 and its keys from the start of its past. A part of its rows or
keys has other positions, so it gets an explicit mask instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgepart.planner.access.declare.bound import BoundOperator, numpy_dtype
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.protocol import Local, LocalNode
from edgepart.planner.access.declare.reducers import lowest
from edgepart.planner.region import Array, Span


def positions(one: Span) -> Array:
    """Returns every index of a span, as int64."""
    return np.concatenate([np.arange(i.start, i.stop, dtype=np.int64) for i in one])


def input_dtype(bound: BoundOperator, index: int) -> str:
    """Returns the ONNX element type, in lower case, of an input that is given."""
    name = bound.operator.inputs[index]
    graph = bound.graph
    return graph.constants[name].dtype if name in graph.constants else graph.tensors[name].dtype


@dataclass(frozen=True, slots=True)
class Frontier:
    """How an operator masks by position. If the operator is `causal`, row `i` may attend to key `j` only if
    `j <= i + before`. If the operator reads the number of valid keys of each batch, `j` must also be less
    than that number, and the causal limit counts from that number."""

    causal: bool
    before: int
    """The number of keys before the first row, which are the keys of the past. If `valid` is given, which
    counts the keys up to the last row, `before` is minus the number of rows, and is added to `valid`."""
    valid: int | None = None
    """The input with the number of valid keys of each batch, int64; None if there is none."""

    def allow(self, rows: Span, keys: Span, target: str) -> Local:
        """Returns nodes that make `target`, which is true where a row may attend to a key: [rows, keys], or
        [batch, 1, rows, keys] if the numbers of valid keys are read."""
        return tuple(self._yield_allowed(positions(rows)[:, None], positions(keys)[None, :], target))

    def _yield_allowed(self, rows: Array, keys: Array, target: str) -> Iterator[LocalNode]:
        past_last = rows + (self.before + 1)
        if self.valid is None:
            yield LocalNode("Greater", (past_last, keys), (target,))
            return
        yield LocalNode("Reshape", (self.valid, integers([-1, 1, 1, 1])), ("valid",))
        yield LocalNode("Add", ("valid", np.zeros_like(rows)), ("valid_rows",))
        if not self.causal:
            yield LocalNode("Greater", ("valid_rows", keys), (target,))
            return
        yield LocalNode("Greater", ("valid_rows", keys), ("padded",))
        yield LocalNode("Add", ("valid", past_last), ("past_last",))
        yield LocalNode("Greater", ("past_last", keys), ("causal",))
        yield LocalNode("And", ("padded", "causal"), (target,))


def make_mask(bound: BoundOperator, mask: int, allowed: str, target: str) -> LocalNode:
    """Returns a node that makes the mask `target` from `allowed` and, if it is given, the input `mask`. Both
    must allow a key. The numbers that a floating-point mask adds are kept."""
    if not bound.has(mask):
        return LocalNode("Identity", (allowed,), (target,))
    dtype = input_dtype(bound, mask)
    if dtype == "bool":
        return LocalNode("And", (mask, allowed), (target,))
    return LocalNode("Where", (allowed, mask, forbidding_score(dtype)), (target,))


def forbidding_score(dtype: str) -> Array:
    """Returns the number that is added to a score to forbid a key: the lowest finite number, as in the
    runtime's own kernels, or minus infinity, as in ONNX's definition, for types that these kernels do not
    take."""
    if dtype in ("float", "float16"):
        return lowest(dtype)
    return np.asarray(-np.inf, numpy_dtype(dtype))
