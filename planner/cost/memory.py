"""Memory cost: bytes that the weights of operators, and operators themselves, keep in a session.

Takes an operator of a graph; gives bytes by constant. It is not one of the cost levels, which count seconds
and bytes of weights that are read. The figures are ONNX Runtime's, as measured (benchmarks/memory.py compares
them with agents). Rules only."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from edgepart.planner.layers.chains import TABLES
from edgepart.planner.model.graph import Graph, Operator

OPERATOR_BYTES = 8 << 10
"""Bytes that each operator takes in a session and in the plan that the agent keeps."""


SESSION_BYTES = 64 << 10
THREAD_BYTES = 64 << 10
"""Bytes of a session without weights, and of each of its threads after the first."""


REORDERED_OPERATORS = frozenset({"Conv", "FusedConv"})
"""Operators whose weights are first folded with the operators that follow, and then reordered."""


REORDERING_FACTOR = 1.7
"""The additional memory that reordering takes besides its result, as a multiple of the weights' bytes."""


WIDENED = 2.2
"""The memory of half-precision weights, as a multiple of their bytes: processors without half-precision
kernels keep them as float32."""


HALVES = frozenset({"float16", "bfloat16"})


ROW_BYTES = 32 << 10
"""Bytes that the operating system brings into memory around a row that is read."""


@dataclass(frozen=True, slots=True)
class WholeMemory:
    """The memory of operators that are computed whole in one session, without the session itself."""

    kept_bytes: float
    """What the session keeps of their weights, and what the operators themselves take."""
    reordered_bytes: float
    """Additional memory for all weights that are reordered while the session is made."""
    largest_bytes: float
    """The largest of their weights: making a session takes at least so much in addition."""

    @property
    def most_bytes(self) -> float:
        """An upper bound on the part of these operators in the peak of a session that is made with others. It is
        reached if all operators of the device whose weights are reordered are in one session."""
        return self.kept_bytes + self.reordered_bytes

    @property
    def alone_bytes(self) -> float:
        """The peak of a session that has only these operators: no device takes less for them."""
        return self.kept_bytes + max(self.reordered_bytes, self.largest_bytes)


def session_bytes(threads: int) -> int:
    """Bytes of a session without operators."""
    return SESSION_BYTES + THREAD_BYTES * (threads - 1)


def whole_memory(graph: Graph, operators: Iterable[Operator], besides: Container[str] = ()) -> WholeMemory:
    """The memory of these operators. A weight that several of them read counts once, and one of `besides` not at all."""
    count, kept, reordered = 0, dict[str, int](), dict[str, float]()
    for op in operators:
        count += 1
        for name, nbytes in whole_bytes(graph, op).items():
            if name in besides:
                continue
            kept[name] = max(nbytes, kept.get(name, 0))
            if op.op_type in REORDERED_OPERATORS:
                reordered[name] = REORDERING_FACTOR * graph.constants[name].nbytes
    most = max(kept.values(), default=0)
    return WholeMemory(sum(kept.values()) + OPERATOR_BYTES * count, sum(reordered.values()), most)


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
