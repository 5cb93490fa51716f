"""Handing on: what of a stage is read after it, by later stages of its device or where it is sent. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgepart.planner.lowering.draft import covers
from edgepart.planner.lowering.schedule import Schedule, Stage
from edgepart.planner.region import Region

Value = tuple[str, Region]


Asked = Mapping[str, Sequence[Region]]
"""By tensor of which a stage computes something, what others ask for, of that and of the rest."""


def given(schedule: Schedule, device: str) -> Iterator[tuple[Value, ...]]:
    """By stage of a device, in order. A stage may compute all that the device does of a tensor, or a part."""
    for stage, wanted in zip(schedule.stages[device], asked(schedule, device), strict=True):
        written = (one for share in stage.shares for one in share.written)
        yield tuple((name, region) for name, region in written if is_asked(wanted[name], region))


def is_asked(wanted: Sequence[Region], region: Region) -> bool:
    """Whether some of a region is."""
    return any(covers(region, one) for one in wanted)


def asked(schedule: Schedule, device: str) -> Iterator[Asked]:
    """By stage of a device, what its other stages read, and what it sends."""
    stages = schedule.stages[device]
    readers: dict[str, list[tuple[int, Region]]] = {}
    for n, stage in enumerate(stages):
        for name, need in handed(stage):
            readers.setdefault(name, []).append((n, need))
    for n, stage in enumerate(stages):
        found: dict[str, Sequence[Region]] = {}
        for name in (name for share in stage.shares for name, _ in share.written):
            sent = [move.region for move in schedule.draft.moves_of(name) if move.source == device]
            found[name] = [*(need for m, need in readers.get(name, ()) if m != n), *sent]
        yield found


def handed(stage: Stage) -> Iterator[Value]:
    """What a stage reads that it does not compute."""
    inside = {name: region for share in stage.shares for name, region in share.written}
    for share in stage.shares:
        for name, need in share.needs:
            if name not in inside or not (need.is_empty or inside[name].contains(need)):
                yield name, need
