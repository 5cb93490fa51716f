"""Memory: what the sessions of a device's segments keep, and what making one takes for a moment. Rules; the figures are
ONNX Runtime's, measured (benchmarks/memory.py compares them with agents).

A session packs each weight into memory of its own, once, and lets go of the file that it came from. Tables that are only
looked up stay in the file: what is read of them is in memory, and can be given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgepart.planner.cost.memory import (
    OPERATOR_BYTES,
    ROW_BYTES,
    kept_bytes,
    rows_read,
)
from edgepart.planner.lowering.draft import Share
from edgepart.planner.plans.plan import WeightRef
from edgepart.planner.region import Region

SESSION_BYTES = 64 << 10
THREAD_BYTES = 64 << 10
"""Of a session without weights, and of each of its threads but the first."""


REORDERED = frozenset({"Conv", "FusedConv"})
"""Operators whose weights are first folded with what is behind them and then brought into another order."""
REORDERING = 1.7
"""Times their weights, what that takes besides what it leaves."""


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """Of one segment's session."""

    kept_bytes: int
    """As long as there is the session."""
    making_bytes: int
    """Besides, while it is made."""


def held(shares: Sequence[Share], refs: Iterable[WeightRef], threads: int) -> SessionMemory:
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
    return SessionMemory(kept, max(most, round(reordered)))


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
        rows_read(share.operator, index, ref.shape, next((r.size for r in share.outputs.values()), None))
        for share, index in uses
    ]
    return 0 if None in rows else sum(filter(None, rows)) * ROW_BYTES
