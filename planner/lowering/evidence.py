"""Evidence: finds the operators that several devices really share, and the axis. It reads the draft that a
plan carries out, not the strategy that was requested. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from edgepart.planner.access import Access
from edgepart.planner.access.declare.bound import axis_names
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.lowering.draft import Draft, Share
from edgepart.planner.region import Region


def divided_operators(draft: Draft, strategy: Strategy, accesses: Mapping[str, Access]) -> dict[str, str]:
    """The axis along which several devices share each operator of the model. An operator is shared if no
    device computes all regions of one of its outputs, or if several devices make addends for a reduced axis.
    `strategy` was lowered to `draft`."""
    found: dict[str, str] = {}
    for op in draft.blueprint.problem.graph.operators:
        shares = draft.shares_of(op.name)
        axis = _axis(shares, accesses[op.name]) if op.name in accesses else None
        if axis is not None:
            found[op.name] = axis
    for name, parted in strategy.parted.items():
        part = f"{name}#{parted.axis}["  # partial_sums.py gives such names to the operators of the parts.
        makers = {device for op, device in draft.shares if op.startswith(part)}
        if len(makers) > 1:
            found[name] = parted.axis
    return found


def count_devices(draft: Draft) -> int:
    """The number of devices that compute something."""
    return len({device for _, device in draft.shares})


def _axis(shares: Iterable[Share], access: Access) -> str | None:
    """The axis along which the devices' regions of an output differ; None if one device computes everything
    that the others do."""
    regions: dict[int, dict[Region, None]] = {}
    for share in shares:
        for index, region in share.outputs.items():
            regions.setdefault(index, {})[region] = None
    for index, found in regions.items():
        if len(found) > 1 and not any(all(one.contains(other) for other in found) for one in found):
            return "+".join(_names(index, list(found), access))
    return None


def _names(index: int, regions: list[Region], access: Access) -> Iterator[str]:
    called = {axis.place(index): axis.name for axis in access.axes() if axis.reducer is None}
    plain = axis_names(regions[0].rank)
    for place in range(regions[0].rank):
        if len({region.spans[place] for region in regions}) > 1:
            yield called.get(place) or plain[place]
