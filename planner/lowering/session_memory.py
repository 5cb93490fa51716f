"""Memory: what the sessions of a device's segments keep, and what making one takes for a moment. Rules; the figures are
ONNX Runtime's, measured (benchmarks/memory.py compares them with agents).

A session packs each weight into memory of its own, once, and lets go of the file that it came from. Tables that are only
looked up stay in the file: what is read of them is in memory, and can be given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from edgepart.planner.lowering.draft import Share
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.plan.plan import WeightRef
from edgepart.planner.region import Region

SESSION_BYTES = 64 << 10
THREAD_BYTES = 64 << 10
"""Of a session without weights, and of each of its threads but the first."""
OPERATOR_BYTES = 8 << 10
"""Of each operator in a session, and in the plan that the agent keeps."""

WIDENED = 2.2
"""What half-precision weights become: where the processor has no kernels for them, they are kept as float32."""
HALVES = frozenset({"float16", "bfloat16"})

REORDERED = frozenset({"Conv", "FusedConv"})
"""Operators whose weights are first folded with what is behind them and then brought into another order."""
REORDERING = 1.7
"""Times their weights, what that takes besides what it leaves."""

TABLES: Mapping[str, tuple[int, ...]] = {"Gather": (0,), "EmbedLayerNormalization": (2, 3, 4)}
"""By operator, its inputs of which only some rows are read."""
ROW_BYTES = 32 << 10
"""What the system brings into memory around a row that is read."""


@dataclass(frozen=True, slots=True)
class Held:
    """Of one segment's session."""

    kept_bytes: int
    """As long as there is the session."""
    making_bytes: int
    """Besides, while it is made."""


def held(shares: Sequence[Share], refs: Iterable[WeightRef], threads: int) -> Held:
    """Of a session that computes `shares` with the weights `refs`."""
    readers = _readers(shares)
    kept = SESSION_BYTES + THREAD_BYTES * (threads - 1) + OPERATOR_BYTES * len(shares)
    most, reordered = 0, 0.0
    for ref in refs:
        uses = readers.get((ref.source, ref.region), [])
        size = kept_bytes(ref.dtype, ref.nbytes, touched=_touched(ref, uses))
        kept += size
        most = max(most, size)
        if any(share.operator.op_type in REORDERED for share, _ in uses):
            reordered += REORDERING * ref.nbytes
    return Held(kept, max(most, round(reordered)))


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
            rows = _rows(op, index, constant.shape, written)
            found[name] = kept_bytes(constant.dtype, constant.nbytes, (rows or 0) * ROW_BYTES)
    return found


def _readers(shares: Sequence[Share]) -> dict[tuple[str, Region], list[tuple[Share, int]]]:
    """By constant and region, the shares that read it, as which of their inputs."""
    found: dict[tuple[str, Region], list[tuple[Share, int]]] = {}
    for share in shares:
        for index, (name, region) in enumerate(zip(share.operator.inputs, share.reads, strict=True)):
            if region is not None:
                found.setdefault((name, region), []).append((share, index))
    return found


def _touched(ref: WeightRef, uses: Sequence[tuple[Share, int]]) -> int:
    """Bytes that a request looks up in a table, with what comes along; 0 for what is no table, or is read otherwise
    too."""
    rows = [
        _rows(share.operator, index, ref.shape, next((r.size for r in share.outputs.values()), None))
        for share, index in uses
    ]
    return 0 if None in rows else sum(filter(None, rows)) * ROW_BYTES


def _rows(op: Operator, index: int, shape: Sequence[int], written: int | None) -> int | None:
    """How many rows of an input of that shape `op` reads to write so many elements; None for all."""
    if index not in TABLES.get(op.op_type, ()) or op.attributes.get("axis", 0) != 0 or len(shape) < 2:
        return None
    return None if written is None else max(1, -(-written // max(1, prod(shape[1:]))))
