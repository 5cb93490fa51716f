"""Frontier: which keys each query may attend to, written out as a mask for a part of an attention operator.

An operator that masks by position counts its rows from 0 and its keys from where its past begins; a part of its rows or
keys has other positions, and gets this mask instead. Pure.
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
    """Every index of a span, as int64."""
    return np.concatenate([np.arange(i.start, i.stop, dtype=np.int64) for i in one])


def input_dtype(bound: BoundOperator, index: int) -> str:
    """ONNX element type, in lower case, of an input that is there."""
    name = bound.operator.inputs[index]
    graph = bound.graph
    return graph.constants[name].dtype if name in graph.constants else graph.tensors[name].dtype


@dataclass(frozen=True, slots=True)
class Frontier:
    """How an operator masks by position. Row `i` may attend to key `j` where `j <= i + before` if `causal`, and where
    `j` is less than the number of valid keys, if the operator reads one for each batch."""

    causal: bool
    before: int
    """Keys before the first row: of the past; minus all rows where `valid` counts the keys up to the last row."""
    valid: int | None = None
    """Input with the number of valid keys of each batch, int64."""

    def allowed(self, rows: Span, keys: Span, target: str) -> Local:
        """Nodes that make `target`, true where a row may attend to a key: [rows, keys], or [batch, 1, rows, keys] where
        the numbers of valid keys are read."""
        return tuple(self._allowed(positions(rows)[:, None], positions(keys)[None, :], target))

    def _allowed(self, rows: Array, keys: Array, target: str) -> Iterator[LocalNode]:
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


def masked(bound: BoundOperator, mask: int, allowed: str, target: str) -> LocalNode:
    """A node that makes `target` of what is allowed and of a mask, the input `mask`, if it is given: both must allow a
    key, and what a floating-point mask adds is kept."""
    if not bound.has(mask):
        return LocalNode("Identity", (allowed,), (target,))
    dtype = input_dtype(bound, mask)
    if dtype == "bool":
        return LocalNode("And", (mask, allowed), (target,))
    return LocalNode("Where", (allowed, mask, forbidding(dtype)), (target,))


def forbidding(dtype: str) -> Array:
    """What is added to forbid a key: the lowest finite number, as the runtime's own kernels do, and minus infinity for
    types that they do not take, as ONNX's definition does."""
    if dtype in ("float", "float16"):
        return lowest(dtype)
    return np.asarray(-np.inf, numpy_dtype(dtype))
