"""Memory that weights and operators keep in a session, worked out from the graph alone. Rules; the figures are
ONNX Runtime's, measured (benchmarks/memory.py compares them with agents)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from edgepart.planner.layers.chains import TABLES
from edgepart.planner.model.graph import Graph, Operator

OPERATOR_BYTES = 8 << 10
"""Of each operator in a session, and in the plan that the agent keeps."""


WIDENED = 2.2
"""What half-precision weights become: where the processor has no kernels for them, they are kept as float32."""


HALVES = frozenset({"float16", "bfloat16"})


ROW_BYTES = 32 << 10
"""What the system brings into memory around a row that is read."""


def kept_bytes(dtype: str, nbytes: int, touched: int = 0) -> int:
    """Of a weight in a session; of a table that is `touched`, what is."""
    if touched:
        return min(nbytes, touched)
    return round(nbytes * WIDENED) if dtype in HALVES else nbytes


def whole_bytes(graph: Graph, op: Operator) -> dict[str, int]:
    """By constant that it reads, what is kept of it where all of `op` is computed in one place."""
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
