"""Handing on: what of a stage is read after it, by later stages of its device or where it is sent. Rules only."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.draft import covers
from edgepart.planner.region import Region
from edgepart.planner.stages import Schedule, Stage

Value = tuple[str, Region]


def given(schedule: Schedule, device: str) -> Iterator[tuple[Value, ...]]:
    """By stage of a device, in order. A stage may compute all that the device does of a tensor, or a part."""
    stages = schedule.stages[device]
    readers: dict[str, list[tuple[int, Region]]] = {}
    for n, stage in enumerate(stages):
        for name, need in handed(stage):
            readers.setdefault(name, []).append((n, need))
    for n, stage in enumerate(stages):
        found: list[Value] = []
        for share in stage.shares:
            for name, region in share.written:
                sent = (move.region for move in schedule.draft.moves_of(name) if move.source == device)
                read = (need for m, need in readers.get(name, ()) if m != n)
                if any(covers(region, one) for one in (*read, *sent)):
                    found.append((name, region))
        yield tuple(found)


def handed(stage: Stage) -> Iterator[Value]:
    """What a stage reads that it does not compute."""
    inside = {name: region for share in stage.shares for name, region in share.written}
    for share in stage.shares:
        for name, need in share.needs:
            if name not in inside or not (need.is_empty or inside[name].contains(need)):
                yield name, need
