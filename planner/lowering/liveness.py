"""Liveness: finds the values of a stage that are read after it, by later stages of its device, by other devices or by the
next step. Pure rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgepart.planner.lowering.draft import covers
from edgepart.planner.lowering.schedule import Schedule, Stage
from edgepart.planner.region import Region

Value = tuple[str, Region]


RequestedRegions = Mapping[str, Sequence[Region]]
"""The regions of each tensor that other stages read or that are sent; for tensors that a stage computes in
full or in part."""


def stage_outputs(schedule: Schedule, device: str) -> Iterator[tuple[Value, ...]]:
    """Yields the outputs of each stage of a device, in order. A stage may compute everything that the device
    computes of a tensor, or a part."""
    for stage, wanted in zip(schedule.stages[device], requested_regions(schedule, device), strict=True):
        written = (one for share in stage.shares for one in share.written)
        yield tuple((name, region) for name, region in written if is_requested(wanted[name], region))


def is_requested(wanted: Sequence[Region], region: Region) -> bool:
    """Whether some of `region` is among the regions `wanted`."""
    return any(covers(region, one) for one in wanted)


def requested_regions(schedule: Schedule, device: str) -> Iterator[RequestedRegions]:
    """Yields, for each stage of a device, the regions of its tensors that other stages read, that are sent, or that are
    kept for the next step."""
    stages = schedule.stages[device]
    readers: dict[str, list[tuple[int, Region]]] = {}
    for n, stage in enumerate(stages):
        for name, need in stage_inputs(stage):
            readers.setdefault(name, []).append((n, need))
    for n, stage in enumerate(stages):
        found: dict[str, Sequence[Region]] = {}
        for name in (name for share in stage.shares for name, _ in share.written):
            sent = [move.region for move in schedule.draft.moves_of(name) if move.source == device]
            kept = schedule.draft.kept_regions(name, device)
            found[name] = [*(need for m, need in readers.get(name, ()) if m != n), *sent, *kept]
        yield found


def stage_inputs(stage: Stage) -> Iterator[Value]:
    """Yields the values that a stage reads and does not compute itself."""
    inside = {name: region for share in stage.shares for name, region in share.written}
    for share in stage.shares:
        for name, need in share.needs:
            if name not in inside or not (need.is_empty or inside[name].contains(need)):
                yield name, need
