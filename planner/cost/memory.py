"""Memory cost: bytes that the weights of operators, and operators themselves, keep in a session.

Takes an operator of a graph; gives bytes by constant. It is not one of the cost levels, which count seconds
and bytes of weights that are read. The figures are ONNX Runtime's, as measured (benchmarks/memory.py compares
them with agents). Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from edgepart.planner.layers.chains import TABLES
from edgepart.planner.model.graph import Graph, Operator

OPERATOR_BYTES = 8 << 10
"""Bytes that each operator takes in a session and in the plan that the agent keeps."""


WIDENED = 2.2
"""The memory of half-precision weights, as a multiple of their bytes: processors without half-precision
kernels keep them as float32."""


HALVES = frozenset({"float16", "bfloat16"})


ROW_BYTES = 32 << 10
"""Bytes that the operating system brings into memory around a row that is read."""


def kept_bytes(dtype: str, nbytes: int, touched: int = 0) -> int:
    """Bytes that a session keeps of a weight. For a table of which only rows are read, they are at most the
    `touched` bytes."""
    if touched:
        return min(nbytes, touched)
    return round(nbytes * WIDENED) if dtype in HALVES else nbytes


def whole_bytes(graph: Graph, op: Operator) -> dict[str, int]:
    """Bytes that a session keeps of each constant that `op` reads, if all of `op` is computed in one place."""
    found: dict[str, int] = {}
    for index, name in enumerate(op.inputs):
        if (constant := graph.constants.get(name)) is not None:
            written = graph.tensors[op.outputs[0]].region.size if op.outputs[0] else None
            rows = rows_read(op, index, constant.shape, written)
            found[name] = kept_bytes(constant.dtype, constant.nbytes, (rows or 0) * ROW_BYTES)
    return found


def rows_read(op: Operator, index: int, shape: Sequence[int], written: int | None) -> int | None:
    """The number of rows that `op` reads of an input of this shape to write `written` elements; None for all rows."""
    if index not in TABLES.get(op.op_type, ()) or op.attributes.get("axis", 0) != 0 or len(shape) < 2:
        return None
    return None if written is None else max(1, -(-written // max(1, prod(shape[1:]))))
