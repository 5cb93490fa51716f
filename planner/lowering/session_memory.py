"""Session memory: predicts the memory that an ONNX Runtime session keeps, and the additional memory that
making it takes. Pure rules with figures measured on ONNX Runtime (benchmarks/memory.py compares them with
agents).

A session packs each weight into its own memory once, and releases the file that the weight came from. Tables
that are only looked up stay in the file: the pages that are read are in memory, and can be reclaimed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgepart.planner.cost.memory import (
    OPERATOR_BYTES,
    REORDERED_OPERATORS,
    REORDERING_FACTOR,
    ROW_BYTES,
    kept_bytes,
    rows_read,
    session_bytes,
)
from edgepart.planner.lowering.draft import Share
from edgepart.planner.plans.plan import WeightRef
from edgepart.planner.region import Region


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """The predicted memory of one segment's session."""

    kept_bytes: int
    """Memory that the session takes as long as it exists."""
    making_bytes: int
    """Additional memory that the session takes while it is made."""


def predict_session_memory(shares: Sequence[Share], refs: Iterable[WeightRef], threads: int) -> SessionMemory:
    """The memory of a session that computes `shares` with the weights `refs`."""
    readers = _readers(shares)
    kept = session_bytes(threads) + OPERATOR_BYTES * len(shares)
    most, reordered = 0, 0.0
    for ref in refs:
        uses = readers.get((ref.source, ref.region), [])
        size = kept_bytes(ref.dtype, ref.nbytes, touched=_touched_bytes(ref, uses))
        kept += size
        most = max(most, size)
        if any(share.operator.op_type in REORDERED_OPERATORS for share, _ in uses):
            reordered += REORDERING_FACTOR * ref.nbytes
    return SessionMemory(kept, max(most, round(reordered)))


def _readers(shares: Sequence[Share]) -> dict[tuple[str, Region], list[tuple[Share, int]]]:
    """The shares that read each region of a constant, each with the index of its input."""
    found: dict[tuple[str, Region], list[tuple[Share, int]]] = {}
    for share in shares:
        for index, (name, region) in enumerate(zip(share.operator.inputs, share.reads, strict=True)):
            if region is not None:
                found.setdefault((name, region), []).append((share, index))
    return found


def _touched_bytes(ref: WeightRef, uses: Sequence[tuple[Share, int]]) -> int:
    """Bytes that a request brings into memory by look-ups in a table; 0 for a weight that is not only looked up."""
    rows = [
        rows_read(share.operator, index, ref.shape, next((r.size for r in share.outputs.values()), None))
        for share, index in uses
    ]
    return 0 if None in rows else sum(filter(None, rows)) * ROW_BYTES
