"""Memory cost: bytes that the weights of operators, and operators themselves, keep in a session.

Takes an operator of a graph; gives bytes by constant. It stands beside the cost levels, which count seconds and bytes of
weights that are read. The figures are ONNX Runtime's, as measured (benchmarks/memory.py compares them with agents).
Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from edgepart.planner.layers.chains import TABLES
from edgepart.planner.model.graph import Graph, Operator

OPERATOR_BYTES = 8 << 10
"""Bytes that each operator takes in a session and in the plan that the agent keeps."""


WIDENED = 2.2
"""Times their bytes that half-precision weights take: processors without kernels for them keep them as float32."""


HALVES = frozenset({"float16", "bfloat16"})


ROW_BYTES = 32 << 10
"""Bytes that the system brings into memory around a row that is read."""


def kept_bytes(dtype: str, nbytes: int, touched: int = 0) -> int:
    """Bytes of a weight in a session. Of a table of which rows are read only `touched` bytes are kept."""
    if touched:
        return min(nbytes, touched)
    return round(nbytes * WIDENED) if dtype in HALVES else nbytes


def whole_bytes(graph: Graph, op: Operator) -> dict[str, int]:
    """By constant that `op` reads, the bytes that a session keeps of it where all of `op` is computed in one place."""
    found: dict[str, int] = {}
    for index, name in enumerate(op.inputs):
        if (constant := graph.constants.get(name)) is not None:
            written = graph.tensors[op.outputs[0]].region.size if op.outputs[0] else None
            rows = rows_read(op, index, constant.shape, written)
            found[name] = kept_bytes(constant.dtype, constant.nbytes, (rows or 0) * ROW_BYTES)
    return found


def rows_read(op: Operator, index: int, shape: Sequence[int], written: int | None) -> int | None:
    """How many rows of an input of that shape `op` reads to write so many elements; None for all."""
    if index not in TABLES.get(op.op_type, ()) or op.attributes.get("axis", 0) != 0 or len(shape) < 2:
        return None
    return None if written is None else max(1, -(-written // max(1, prod(shape[1:]))))
