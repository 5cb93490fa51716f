"""Refusal: the error for a problem without a plan that fits. Rules only.

It says that the model does not fit only if that is proven. The proof counts what every plan has: each weight on some
device, and the values of an answer while they are written. All other refusals say that nothing was found."""

from __future__ import annotations

from collections.abc import Mapping

from edgepart.planner.cost.memory import whole_bytes
from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.search.memo import Memo

WRITTEN_AT_ONCE = 0.5
"""The part of an output that its devices certainly hold at the same time: borders may be computed and sent before the
larger rest (planner/lowering/borders_first.py)."""


def refuse(memo: Memo, short: Mapping[str, int], nearest: str = "the nearest plan takes more") -> Infeasible:
    """The error for devices that lack the bytes `short` for a plan that `nearest` says something about."""
    name, least = repr(memo.graph.name), least_bytes(memo)
    together = sum(memo.limit_bytes(device.name) for device in memo.cluster.devices)
    if proven := least > together:
        said = (
            f"model {name} does not fit, however it is divided: it takes {format_bytes(least)} at least, and the devices "
            f"may use {format_bytes(together)} together"
        )
    else:
        budget = format_seconds(memo.problem.search_budget_s)
        said = f"no plan that fits was found for model {name} within the search budget of {budget}"
    each = ", ".join(
        f"{device} lacks {lack:,} bytes (it may use {limit:,.0f}; {limit + lack:,.0f} would do)"
        for device, lack in sorted(short.items())
        for limit in [memo.limit_bytes(device)]
    )
    advice = "Add devices, raise the memory limit, or use another strategy."
    return Infeasible(f"{said}; {nearest}: {each}. {advice}", short, proven=proven)


def least_bytes(memo: Memo) -> float:
    """Bytes that all devices together take at least, whatever the plan."""
    graph, kept = memo.graph, dict[str, int]()
    for op in graph.operators:
        for name, nbytes in whole_bytes(graph, op).items():
            kept[name] = max(nbytes, kept.get(name, 0))
    written = (graph.tensors[name] for name in graph.answer_outputs if name in graph.producers)
    largest = max((tensor.nbytes for tensor in written if tensor.shape is not None), default=0)
    return sum(kept.values()) + WRITTEN_AT_ONCE * largest
